"""A dual-plane fabric on packets: flows use both planes, and the other one when a switch or a link of one is dead.

  d0g0        d1g0
  |  \\      /  |        rail0 and rail0p1 are the two switches of rail 0,
  |    \\  /    |        rail1 and rail1p1 those of rail 1
rail0   rail0p1
"""

import json
from typing import Any

import pytest

from railyard.controller.processes.clients import HeartbeatProcess
from railyard.failure.faults import Fault
from railyard.topologies.addresses import Gpu
from tests.emulation.fabrics import Fabric, build, eventually, inject, repair

pytestmark = pytest.mark.sandbox
FLOWS = 24


def by_plane(fabric: Fabric, gpu: Gpu) -> list[int]:
    """Packets that a GPU has received from each plane."""
    links = fabric.net.plan.rail_links(gpu)
    shown = [fabric.in_node(gpu.name, "ip", "-j", "-s", "link", "show", link.a.interface) for link in links]
    return [json.loads(text)[0]["stats64"]["rx"]["packets"] for text in shown]


def received(fabric: Fabric, src: Gpu, dst: Gpu) -> list[int]:
    """Packets that arrive by each plane of one rail while many flows are set up: SYN and ACK of each."""
    before = by_plane(fabric, Gpu(dst.domain, dst.rank))
    for sock in fabric.connect(src, dst, FLOWS):
        sock.close()
    return [after - old for after, old in zip(by_plane(fabric, dst), before, strict=True)]


def assert_on_plane_0(fabric: Fabric, src: Gpu, dst: Gpu) -> None:
    first, second = received(fabric, src, dst)
    assert (first >= 2 * FLOWS, second) == (True, 0)


def test_flows_use_both_planes_and_leave_a_dead_switch_or_link() -> None:
    fabric = build("dual-plane", 3, 2)
    before = fabric.routes()
    assert fabric.net.pingAll(timeout="5") == 0
    for src in (Gpu(0, 0), Gpu(0, 1)):  # along the rail, and forwarded by d0g0
        assert min(received(fabric, src, Gpu(1, 0))) > FLOWS / 4
    with fabric.awaited("rerouted"):
        fabric.net.ovs["rail0p1"].kill()
    assert fabric.all_arrive()
    for src in (Gpu(0, 0), Gpu(0, 1)):
        assert_on_plane_0(fabric, src, Gpu(1, 0))
    assert min(received(fabric, Gpu(0, 1), Gpu(1, 1))) > FLOWS / 4  # rail 1 keeps both
    fabric.restart("rail0p1")
    fabric.await_no_detours()
    eventually(lambda: fabric.routes() == before)
    assert min(received(fabric, Gpu(0, 0), Gpu(1, 0))) > FLOWS / 4
    link = fabric.net.plan.rail_link(Gpu(1, 0), plane=1)
    with fabric.awaited("rerouted"):
        fabric.in_node(link.b.node, "ip", "link", "set", link.b.interface, "down")
    assert fabric.all_arrive()
    assert_on_plane_0(fabric, Gpu(0, 0), Gpu(1, 0))


def test_fault_at_a_plane_1_link_moves_traffic_to_plane_0() -> None:
    """Heartbeats find a silent link, which keeps its carrier."""
    fabric = build("dual-plane", 3, 2)
    before = fabric.routes()

    def on_silence(ns: int, what: str, detail: dict[str, Any]) -> None:
        if what == "silence":
            fabric.controller.on_heartbeats(detail)

    heartbeats = HeartbeatProcess(fabric.net.plan, 0.02, 3, on_silence)
    try:
        for kind in ("link-down", "link-silent"):
            assert min(received(fabric, Gpu(0, 0), Gpu(1, 0))) > FLOWS / 4
            inject(fabric.net, Fault(kind, "d1g0:rail1"))
            eventually(lambda: fabric.routes() != before)
            eventually(lambda: received(fabric, Gpu(0, 0), Gpu(1, 0))[0] >= 2 * FLOWS)
            assert fabric.all_arrive()
            assert min(received(fabric, Gpu(0, 0), Gpu(2, 0))) > FLOWS / 4  # other GPUs keep both planes
            repair(fabric.net, Fault(kind, "d1g0:rail1"))
            eventually(lambda: fabric.routes() == before)
    finally:
        heartbeats.stop()


def test_a_crashed_plane_leaves_all_traffic_to_the_other() -> None:
    fabric = build("dual-plane", 3, 2)
    before = fabric.routes()
    fault = Fault("plane-crash", "plane1")
    inject(fabric.net, fault)
    fabric.await_event("rerouted", times=2)
    assert fabric.all_arrive()
    for src, dst in ((Gpu(0, 0), Gpu(1, 0)), (Gpu(0, 1), Gpu(1, 1))):
        assert_on_plane_0(fabric, src, dst)
    repair(fabric.net, fault)
    eventually(lambda: fabric.routes() == before)
    assert min(received(fabric, Gpu(0, 0), Gpu(1, 0))) > FLOWS / 4
