"""Beside background that has its own share, a transfer gets the rest: at once, and all of it when nothing is sent."""

import json
import subprocess
import time

import pytest

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import relaxed_tcp_timers
from railyard.topologies.build.shaping import payload_fraction
from railyard.workloads.background.flows import Background, flows_of, reserved
from railyard.workloads.background.spec import BackgroundSpec
from tests.emulation.fabrics import Fabric, at_best, build
from tests.emulation.steered import SLOW_RATES

pytestmark = [pytest.mark.sandbox, pytest.mark.quiet, pytest.mark.long]
SETTLE_S = 0.3
SRC, DST = Gpu(0, 0), Gpu(1, 0)


def seconds_of_tcp(fabric: Fabric, count: int) -> list[float]:
    """The share of its link's payload rate that a connection with a replay's window delivers, second by second."""
    with namespaces.inside(DST.name):
        server = subprocess.Popen(["iperf3", "-s", "-1", "-J", "--forceflush"], stdout=subprocess.PIPE)
    with relaxed_tcp_timers(fabric.net.plan.hosts):
        words = ["iperf3", "-w", "40K", "-t", str(count), "-c", DST.ip]
        fabric.in_node(SRC.name, "sh", "-c", f"until {' '.join(words)}; do sleep 0.05; done")
    reported = json.loads(server.communicate()[0])
    rate = fabric.net.plan.rail_bps * payload_fraction(9000)
    return [second["sum"]["bits_per_second"] / rate for second in reported["intervals"][:count]]


def shapers(fabric: Fabric) -> dict[str, str]:
    """Return the classes and filters of each node."""
    nodes = ["rail0", *(gpu.name for gpu in fabric.gpus)]
    return {node: shapers_of(fabric, node) for node in nodes}


def shapers_of(fabric: Fabric, node: str) -> str:
    plan = fabric.net.plan
    names = {end.interface for link in plan.links for end in (link.a, link.b) if end.node == node}
    shown = (fabric.in_node(node, "tc", kind, "show", "dev", n) for n in sorted(names) for kind in ("class", "filter"))
    return "".join(shown)


def test_transfer_gets_a_tenth_of_a_hot_rail_and_all_of_an_idle() -> None:
    fabric = build("rail-only", 2, 2, **SLOW_RATES)
    plan, before = fabric.net.plan, shapers(fabric)
    hot = BackgroundSpec.model_validate({"rails": [0], "load": 0.9})
    with reserved(plan, flows_of(hot, plan)):
        assert shapers(fabric)[SRC.name] != before[SRC.name]
        with Background(plan, [hot]) as load:
            time.sleep(SETTLE_S)  # it is on
            at_best(lambda: seconds_of_tcp(fabric, 4), lambda beside: all(0.08 <= share <= 0.12 for share in beside))
            sent = load.stop()
        at_best(lambda: seconds_of_tcp(fabric, 2), lambda alone: min(alone) > 0.95)
    assert min(one.share for one in sent) > 0.8  # a sender that is kept waiting gives up what is late
    assert shapers(fabric) == before
