"""Faults while the controller watches: it hears of them, sends traffic another way, and undoes that on repair."""

from itertools import permutations, product

import pytest

from railyard.controller.failover.detours import Broken
from railyard.controller.processes.clients import ControllerProcess
from railyard.topologies.addresses import Gpu
from tests.emulation.fabrics import Fabric, build, eventually
from tests.unit.path_choices import chosen_path

pytestmark = pytest.mark.sandbox


def assert_all_go_as_chosen(fabric: Fabric, broken: Broken) -> None:
    """Between domains each packet visits the GPUs of the chosen path; where there is none it isn't looked for."""
    spec, policy = fabric.net.plan.spec, fabric.net.plan.spec.chosen_policy
    for src in fabric.gpus:
        for dst in (gpu for gpu in fabric.gpus if gpu.domain != src.domain):
            path = chosen_path(policy, src, dst, broken, spec.rails, spec.kind)
            assert path is not None
            ends = [Gpu(src.domain, path.rail), Gpu(dst.domain, path.rail)]
            between = [] if path.kind == "spine" else [gpu for gpu in ends if gpu not in (src, dst)]
            assert fabric.trace(src, dst) == [*between, dst], f"{src.name} -> {dst.name}: {path}"


def test_cut_link_dead_switch_and_crashed_gpu_are_rerouted() -> None:
    """The first two are repaired without a trace."""
    fabric = build("rail-only", 2, 3)
    before, flows = fabric.routes(), fabric.flows("rail0")
    with fabric.awaited("rerouted"):
        fabric.set_link(Gpu(0, 1), "down")
    assert fabric.whats()[-3:] == ["port-down", "decided", "rerouted"]
    assert fabric.events[-3][1] == {"switch": "rail1", "port": "d0g1"}
    assert_all_go_as_chosen(fabric, Broken(links=frozenset({Gpu(0, 1)})))
    with fabric.awaited("rerouted"):
        fabric.set_link(Gpu(0, 1), "up")
    assert fabric.whats()[-3:] == ["port-up", "decided", "rerouted"]
    # a kernel takes its time to say that a link is up, and sends by its backup route until then
    eventually(lambda: fabric.routes() == before)
    assert_all_go_as_chosen(fabric, Broken())

    with fabric.awaited("rerouted"):
        fabric.net.ovs["rail0"].kill()
    assert fabric.whats()[-3:] == ["switch-down", "decided", "rerouted"]
    assert_all_go_as_chosen(fabric, Broken(rails=frozenset({0})))
    fabric.restart("rail0")
    # not the next event alone: ports of a switch may come back one after the other
    fabric.await_no_detours()
    eventually(lambda: fabric.routes() == before)
    assert fabric.flows("rail0") == flows
    assert_all_go_as_chosen(fabric, Broken())

    with fabric.awaited("rerouted"):
        for interface in ("hb0", "rail0"):
            fabric.in_node("d0g1", "ip", "link", "del", interface)
    for src, dst in permutations([gpu for gpu in fabric.gpus if gpu != Gpu(0, 1)], 2):
        visited = fabric.trace(src, dst)
        assert visited is not None, f"{src.name} -> {dst.name}"
        assert Gpu(0, 1) not in visited


def test_without_rerouting_a_fault_is_only_reported() -> None:
    fabric = build("rail-only", 2, 3, reroute=False, backups=False)
    before = fabric.routes()
    fabric.set_link(Gpu(0, 1), "down")
    fabric.await_event("port-down")
    assert not fabric.arrives(Gpu(0, 1), Gpu(1, 1), wait_s=0.3)
    assert not fabric.arrives(Gpu(0, 2), Gpu(1, 1), wait_s=0.3)
    assert not fabric.arrives(Gpu(1, 0), Gpu(0, 1), wait_s=0.3)
    assert fabric.arrives(Gpu(0, 1), Gpu(1, 0))  # by another rail; the answer would be lost
    fabric.set_link(Gpu(0, 1), "up")
    fabric.await_event("port-up")
    eventually(lambda: fabric.routes() == before)
    assert "decided" not in fabric.whats()


@pytest.mark.parametrize("policy", ["dr", "rd"])
def test_kernel_alone_reroutes_own_and_transit_traffic(policy: str) -> None:
    """Backup routes, no reroute: whatever would have left by the dead link reaches its destination all the same."""
    fabric = build("rail-only", 2, 3, reroute=False, backups=True, policy=policy)
    fabric.set_link(Gpu(0, 1), "down")
    eventually(lambda: "linkdown" in fabric.in_node("d0g1", "ip", "route", "show", "dev", "rail0"))
    for src, dst in product(fabric.gpus[:3], fabric.gpus[3:]):
        assert fabric.arrives(src, dst), f"{src.name} -> {dst.name}"


def test_new_controller_keeps_right_flows_and_repairs_wrong_ones() -> None:
    fabric = build("rail-optimized", 2, 2)
    flows = fabric.flows("rail0")
    fabric.controller.stop()
    wrong = "cookie=0x5261696c,priority=200,dl_dst=02:52:00:07:00:00,actions=output:1"
    fabric.openflow("rail0", "add-flow", wrong)
    fabric.openflow("rail0", "del-flows", "--strict", "priority=200,dl_dst=02:52:00:01:00:00")
    assert fabric.flows("rail0") != flows
    assert fabric.trace(Gpu(0, 0), Gpu(0, 1)) == [Gpu(0, 1)]
    to_d0g0 = f"dl_dst={Gpu(0, 0).mac('rail')}"
    kept = fabric.flow_ages("rail0", to_d0g0)
    successor = ControllerProcess()
    successor.connect(fabric.net.plan)
    successor.wait_ready()
    assert fabric.flows("rail0") == flows
    assert fabric.flow_ages("rail0", to_d0g0) >= kept  # it was not written anew
