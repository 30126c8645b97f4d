"""Policy `isolated`: GPU pairs on different rails and domains have no path, whatever else is derived from a policy."""

from itertools import permutations
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.failover.detours import detours
from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.faults import Fault, Impact, fault_kinds
from railyard.failure.oracle.reachability import Survivors
from railyard.failure.pairs import affected_pairs, broken_by, monitored_pairs
from railyard.results.theory.bottleneck import bottleneck_s
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Fabric, ForwardingPolicy, Path, path_of, rule_problem
from railyard.topologies.plan import Plan
from railyard.topologies.policies.isolated import Isolated
from railyard.topologies.spec import parse_fabric
from railyard.workloads.collectives.algorithm import Sizes
from railyard.workloads.matrix.traffic_matrix import ways, without_path
from railyard.workloads.schedule import Rates
from tests.unit.broken_fabrics import Truth, as_reported, single_faults
from tests.unit.fake_kernel import FakeKernel

SIZES = ((2, 2), (2, 4), (3, 3))


def isolated(domains: int, rails: int, kind: str = "rail-only", **keys: int) -> Plan:
    return nominal_plan(parse_fabric({"kind": kind, "policy": "isolated", "domains": domains, "rails": rails, **keys}))


def is_joined(src: Gpu, dst: Gpu) -> bool:
    return src.domain == dst.domain or src.rank == dst.rank


@pytest.mark.parametrize("kind", ["rail-only", "dual-plane"])
@pytest.mark.parametrize("size", SIZES)
def test_route_tables_join_domains_and_rails_alone(size: tuple[int, int], kind: str) -> None:
    plan = isolated(*size, kind)
    kernel = FakeKernel(plan, lambda a, b: a.rank == b.rank, backups=True)
    for src, dst in permutations(plan.gpus, 2):
        hops = kernel.walk(src, dst)
        assert (hops is not None) == is_joined(src, dst)
        assert hops is None or len(hops) == 1


def test_gpus_of_one_rail_are_joined_whatever_their_number() -> None:
    plan = isolated(2, 4, gpus_per_nic=2)
    rail = plan.spec.rail_of_rank
    kernel = FakeKernel(plan, lambda a, b: rail[a.rank] == rail[b.rank], backups=True)
    joined = {(a, b) for a, b in permutations(plan.gpus, 2) if a.domain == b.domain or rail[a.rank] == rail[b.rank]}
    assert Survivors(plan, Impact()).reachable == joined
    assert {pair for pair in permutations(plan.gpus, 2) if kernel.walk(*pair)} == joined


@pytest.mark.parametrize("size", SIZES)
def test_no_detour_joins_gpus_that_a_fault_cut_off(size: tuple[int, int]) -> None:
    plan = isolated(*size)
    for fault in single_faults(plan):
        assert detours(plan, as_reported(plan, fault)) == {}
        truth = Truth(plan, fault)
        dark = frozenset(gpu for gpu in plan.gpus if any(gpu.name in cable for cable in fault.cables))
        kernel = FakeKernel(plan, truth.carries, dark, backups=True)
        dead = Impact(nodes=fault.switches, cables=fault.cables)
        reachable = Survivors(plan, dead).reachable
        for src, dst in permutations(plan.gpus, 2):
            assert (kernel.walk(src, dst) is not None) == ((src, dst) in reachable)


@given(size=st.tuples(st.integers(2, 4), st.integers(2, 4)), kind=st.sampled_from(["rail-only", "dual-plane"]))
def test_oracle_expects_paths_in_domains_and_rails(size: tuple[int, int], kind: str) -> None:
    plan = isolated(*size, kind)
    survivors = Survivors(plan, Impact())
    expected = {pair for pair in permutations(plan.gpus, 2) if is_joined(*pair)}
    assert survivors.reachable == survivors.connected == expected
    assert survivors.max_bps(Gpu(0, 0), Gpu(1, 1)) == 0


@given(data=st.data(), kind=st.sampled_from(["rail-only", "dual-plane"]))
def test_pairs_without_a_path_are_no_streams_of_faults(data: st.DataObject, kind: str) -> None:
    plan = isolated(3, 3, kind)
    faults = []
    for name in fault_kinds():
        faults += [Fault(name, target) for target in fault_targets(name, plan)]
    fault = data.draw(st.sampled_from(faults))
    selection = monitored_pairs(fault, plan)
    assert selection.streams
    assert all(is_joined(*pair) for pair in selection.streams)
    if not fault.definition.is_control_plane:
        assert not affected_pairs(fault, plan).crosses(Gpu(0, 0), Gpu(1, 1))
        for routes in detours(plan, broken_by(fault.impact(plan), plan)).values():
            assert all(hop.device != "hb0" for route in routes.values() for hop in route.hops)


def fault_targets(name: str, plan: Plan) -> list[str]:
    return list(Fault(name, "").definition.targets(plan))


def test_unreachable_pairs_have_no_share_and_no_time() -> None:
    fabric = isolated(2, 2).spec
    src = np.array([0, 0, 0, 1])
    dst = np.array([1, 2, 3, 2])
    routes = ways(src, dst, 2, fabric)
    assert without_path(routes).tolist() == [False, False, True, True]
    rates = Rates(8e6, 1e6)
    assert bottleneck_s([Sizes(src, dst, np.ones(4))], 2, 2, rates, fabric) == inf
    assert bottleneck_s([Sizes(src[:2], dst[:2], np.array([8e6, 1e6]))], 2, 2, rates, fabric) == 1.0


class Forwards(Isolated):
    """Takes a path that no GPU forwards on."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:  # type: ignore[override]
        return path_of("dr", dst.rank)


class Nowhere(ForwardingPolicy):
    """Leaves a pair without a path although GPUs forward."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> tuple[()]:
        return ()


def test_only_a_policy_without_forwarding_may_give_no_path() -> None:
    pair = (Gpu(0, 0), Gpu(1, 1))
    fabric = Fabric("rail-only", 2, 2)
    assert rule_problem(Isolated(), *pair, fabric) == ""
    assert "forwards_in_domains = False" in rule_problem(Nowhere(), *pair, fabric)
    assert rule_problem(Forwards(), *pair, fabric).endswith("allowed are spine")
