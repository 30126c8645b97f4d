"""Pairs that stream and are probed during a fault, on fabrics of all kinds and policies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.failover.detours import Broken, usable
from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.faults import Fault
from railyard.failure.pairs import (
    PROBES,
    SHARED_PROBES,
    AffectedPairs,
    PairSelection,
    affected_pairs,
    broken_by,
    monitored_pairs,
    select_script_pairs,
)
from railyard.failure.scenario.random_faults import RandomFaults
from railyard.topologies.addresses import Gpu, Pair, gpu_of_name
from railyard.topologies.plan import Plan
from railyard.topologies.spec import parse_fabric
from tests.unit.path_choices import POLICIES, chosen_path, own_path


@st.composite
def situations(draw: st.DrawFn) -> tuple[Plan, Fault]:
    """A fabric and a fault that can happen on it."""
    kind = draw(st.sampled_from(sorted(POLICIES)))
    keys: dict[str, Any] = {"domains": draw(st.integers(2, 5)), "rails": draw(st.integers(2, 5))}
    plan = nominal_plan(parse_fabric({"kind": kind, "policy": draw(st.sampled_from(POLICIES[kind])), **keys}))
    fault = draw(st.sampled_from(["link-down", "rail-switch-crash", "gpu-crash"]))
    switches = [switch.name for switch in plan.switches if switch.role != "spine"]
    gpus = [gpu.name for gpu in plan.gpus]
    target = draw(st.sampled_from(switches if fault == "rail-switch-crash" else gpus))
    return plan, Fault(fault, target)


def crosses(plan: Plan, pair: Pair, broken: Broken) -> bool:
    return not usable(own_path(plan.spec.chosen_policy, *pair), *pair, broken, plan.spec.kind)


@given(situation=situations())
def test_selected_pairs_of_any_fault(situation: tuple[Plan, Fault]) -> None:
    plan, fault = situation
    broken = broken_by(fault.impact(plan), plan)
    selection = monitored_pairs(fault, plan)
    dead = {gpu_of_name(fault.target)} if fault.kind == "gpu-crash" else set()
    # probes and the affected streams cross the fault, and no other stream does
    assert all(crosses(plan, pair, broken) for pair in selection.probes)
    assert selection.affected == {pair for pair in selection.streams if crosses(plan, pair, broken)}
    assert set(selection.probes) <= set(selection.streams)
    # no pair is selected twice, or with a dead GPU
    for src, dst in selection.streams:
        assert not {src, dst} & dead
        assert src.domain != dst.domain
    assert len(set(selection.streams)) == len(selection.streams)
    assert len(set(selection.probes)) == len(selection.probes) <= PROBES
    # each living GPU sends to the next domain, by turns on its rail and off it
    for gpu in set(plan.gpus) - dead:
        rank = (gpu.rank + gpu.domain % 2) % plan.spec.rails
        dst = Gpu((gpu.domain + 1) % plan.spec.domains, rank)
        assert dst in dead or (gpu, dst) in selection.streams
    # with rerouting on, not to recover is then a fault of ours, and not of the choice of pairs
    for src, dst in selection.affected:
        path = chosen_path(plan.spec.chosen_policy, src, dst, broken, plan.spec.rails, plan.spec.kind)
        assert (path is None) == (fault.target == "switch0")


def on_4x4(kind: str, fault: str, target: str, **keys: Any) -> PairSelection:
    plan = nominal_plan(parse_fabric({"kind": kind, **keys}))
    return monitored_pairs(Fault(fault, target), plan)


def test_two_probes_are_at_the_source_and_two_at_the_far_side() -> None:
    selection = on_4x4("rail-only", "link-down", "d0g1")
    assert [src.rank == dst.rank for src, dst in selection.probes] == [True, False, True, False]
    assert [pair in selection.at_source for pair in selection.probes] == [True, True, False, False]
    assert [src.domain == 0 for src, _ in selection.probes] == [True, True, False, False]
    assert all(Gpu(0, 1) in pair for pair in selection.probes if pair[0].rank == pair[1].rank)


def test_one_of_three_probes_of_one_side_stays_on_its_rail() -> None:
    selection = on_4x4("rail-only", "rail-switch-crash", "rail1")
    assert [src.rank == dst.rank for src, dst in selection.probes] == [True, False, False]
    assert selection.at_source == frozenset()


def impacts(*faults: tuple[str, str], side: int = 4) -> tuple[Plan, list[AffectedPairs]]:
    plan = nominal_plan(parse_fabric({"kind": "rail-only", "domains": side, "rails": side}))
    specs = (Fault(kind, target) for kind, target in faults)
    return plan, [affected_pairs(spec, plan) for spec in specs]


def test_two_faults_have_their_own_probes_and_streams_in_common() -> None:
    plan, both = impacts(("link-down", "d0g1"), ("gpu-crash", "d2g3"))
    first, second = select_script_pairs(plan, both)
    assert first.streams == second.streams
    assert {gpu for pair in first.streams for gpu in pair} == set(plan.gpus), "the dead stream too"
    assert len(first.probes) >= 4
    assert len(second.probes) >= 3
    assert all(Gpu(2, 3) not in pair for pair in second.affected)


def test_many_faults_share_few_probes_and_most_are_hit() -> None:
    everything = [("link-down", f"d{d}g{g}") for d in range(4) for g in range(4)]
    everything += [("rail-switch-crash", f"rail{g}") for g in range(4)]
    plan, each = impacts(*everything)
    selections = select_script_pairs(plan, each)
    assert len({pair for selection in selections for pair in selection.probes}) == SHARED_PROBES
    # four pairs have two links each, and use all rails
    assert sum(bool(selection.probes) for selection in selections) == 4 * 2 + 4


@pytest.mark.parametrize(("domains", "rails"), [(128, 8), (4, 256)])
def test_a_large_fabric_has_probes_for_each_fault(domains: int, rails: int) -> None:
    plan = nominal_plan(parse_fabric({"kind": "rail-only", "domains": domains, "rails": rails}))
    last = f"d{domains - 1}g{rails - 1}"
    for kind, target, number in (
        ("link-down", last, 4),
        ("gpu-crash", last, 3),
        ("hb-port-down", "d1g0", 3),
        ("server-crash", "hb1", 0),
        ("rail-switch-crash", f"rail{rails // 2}", 3),
    ):
        assert len(monitored_pairs(Fault(kind, target), plan).probes) >= number, kind


def test_random_faults_on_a_large_fabric_share_probes() -> None:
    plan = nominal_plan(parse_fabric({"kind": "rail-only", "domains": 24, "rails": 8}))
    drawn = RandomFaults(count=40).script("random", plan, 1).faults
    selections = select_script_pairs(plan, [affected_pairs(timed.fault, plan) for timed in drawn])
    probed = {pair for selection in selections for pair in selection.probes}
    assert len(probed) == SHARED_PROBES
    assert all(any(pair in selection.probes for selection in selections) for pair in probed)


def test_crashed_gpu_affects_no_other_pair_on_spines() -> None:
    selection = on_4x4("rail-optimized", "gpu-crash", "d1g2")
    assert (selection.affected, selection.probes) == (frozenset(), ())
    assert on_4x4("rail-optimized", "gpu-crash", "d1g2", policy="pxn").affected
