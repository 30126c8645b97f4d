"""Optical circuit switches on packets: transparent to all traffic, and the path of a spare GPU into a rail.

d0g1 ── ocs0 ── rail1        d0g1 fails. Fibre of d0g2 to the place that was d0g1's, in the dark; d0g2 takes
d0g2 ── ocs0 ── rail2        d0g1's address, MACs, routes and name meanwhile.
"""

import json
import time

import pytest

from railyard.core.host import NETNS_DIR
from railyard.failure.faults.support.links import is_up, set_link
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.gpu_replacement import GpuReplacement
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.fabric_kinds import End, Layer
from tests.emulation.fabrics import RAIL_BPS, Fabric, at_best, build, eventually

pytestmark = pytest.mark.sandbox
FAILED = Gpu(0, 1)
SHOW_RAIL = "ip -br link show rail0"
DARK = {"dead", "linkdown"}  # flags of a route without a carrier
LIGHT_OFF = 0.02
TAKEN_OVER_S = 10.0  # generous: others may work on this machine


def reported(fabric: Fabric, switch: str) -> list[str]:
    """Return what the switch reported of its port to the failing GPU."""
    words = {"switch": switch, "port": FAILED.name}
    return [what for what, detail in fabric.events if detail == words]


def identity(fabric: Fabric, gpu: Gpu) -> tuple[list[str], ...]:
    """Its routes in all tables, with light or without, its neighbours and its MACs."""
    routes = fabric.in_node(gpu.name, "ip", "route", "show", "table", "all")
    steady = [" ".join(word for word in line.split() if word not in DARK) for line in routes.splitlines()]
    neighbours = fabric.in_node(gpu.name, "ip", "neigh").splitlines()
    links = json.loads(fabric.in_node(gpu.name, "ip", "-json", "link"))
    return sorted(steady), sorted(neighbours), sorted(link["address"] for link in links)


def fail(fabric: Fabric) -> None:
    """The GPU's own interfaces go down, as in a crash."""
    for device in ("rail0", "hb0"):
        set_link(End(FAILED.name, device), "down")
    eventually(lambda: reported(fabric, "rail1") == ["port-down"])


@pytest.mark.quiet
def test_optical_fabric_carries_traffic_and_reroutes_cut_links() -> None:
    fabric = build("rail-only", 3, 3, optical={"layers": ["rail", "hb"]})
    assert fabric.net.pingAll(timeout="5") == 0
    ends = (fabric.net.get("d0g1"), fabric.net.get("d1g1"))
    expected = pytest.approx(RAIL_BPS * payload_fraction(9000), rel=0.1)
    at_best(lambda: float(fabric.net.iperf(ends, seconds=2)[0].split()[0]) * 1e6, lambda received: received == expected)
    fabric.set_link(FAILED, "down")  # at the optical switch
    eventually(lambda: reported(fabric, "rail1") == ["port-down"])
    eventually(lambda: fabric.arrives(Gpu(1, 1), FAILED, 0.05))
    assert not is_up(End("rail1", FAILED.name))
    fabric.set_link(FAILED, "up")
    eventually(lambda: reported(fabric, "rail1") == ["port-down", "port-up"])
    eventually(lambda: fabric.trace(Gpu(1, 1), FAILED) == [FAILED])
    fabric.in_node("ocs1", "ip", "link", "set", FAILED.name, "down")  # its HB cable: dr goes through it, rd doesn't
    eventually(lambda: fabric.trace(Gpu(0, 0), Gpu(1, 1), 0.1) == [Gpu(1, 0), Gpu(1, 1)])
    fabric.in_node("ocs1", "ip", "link", "set", FAILED.name, "up")
    eventually(lambda: fabric.trace(Gpu(0, 0), Gpu(1, 1), 0.1) == [FAILED, Gpu(1, 1)])
    eventually(lambda: fabric.all_arrive(0.5))


@pytest.mark.parametrize(("layers", "spare"), [(("rail",), Gpu(0, 2)), (("rail", "hb"), Gpu(2, 2))])
def test_spare_gpu_is_reached_at_the_failed_gpus_addresses(layers: tuple[Layer, ...], spare: Gpu) -> None:
    fabric = build("rail-only", 3, 3, optical={"layers": list(layers), "switching_time": f"{LIGHT_OFF * 1e3:g}ms"})
    before = identity(fabric, FAILED)
    fabric.net.get(FAILED.name).cmd("true")  # a shell, which stays where it is
    fail(fabric)
    with GpuReplacement(fabric.net, spare, FAILED) as adoption:
        begun = time.monotonic()
        fabric.controller.cross_connect({spare.name: FAILED.name})
        adoption.apply_identity()
        adoption.apply_name()
    assert identity(fabric, FAILED) == before
    fabric.controller.replace_gpu(FAILED.name)
    fabric.await_event("optical-links-up")
    eventually(lambda: reported(fabric, "rail1") == ["port-down", "port-up"])
    eventually(lambda: fabric.trace(Gpu(1, 1), FAILED, 0.05) == [FAILED])
    assert LIGHT_OFF < time.monotonic() - begun < LIGHT_OFF + TAKEN_OVER_S
    eventually(lambda: fabric.all_arrive(0.5, without=[spare]))
    assert " UP " in fabric.net.get(FAILED.name).cmd(SHOW_RAIL)
    assert namespaces.path(f"{FAILED.name}-failed").stat().st_ino == namespaces.path(spare.name).stat().st_ino
    fabric.net.stop()
    assert list(NETNS_DIR.iterdir()) == []
