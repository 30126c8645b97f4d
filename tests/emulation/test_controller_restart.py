"""The controller dies while packets flow, and comes back: nothing is lost, and what broke meanwhile is gone round.

3 domains of 3 GPUs, rail-only, policy dr:

    d0g0 --hb0--> d0g1 --rail1--> d1g1        d2g0 --rail0--> d1g0
"""

import time
from dataclasses import asdict
from typing import Any

import pytest

from railyard.controller.failover.heartbeat_detector import SilentComponents
from railyard.core.errors import RailyardError
from railyard.core.records import ProbeLog
from railyard.failure.probes.traffic import Traffic, TrafficJob
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.build import namespaces
from railyard.topologies.routing import gpu_commands
from tests.emulation.fabrics import build, eventually

pytestmark = pytest.mark.sandbox

PAIRS = ((Gpu(0, 0), Gpu(1, 1)), (Gpu(2, 0), Gpu(1, 0)), (Gpu(1, 2), Gpu(2, 1)))


def lost(probes: list[ProbeLog], until_ns: int) -> list[int]:
    """Return how many of each pair's; the last is still on its way when sending is stopped."""
    return [len(log.lost(0, until_ns)) for log in probes]


def silent(*hb_links: str) -> dict[str, Any]:
    """Return the heartbeat message for these silent HB links."""
    return asdict(SilentComponents(hb_links=frozenset(map(gpu_of_name, hb_links))))


def test_restarted_controller_handles_faults_of_its_absence() -> None:
    fabric = build("rail-only", 3, 3)
    controller = fabric.controller
    routes, flows = fabric.routes(), fabric.flows("rail1")
    traffic = Traffic(TrafficJob(streams=(), probes=PAIRS, stream_bytes_per_s=0.0))
    traffic.start()
    time.sleep(0.3)
    old = fabric.flow_ages("rail1")
    controller.crash()
    time.sleep(0.5)  # a switch that flushed its flows would have done it by now
    controller.restart()
    fabric.await_event("controller-resumed")
    time.sleep(0.3)
    end_ns = time.monotonic_ns()
    time.sleep(1.0)  # for what is on its way
    log = traffic.stop(2.0)
    assert lost(log.probes, end_ns) == [0, 0, 0]
    assert fabric.whats()[-3:] == ["controller-crashed", "controller-restarted", "controller-resumed"]
    assert (fabric.routes(), fabric.flows("rail1")) == (routes, flows)
    assert min(fabric.flow_ages("rail1")) >= min(old)  # none was written anew

    controller.crash()
    fabric.set_link(Gpu(0, 1), "down")
    eventually(lambda: fabric.arrives(Gpu(0, 1), Gpu(1, 0), 0.2))  # its own kernel sees that its link is dead
    assert not fabric.arrives(Gpu(1, 0), Gpu(0, 1), wait_s=0.3)  # who sends to it can't know
    controller.restart()
    fabric.await_event("rerouted")
    assert fabric.whats()[-4:] == ["controller-resumed", "port-down", "decided", "rerouted"]
    assert fabric.arrives(Gpu(1, 0), Gpu(0, 1))

    turned = fabric.routes()
    controller.crash()
    controller.on_heartbeats(silent("d2g2"))
    controller.restart()  # the heartbeat message came during the outage; the link is still down
    fabric.await_event("rerouted", times=2)
    assert fabric.whats().count("silent") == 1
    eventually(lambda: fabric.routes() != turned)
    controller.on_heartbeats(silent())
    eventually(lambda: fabric.routes() == turned)

    controller.crash()
    fabric.set_link(Gpu(0, 1), "up")
    controller.restart()
    eventually(lambda: fabric.routes() == routes)


def test_dead_switch_reconnects_to_a_restarted_controller() -> None:
    fabric = build("rail-only", 2, 3)
    controller, routes, flows = fabric.controller, fabric.routes(), fabric.flows("rail1")
    controller.crash()
    fabric.net.ovs["rail1"].kill()
    controller.restart()
    fabric.await_event("rerouted")
    assert ("controller-resumed", {"switches": 2}) in fabric.events
    for src, dst in ((Gpu(0, 1), Gpu(1, 1)), (Gpu(0, 0), Gpu(1, 1))):
        assert fabric.arrives(src, dst)
    fabric.restart("rail1")
    eventually(lambda: fabric.routes() == routes)
    assert fabric.flows("rail1") == flows


def test_replacing_gpu_gets_the_detours_in_force() -> None:
    """The cables are put into another namespace, which takes the old one's name, as after a takeover."""
    fabric = build("rail-only", 2, 3)
    plan, place = fabric.net.plan, Gpu(1, 2)
    fabric.set_link(Gpu(0, 1), "down")
    fabric.await_event("rerouted")
    detours = fabric.in_node(place.name, "ip", "route", "show", "metric", "10")
    namespaces.create(["newcomer"])
    for interface in ("hb0", "rail0"):
        fabric.in_node(place.name, "ip", "link", "set", interface, "netns", "newcomer")
    fabric.await_event("port-down", times=2)
    namespaces.remove([place.name])
    namespaces.path(place.name).touch()
    namespaces.run(["mount", "-n", "--bind", str(namespaces.path("newcomer")), str(namespaces.path(place.name))])
    with namespaces.inside(place.name):
        namespaces.run(["ip", "-batch", "-"], gpu_commands(plan, place, backups=True))
    fabric.await_event("port-up")
    eventually(lambda: fabric.whats()[-1] == "rerouted")
    assert not fabric.in_node(place.name, "ip", "route", "show", "metric", "10")
    fabric.controller.replace_gpu(place.name)
    assert fabric.in_node(place.name, "ip", "route", "show", "metric", "10") == detours != ""
    with pytest.raises(RailyardError, match="place of d7g7"):
        fabric.controller.replace_gpu("d7g7")
