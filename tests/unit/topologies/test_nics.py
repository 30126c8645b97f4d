"""NICs that GPUs share: the plan's links, and who reaches whom without any of them, by routes, switches and oracle."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.failover.detours import choose, detours
from railyard.controller.openflow.flows import tables_of
from railyard.failure.faults import Fault, Impact
from railyard.failure.oracle.reachability import Survivors
from railyard.failure.pairs import broken_by
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path
from railyard.topologies.nics import RailOfRank
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.fake_kernel import FakeKernel
from tests.unit.fake_switch import out_ports, ports_of

MAPS: list[RailOfRank] = [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (1, 0, 2)]
KINDS = ("rail-only", "rail-optimized")
RAIL_BPS = 10**8


def plan_of(kind: str, nics: RailOfRank, domains: int = 2) -> Plan:
    data = {"kind": kind, "domains": domains, "rails": len(nics), "nics": list(nics), "hb_rate": "900Mbit"}
    return make_plan(parse_fabric(data), RAIL_BPS)


def test_servers_of_eight_gpus_and_four_nics_have_four_rails() -> None:
    spec = parse_fabric({"kind": "rail-only", "domains": 4, "rails": 8, "gpus_per_nic": 2})
    plan = make_plan(spec, RAIL_BPS)
    assert plan.title == "the rail-only fabric of 4 domains x 8 GPUs on 4 rails"
    assert [switch.name for switch in plan.switches] == ["rail0", "rail1", "rail2", "rail3"]
    rail_links = [link for link in plan.links if link.kind == "rail"]
    assert [link.a.node for link in rail_links] == list(plan.link_names("rail")) == list(plan.nics)
    assert len(rail_links) == 16
    assert plan.gpus_of_nic["d1n3"] == (Gpu(1, 6), Gpu(1, 7))
    assert plan.gpus_at(plan.dpids["rail3"], 2) == (Gpu(1, 6), Gpu(1, 7))
    assert spec.paths(Gpu(0, 0), Gpu(1, 1)) == ((Path("r", 0), 1),)
    assert spec.paths(Gpu(0, 1), Gpu(1, 2)) == ((Path("dr", 2), 1),)


def test_explicit_map_equals_the_number_of_gpus_per_nic() -> None:
    data = {"kind": "rail-only", "domains": 2, "rails": 4}
    by_number = make_plan(parse_fabric({**data, "gpus_per_nic": 2}), RAIL_BPS)
    by_map = plan_of("rail-only", (0, 0, 1, 1))
    assert by_map.spec.rail_of_rank == by_number.spec.rail_of_rank
    assert parse_fabric({**data, "nics": [0, 1, 2, 3]}).rail_of_rank == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nics", MAPS)
def test_all_pairs_are_joined_whichever_nic_is_dead(kind: str, nics: RailOfRank) -> None:
    plan = plan_of(kind, nics)
    for fault in [None, *(Fault("link-down", nic) for nic in plan.nics)]:
        impact = fault.impact(plan) if fault else Impact()
        broken = broken_by(impact, plan)

        def crosses(a: Gpu, b: Gpu, dead: frozenset[Gpu] = broken.links) -> bool:
            is_one_rail = plan.spec.rail_of(a.rank) == plan.spec.rail_of(b.rank)
            return dead.isdisjoint((a, b)) and a.domain != b.domain and (is_one_rail or kind == "rail-optimized")

        extra = {gpu: list(routes.values()) for gpu, routes in detours(plan, broken).items()}
        kernel = FakeKernel(plan, crosses, broken.links, backups=True, extra=extra)
        for src, dst in permutations(plan.gpus, 2):
            assert kernel.walk(src, dst) is not None, f"{src.name} -> {dst.name} without {fault}"
        assert Survivors(plan, impact).reachable == set(permutations(plan.gpus, 2))


@given(kind=st.sampled_from(KINDS), nics=st.sampled_from(MAPS), data=st.data())
def test_chosen_paths_are_reachable_for_the_oracle(kind: str, nics: RailOfRank, data: st.DataObject) -> None:
    """With any NICs cut and GPUs crashed; a crash alone leaves no pair of others without a path."""
    plan = plan_of(kind, nics)
    cut = data.draw(st.frozensets(st.sampled_from(plan.nics), max_size=2))
    crashed = data.draw(st.frozensets(st.sampled_from([gpu.name for gpu in plan.gpus]), max_size=2))
    impact = Impact(nodes=crashed)
    for nic in cut:
        impact |= Fault("link-down", nic).impact(plan)
    reachable = Survivors(plan, impact).reachable
    broken = broken_by(impact, plan)
    for src, dst in permutations([gpu for gpu in plan.gpus if gpu.name not in crashed], 2):
        if src.domain != dst.domain:
            assert bool(choose(plan.spec, src, dst, broken)) <= ((src, dst) in reachable)
    if not cut:
        living = [gpu for gpu in plan.gpus if gpu.name not in crashed]
        assert reachable == set(permutations(living, 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nics", MAPS)
def test_switches_send_the_frames_of_a_nics_gpus_to_its_port(kind: str, nics: RailOfRank) -> None:
    plan = plan_of(kind, nics)
    ports = ports_of(plan)
    for rail in plan.switches_of("rail"):
        tables = tables_of(rail.dpid, ports[rail.dpid], nics=plan.spec.rail_of_rank)
        for gpu in plan.gpus:
            if plan.rail_switch(gpu) == rail:
                assert out_ports(tables, gpu.mac("rail")) == {gpu.domain + 1}
            else:
                assert out_ports(tables, gpu.mac("rail")) == ({2001, 2002} if kind == "rail-optimized" else set())
    for spine in plan.switches_of("spine"):
        tables = tables_of(spine.dpid, ports[spine.dpid], nics=plan.spec.rail_of_rank)
        for gpu in plan.gpus:
            assert out_ports(tables, gpu.mac("rail")) == {plan.spec.rail_of(gpu.rank) + 1}


def test_max_flow_of_a_pair_is_the_rate_of_its_nic() -> None:
    plan = plan_of("rail-only", (0, 0, 0, 0))
    assert Survivors(plan, Impact()).max_bps(Gpu(0, 0), Gpu(1, 1)) == RAIL_BPS
    slow = Fault.of("link-slow", "d1n0", rate=0.3).impact(plan)
    assert Survivors(plan, slow).max_bps(Gpu(0, 0), Gpu(1, 1)) == 0.3 * RAIL_BPS
