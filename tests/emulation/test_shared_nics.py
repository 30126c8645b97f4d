"""GPUs that share a NIC on packets: half of its link each, all of it alone; routes, and a cut of the NIC."""

import json
from collections.abc import Sequence
from contextlib import closing

import pytest

from railyard.experiments.commands.trace import assemble_path
from railyard.experiments.live.paths import Paths
from railyard.experiments.live.sampler import Sampler
from railyard.failure.faults import Fault
from railyard.topologies.addresses import Gpu
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.measure.capture import Capture
from tests.emulation.fabrics import Fabric, at_best, build, inject, repair

RAIL_BPS = 40_000_000
Pairs = Sequence[tuple[Gpu, Gpu]]


def shared_fabric(domains: int = 2) -> Fabric:
    """Return domains of four GPUs with two NICs each, as servers of type p4d have eight GPUs with four."""
    return build("rail-only", domains, 4, gpus_per_nic=2, rail_rate="40Mbit", hb_rate="240Mbit")


def tcp_bps(fabric: Fabric, pairs: Pairs) -> list[float]:
    """Return the payload rates of flows at the same time, bit/s, once the first second is over."""
    servers = [fabric.net.get(dst.name).popen("iperf3 -s -1 --forceflush") for _, dst in pairs]
    for server in servers:
        server.stdout.readline()
    clients = [fabric.net.get(src.name).popen(f"iperf3 -J -O 1 -t 1 -w 200K -l 8K -c {dst.ip}") for src, dst in pairs]
    reports = [json.loads(client.communicate()[0]) for client in clients]
    for server in servers:
        server.wait()
    return [float(report["end"]["sum_received"]["bits_per_second"]) for report in reports]


@pytest.mark.sandbox
@pytest.mark.quiet
@pytest.mark.long
def test_gpus_of_a_nic_share_its_link_both_ways() -> None:
    fabric = shared_fabric(3)
    whole = RAIL_BPS * payload_fraction(9000)
    out = [(Gpu(0, 0), Gpu(1, 0)), (Gpu(0, 1), Gpu(2, 1))]
    into = [(Gpu(1, 0), Gpu(0, 0)), (Gpu(2, 1), Gpu(0, 1))]
    for both in (out, into):
        at_best(lambda both=both: tcp_bps(fabric, both[:1]), lambda rates: rates == [pytest.approx(whole, rel=0.03)])  # type: ignore[misc]
        half = pytest.approx(whole / 2, rel=0.06)
        at_best(lambda both=both: tcp_bps(fabric, both), lambda rates, half=half: rates == [half, half])  # type: ignore[misc]


@pytest.mark.sandbox
def test_pairs_take_the_rail_of_their_nics() -> None:
    fabric = shared_fabric()
    assert fabric.all_arrive()
    assert fabric.trace(Gpu(0, 0), Gpu(1, 0)) == [Gpu(1, 0)]
    assert fabric.trace(Gpu(0, 0), Gpu(1, 1)) == [Gpu(1, 1)], "another rank, but the same rail"
    assert fabric.trace(Gpu(0, 0), Gpu(1, 3)) == [Gpu(0, 3), Gpu(1, 3)]
    assert fabric.trace(Gpu(0, 0), Gpu(0, 1)) == [Gpu(0, 1)]


@pytest.mark.sandbox
def test_trace_and_live_page_know_the_nics() -> None:
    fabric = shared_fabric()
    plan = fabric.net.plan
    nics = plan.spec.rail_of_rank
    with Capture(plan) as capture:
        probes = {dst: capture.probe(Gpu(0, 0), dst, 1)[0] for dst in (Gpu(1, 1), Gpu(1, 3))}
    traced = {dst: assemble_path(Gpu(0, 0), dst, probe.observations, nics) for dst, probe in probes.items()}
    assert [path.name for path in traced.values()] == ["r by rail 0", "dr by rail 1"]
    assert str(traced[Gpu(1, 1)]) == "d0g0 -rail0-> d0n0 -> rail0 -> d1n0 -> d1g1"
    _, described = Paths(plan).read((Gpu(0, 0), Gpu(1, 1)))
    path = described["d0g0 d1g1"]
    assert path["policy"] == "r by rail 0"
    crossed = [(plan.links[number].a.node, plan.links[number].b.node) for number in path["links"]]
    assert crossed == [("d0g0", "d0n0"), ("d0n0", "rail0"), ("d1n0", "rail0"), ("d1g1", "d1n0")]
    with closing(Sampler(plan)) as sampler:
        assert all(sample.up for sample in sampler.sample()[1])


@pytest.mark.sandbox
def test_a_cut_nic_link_hits_all_its_gpus() -> None:
    fabric = shared_fabric()
    fault = Fault("link-down", "d0n0")
    intact = fabric.routes()
    inject(fabric.net, fault)
    for rank in (0, 1):
        assert "NO-CARRIER" in fabric.in_node(f"d0g{rank}", "ip", "link", "show", "rail0")
    fabric.await_event("rerouted")
    assert ("port-down", {"switch": "rail0", "port": "d0n0"}) in fabric.events
    assert fabric.all_arrive()
    visited = fabric.trace(Gpu(1, 0), Gpu(0, 1)) or []
    assert {Gpu(0, 2), Gpu(0, 3)} & set(visited), "it comes in by the other NIC"
    repair(fabric.net, fault)
    fabric.await_routes(intact, fabric.whats)
