"""Background load, seen by the counters of both ends of every cable.

4 domains of 4 GPUs, rails of 20 Mbit/s, in one test with two spines above them:

    d0g0 ── rail0 ── d1g0, d2g0, d3g0        d0g0 ── hb0 ── d0g1, d0g2, d0g3        and so on
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import psutil
import pytest

from tests.emulation.fabrics import Fabric, build, eventually
from topologies import namespaces
from topologies.addresses import Gpu
from topologies.counters import count
from topologies.patience import patient
from topologies.plan import End, Link
from topologies.portstats import PortReader
from topologies.shaping import payload_fraction
from workloads.background.flows import BackgroundFlow
from workloads.background.run import Background, background
from workloads.background.spec import BackgroundSpec

pytestmark = pytest.mark.capsule
RATES: dict[str, Any] = {"rail_rate": "20Mbit", "hb_rate": "60Mbit"}
SETTLE_S = 0.3
LOOK_S = 2.0
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


def assert_loads(shares: Shares, expected: Callable[[str], float]) -> None:
    """Every cable carries what is expected of it, both ways, within 2 percent of its rate."""
    wrong = {name: seen for name, seen in shares.items() if any(abs(s - expected(name)) > 0.02 for s in seen)}
    assert not wrong


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
        visited = fabric.trace(src, dst)
        assert visited
        assert visited[0] == via


def receives(fabric: Fabric, src: Gpu, dst: Gpu, seconds: int, streams: int = 1) -> tuple[float, int]:
    """(bit/s of payload, retransmissions) of TCP streams with windows as in a replay."""
    with namespaces.inside(dst.name):
        server = subprocess.Popen(["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE)
        assert server.stdout
        server.stdout.readline()
    words = ["iperf3", "-J", "-w", "40K", "-O", "1", "-t", str(seconds), "-P", str(streams), "-c", dst.ip]
    told = fabric.in_node(src.name, *words)
    server.communicate()
    end = json.loads(told)["end"]
    return end["sum_received"]["bits_per_second"], end["sum_sent"]["retransmits"]


def test_a_hot_rail_and_a_hot_domain_have_their_load_and_nothing_else_has_any() -> None:
    fabric = build("rail-only", 4, 4, **RATES)
    before = count(fabric.net)
    with background(fabric.net.plan, [spec(rails=[1], load=0.9), spec(domains=[2], load=0.6)]) as load:
        time.sleep(SETTLE_S)
        seen = watch(fabric)
        sent = load.stop()
    assert_loads(seen, lambda name: 0.9 if name.endswith("g1 rail0") else 0.6 if re.match("d2g. hb0", name) else 0.0)
    assert [one.flow for one in sent] == list(load.flows)
    assert min(one.share for one in sent) > 0.99
    assert count(fabric.net).since(before).drops == 0
    assert sum(sum(shares) for shares in watch(fabric, 0.3).values()) == 0  # and nothing when it has ended


def test_uplinks_are_loaded_evenly() -> None:
    fabric = build("rail-optimized", 4, 4, oversubscription=2.0, **RATES)
    with background(fabric.net.plan, [spec(spine=True, load=0.8)]) as load:
        time.sleep(SETTLE_S)
        seen = watch(fabric, 4.0)
        assert min(one.share for one in load.stop()) > 0.98
    uplinks = {name: shares for name, shares in seen.items() if "spine" in name}
    others = {name: shares for name, shares in seen.items() if "spine" not in name}
    assert_loads(others, lambda name: 0.4 if name.endswith("rail0") else 0.0)
    # frames fall on spines at random: some 1100 of them on two
    assert all(abs(share - 0.8) < 0.08 for shares in uplinks.values() for share in shares), uplinks


@pytest.mark.parametrize(
    ("kind", "policy", "loads"),
    [
        ("rail-only", "dr", {"rails": [0], "domains": [1]}),
        ("rail-optimized", "spine", {"spine": True}),
        ("rail-optimized", "pxn", {"spine": True}),
    ],
)
def test_no_route_moves_it(kind: str, policy: str, loads: dict[str, Any]) -> None:
    fabric = build(kind, 3, 3, policy=policy, **RATES)
    with background(fabric.net.plan, [spec(load=0.5, **loads)]) as load:
        time.sleep(SETTLE_S)
        before = watch(fabric, 1.0)
        misroute(fabric, load.flows)
        after = watch(fabric, 1.0)
    assert sum(out for out, _ in before.values()) > 1
    off_spines = [name for name in before if "spine" not in name]
    assert_loads({name: after[name] for name in off_spines}, lambda name: before[name][0])


def test_a_square_wave_is_off_when_it_is_off() -> None:
    fabric = build("rail-only", 2, 2, **RATES)
    port = fabric.net.plan.rail_link(Gpu(1, 0)).a
    wave = spec(rails=[0], load=0.9, first="200ms", lasts="300ms", every="600ms")
    with background(fabric.net.plan, [wave]) as load, closing(PortReader([port.node])) as reader:
        last, moments = 0, []
        while (now_s := (time.monotonic_ns() - load.start_ns) / 1e9) < 1.8:
            frames = reader.read()[port.node][port.interface].traffic[2]
            if frames > last:
                moments.append(now_s)
            last = frames
            time.sleep(0.0005)
        sent = load.stop()
    since = [(moment - 0.2) % 0.6 for moment in moments if moment > 0.2]
    frame_s = 9014 * 8 / 18e6
    assert max(since) < 0.3 + 2 * frame_s + 0.005
    starts = [min(m for m in moments if m > start) - start for start in (0.2, 0.8, 1.4)]
    assert max(starts) < 2 * frame_s + 0.005
    assert all(one.asked == pytest.approx(0.9 * 18e6 / 8, rel=0.02) and one.share > 0.99 for one in sent)


def test_a_transfer_over_a_hot_rail_gets_what_is_left() -> None:
    fabric = build("rail-only", 2, 2, **RATES)
    before = count(fabric.net)
    with patient(fabric.net.gpu_names), background(fabric.net.plan, [spec(rails=[0], load=0.9)]) as load:
        time.sleep(SETTLE_S)
        bps, retransmits = receives(fabric, Gpu(0, 0), Gpu(1, 0), 5)
        sent = load.stop()
    assert 0.05 < bps / (fabric.net.plan.rail_bps * payload_fraction(9000)) < 0.2
    assert min(one.share for one in sent) > 0.95
    after = count(fabric.net).since(before)
    assert (after.drops, after.retransmits, retransmits) == (0, 0, 0)


def test_it_yields_to_no_crowd() -> None:
    """Eight streams from d0g1, which d0g0 carries over its rail (dr): they would wait in d0g0's queue with the load."""
    fabric = build("rail-only", 2, 2, **RATES)
    before = count(fabric.net)
    with patient(fabric.net.gpu_names), background(fabric.net.plan, [spec(rails=[0], load=0.9)]) as load:
        receives(fabric, Gpu(0, 1), Gpu(1, 0), 6, streams=8)
        assert min(one.share for one in load.stop()) > 0.95
    assert count(fabric.net).since(before).drops == 0


def test_it_ends_with_its_parent() -> None:
    fabric = build("rail-only", 2, 2, **RATES)
    telling, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        load = Background(fabric.net.plan, [spec(rails=[0], load=0.5)])
        load.go()
        os.write(told, load.pid.to_bytes(4, "little"))
        time.sleep(60)
        os._exit(0)
    sender = psutil.Process(int.from_bytes(os.read(telling, 4), "little"))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    eventually(lambda: not sender.is_running() or sender.status() == psutil.STATUS_ZOMBIE)
