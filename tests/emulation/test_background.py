"""Background load, seen by the counters of both ends of every cable.

4 domains of 4 GPUs, rails of 20 Mbit/s, in one test with two spines above them:

    d0g0 ── rail0 ── d1g0, d2g0, d3g0        d0g0 ── hb0 ── d0g1, d0g2, d0g3        and so on
"""

import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from typing import Any

import psutil
import pytest

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import relaxed_tcp_timers
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.fabric_kinds import End, Link
from railyard.topologies.measure.counters import PortReader, count
from railyard.workloads.background.flows import Background, BackgroundFlow
from railyard.workloads.background.spec import BackgroundSpec
from tests.emulation.fabrics import Fabric, at_best, build, eventually

pytestmark = pytest.mark.sandbox
RATES: dict[str, Any] = {"rail_rate": "20Mbit", "hb_rate": "60Mbit"}
SETTLE_S = 0.3
LOOK_S = 1.0
# What couldn't be sent for 50 ms is given up, so a machine that keeps the sender waiting takes that from its share.
MOST = 0.8
REPEATED = 10  # segments that TCP may repeat when acknowledgements wait for a busy machine: nothing was lost then
Shares = dict[str, tuple[float, float]]


def spec(**keys: Any) -> BackgroundSpec:
    return BackgroundSpec.model_validate(keys)


def name_of(link: Link) -> str:
    return f"{link.a.node} {link.a.interface}"


def watch(fabric: Fabric, seconds: float = LOOK_S) -> Shares:
    """By cable, the share of its rate that it carried for a while: (a to b, b to a), counted where it came out."""
    plan = fabric.net.plan
    with closing(PortReader(fabric.net.node_names)) as reader:
        begun, before = time.monotonic(), reader.read()
        time.sleep(seconds)
        took, after = time.monotonic() - begun, reader.read()

    def share(link: Link, end: End) -> float:
        old, new = (read[end.node][end.interface].traffic[0] for read in (before, after))
        return (new - old) * 8 / took / link.rate_bps

    return {name_of(link): (share(link, link.b), share(link, link.a)) for link in plan.links}


def wrong(shares: Shares, expected: Callable[[str], float], within: Callable[[str], float]) -> Shares:
    """The cables that don't carry what is expected of them, both ways, within so much of their rate."""
    return {name: seen for name, seen in shares.items() if any(abs(s - expected(name)) > within(name) for s in seen)}


def assert_loads(
    fabric: Fabric,
    expected: Callable[[str], float],
    seconds: float = LOOK_S,
    within: Callable[[str], float] = lambda name: 0.02,
) -> None:
    """In one look of some, every cable carries what is expected of it."""
    at_best(lambda: wrong(watch(fabric, seconds), expected, within), lambda found: not found)


def off_spines(name: str) -> float:
    """Frames fall on spines at random: any of them may carry anything."""
    return 1.0 if "spine" in name else 0.02


def steady(fabric: Fabric) -> Shares:
    """Return what cables carry, when two looks agree on it."""
    looks = [watch(fabric)]

    def again() -> Shares:
        looks.append(watch(fabric))
        return wrong(looks[-1], lambda name: looks[-2][name][0], off_spines)

    at_best(again, lambda found: not found)
    return looks[-1]


def misroute(fabric: Fabric, flows: Iterable[BackgroundFlow]) -> None:
    """Steer each flow's pair away by host routes: from the rail over hb0, from spines to rd, from hb0 over the rail."""
    rails, domains = fabric.net.plan.spec.rails, fabric.net.plan.spec.domains
    for src, dst in {(flow.src, flow.dst) for flow in flows}:
        if src.rank == dst.rank:
            device, via = "hb0", Gpu(src.domain, (src.rank + 1) % rails)
        else:
            device, via = "rail0", Gpu((src.domain + 1) % domains, src.rank)
        route = ["ip", "route", "add", f"{dst.ip}/32", "via", via.ip, "dev", device, "onlink", "metric", "10"]
        fabric.in_node(src.name, *route)
        visited = at_best(partial(fabric.trace, src, dst), bool)  # beside a load, a packet may be late
        assert visited
        assert visited[0] == via


def receives(fabric: Fabric, src: Gpu, dst: Gpu, seconds: int, streams: int = 1) -> tuple[float, int]:
    """(bit/s of payload, retransmissions) of TCP streams with windows as in a replay."""
    with namespaces.inside(dst.name):
        server = subprocess.Popen(["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE)
        assert server.stdout
        server.stdout.readline()
    words = ["iperf3", "-J", "-w", "40K", "-O", "1", "-t", str(seconds), "-P", str(streams), "-c", dst.ip]
    reported = fabric.in_node(src.name, *words)
    server.communicate()
    end = json.loads(reported)["end"]
    return end["sum_received"]["bits_per_second"], end["sum_sent"]["retransmits"]


@pytest.mark.quiet
def test_background_loads_only_the_hot_rail_or_the_hot_domain() -> None:
    fabric = build("rail-only", 4, 4, **RATES)
    before = count(fabric.net)
    with Background(fabric.net.plan, [spec(rails=[1], load=0.9), spec(domains=[2], load=0.6)]) as load:
        time.sleep(SETTLE_S)
        assert_loads(
            fabric, lambda name: 0.9 if name.endswith("g1 rail0") else 0.6 if re.match("d2g. hb0", name) else 0.0
        )
        sent = load.stop()
    assert [one.flow for one in sent] == list(load.flows)
    assert min(one.share for one in sent) > MOST
    assert (count(fabric.net) - before).drops == 0
    # and nothing when it has ended, and what was under way has arrived
    eventually(lambda: sum(sum(shares) for shares in watch(fabric, 0.3).values()) == 0)


@pytest.mark.quiet
def test_uplinks_are_loaded_evenly() -> None:
    fabric = build("rail-optimized", 4, 4, oversubscription=2.0, **RATES)
    with Background(fabric.net.plan, [spec(spine=True, load=0.8)]) as load:
        time.sleep(SETTLE_S)
        assert any("spine" in name_of(link) for link in fabric.net.plan.links)
        assert_loads(
            fabric,
            lambda name: 0.8 if "spine" in name else 0.4 if name.endswith("rail0") else 0.0,
            4.0,
            lambda name: 0.08 if "spine" in name else 0.02,  # frames fall on spines at random: some 1100 of them on two
        )
        assert min(one.share for one in load.stop()) > MOST


@pytest.mark.parametrize(
    ("kind", "policy", "loads"),
    [
        ("rail-only", "dr", {"rails": [0], "domains": [1]}),
        ("rail-optimized", "spine", {"spine": True}),
        ("rail-optimized", "pxn", {"spine": True}),
    ],
)
@pytest.mark.quiet
def test_no_route_change_moves_the_background(kind: str, policy: str, loads: dict[str, Any]) -> None:
    fabric = build(kind, 3, 3, policy=policy, **RATES)
    with Background(fabric.net.plan, [spec(load=0.5, **loads)]) as load:
        time.sleep(SETTLE_S)
        before = steady(fabric)
        assert sum(out for out, _ in before.values()) > 1
        misroute(fabric, load.flows)
        assert_loads(fabric, lambda name: before[name][0], within=off_spines)


@pytest.mark.quiet
def test_square_wave_sends_nothing_while_off() -> None:
    fabric = build("rail-only", 2, 2, **RATES)
    port = fabric.net.plan.rail_link(Gpu(1, 0)).a
    wave = spec(rails=[0], load=0.9, start="200ms", duration="300ms", period="600ms")
    with Background(fabric.net.plan, [wave]) as load, closing(PortReader([port.node])) as reader:

        def now_s() -> float:
            return (time.monotonic_ns() - load.start_ns) / 1e9

        def on_s(at_s: float) -> float:
            waves, part = divmod(at_s - 0.2, 0.6)
            return 0.3 * waves + min(0.3, part)

        def seen() -> tuple[float, float]:
            """Return when the next wave's first and last frame come, from its start on."""
            begin = 0.2 + 0.6 * math.ceil((now_s() - 0.2) / 0.6)
            moments: list[tuple[float, int]] = []
            while (at := now_s()) < begin + 0.55:
                frames = reader.read()[port.node][port.interface].traffic[2]
                if not moments or frames > moments[-1][1]:
                    moments.append((at - begin, frames))
                time.sleep(0.0005)
            arrived = [moment for moment, _ in moments[1:]]
            return (arrived[0], arrived[-1]) if arrived else (math.inf, math.inf)

        late = 2 * 9014 * 8 / 18e6 + 0.005
        for _ in range(3):
            at_best(seen, lambda ends: 0 <= ends[0] < late and 0.3 - late < ends[1] < 0.3 + late, tries=10)
        least = on_s(now_s())
        sent = load.stop()
        most = on_s(now_s())
    assert all(0.98 * least < one.requested / (18e6 / 8) < 1.02 * most and one.share > MOST for one in sent)


@pytest.mark.quiet
@pytest.mark.long
def test_background_keeps_its_rate_beside_a_flow_and_many() -> None:
    """A flow gets the remaining rate. The sender of the background ends with its parent."""
    fabric = build("rail-only", 2, 2, **RATES)
    before = count(fabric.net)
    with relaxed_tcp_timers(fabric.net.plan.hosts), Background(fabric.net.plan, [spec(rails=[0], load=0.9)]) as load:
        time.sleep(SETTLE_S)
        bps, retransmits = receives(fabric, Gpu(0, 0), Gpu(1, 0), 3)
        sent = load.stop()
    assert 0.05 < bps / (fabric.net.plan.rail_bps * payload_fraction(9000)) < 0.2
    assert min(one.share for one in sent) > MOST
    after = count(fabric.net) - before
    assert after.drops == 0
    assert max(after.retransmits, retransmits) <= REPEATED

    before = count(fabric.net)
    with relaxed_tcp_timers(fabric.net.plan.hosts), Background(fabric.net.plan, [spec(rails=[0], load=0.9)]) as load:
        # eight streams from d0g1, which d0g0 carries over its rail (dr): they would wait in d0g0's queue with the load
        receives(fabric, Gpu(0, 1), Gpu(1, 0), 3, streams=8)
        assert min(one.share for one in load.stop()) > 0.9
    assert (count(fabric.net) - before).drops == 0

    telling, reported = os.pipe()
    parent = os.fork()
    if parent == 0:
        load = Background(fabric.net.plan, [spec(rails=[0], load=0.5)])
        os.write(reported, load.pid.to_bytes(4, "little"))
        time.sleep(60)
        os._exit(0)
    sender = psutil.Process(int.from_bytes(os.read(telling, 4), "little"))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    eventually(lambda: not sender.is_running() or sender.status() == psutil.STATUS_ZOMBIE)
