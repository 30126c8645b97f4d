"""Random faults: laws of all drawn scripts, and scripts of certain seeds."""

import hashlib
from collections import defaultdict
from itertools import combinations, pairwise, product
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.connectivity.check import duration_s
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.scenario.random_faults import (
    MARGIN_S,
    REPAIRED_IDLE_S,
    REQUIRED_IDLE_S,
    RandomFaults,
)
from railyard.failure.script import SETTLE_S, Timed
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.plan import Plan
from railyard.topologies.spec import parse_fabric

EPS = 1e-6
MS = 1e-3  # what times are rounded to


def nominal(domains: int, rails: int, kind: str = "rail-only") -> Plan:
    return nominal_plan(parse_fabric({"kind": kind, "domains": domains, "rails": rails}))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    kind = draw(st.sampled_from(["rail-only", "rail-optimized", "single-switch"]))
    return nominal(draw(st.integers(2, 4)), draw(st.integers(2, 4)), kind)


def random_faults(count: int, **keys: Any) -> RandomFaults:
    """Random faults with times in seconds, also shorter ones than a file may have."""
    return RandomFaults.model_construct(count=count, **{"duration": (0.3, 2.5)} | keys)


@st.composite
def specs(draw: st.DrawFn) -> RandomFaults:
    group_share = draw(st.sampled_from([0.0, 0.2, 1.0]))
    return random_faults(
        count=draw(st.integers(1, 25)),
        group_share=group_share,
        duration=draw(st.sampled_from([(0.1, 0.2), (0.3, 2.5), (2.0, 6.0)])),
        mean_interval=draw(st.sampled_from([None, 0.05, 0.4, 3.0])),
        max_concurrent=draw(st.integers(2 if group_share else 1, 16)),
    )


def end_s(timed: Timed) -> float:
    return timed.at_s + timed.repair_s


def overlap(one: Timed, other: Timed) -> bool:
    return one.at_s < end_s(other) - EPS and other.at_s < end_s(one) - EPS


@settings(max_examples=50)
@given(plan=plans(), spec=specs(), seed=st.integers(0, 2**32))
def test_laws_of_all_scripts(plan: Plan, spec: RandomFaults, seed: int) -> None:
    script = spec.script("random", plan, seed)
    faults = script.faults
    assert len(faults) == spec.count
    assert repr(script) == repr(spec.script("random", plan, seed))
    assert [timed.at_s for timed in faults] == sorted(timed.at_s for timed in faults)
    for timed in faults:
        definition = FAULTS[timed.fault.kind]
        assert timed.fault.target in definition.targets(plan)
        assert timed.repair_s >= spec.duration[0]
        if spec.mean_interval:
            assert timed.repair_s <= max(spec.duration[1], definition.min_random_s) + 2 * MS
        concurrent = [other for other in faults if other.at_s - EPS <= timed.at_s < end_s(other) - EPS]
        assert len(concurrent) <= spec.max_concurrent
    if spec.mean_interval is None:
        times = sorted({round(at_s, 3) for timed in faults for at_s in (timed.at_s, end_s(timed))})
        # actions leave time for a check, or are simultaneous
        gap_s = SETTLE_S + duration_s(plan) + MARGIN_S - 2 * MS
        assert all(later_s - at_s >= gap_s for at_s, later_s in pairwise(times))
    for timed, other in combinations(faults, 2):
        check_no_fault_hides_another(plan, timed, other)


def check_no_fault_hides_another(plan: Plan, timed: Timed, other: Timed) -> None:
    first = timed.fault.scope(plan)
    second = other.fault.scope(plan)
    if overlap(timed, other):
        assert not first.conflicts_with(second), f"{timed} and {other}"
    apart_s = other.at_s - end_s(timed) + MS
    if first.affected & (second.affected | second.required) and apart_s > 0:
        assert apart_s >= REPAIRED_IDLE_S, "the next fault there is prepared before its injection"
    if first.required & second.affected and apart_s > 0:
        assert apart_s >= REQUIRED_IDLE_S, "the repair takes its time"


def test_groups_have_the_share_asked_for_and_one_place() -> None:
    faults = random_faults(50, group_share=0.4).script("random", nominal(8, 8), 3).faults
    groups: defaultdict[float, list[str]] = defaultdict(list)
    for timed in faults:
        groups[timed.at_s].append(timed.fault.target)
    grouped = [targets for targets in groups.values() if len(targets) > 1]
    assert sum(map(len, grouped)) == 20
    for targets in grouped:
        gpus = list(map(gpu_of_name, targets))
        assert 1 in (len({gpu.domain for gpu in gpus}), len({gpu.rank for gpu in gpus}))


@pytest.mark.parametrize(
    ("kind", "domains", "rails", "expected"),
    [
        ("rail-only", 4, 4, "d12b5240124ca044"),
        ("rail-only", 8, 8, "ef2717364ef63671"),
        ("rail-optimized", 4, 4, "30aa3174d1754efc"),
    ],
)
def test_random_faults_of_a_seed_never_change(kind: str, domains: int, rails: int, expected: str) -> None:
    """Three seeds of the default mix, byte for byte: results that were published can be had again."""
    plan = nominal(domains, rails, kind)
    drawn = [repr(random_faults(50).script("storm", plan, seed)) for seed in (1, 2, 3)]
    assert hashlib.sha256("".join(drawn).encode()).hexdigest()[:16] == expected


def test_random_faults_of_every_option_never_change() -> None:
    """Digest of scripts of several fabrics, mixes, intervals, group shares and limits."""
    mixes = [
        None,
        {"hb-port-down": 2.0, "gpu-crash": 1.0},
        {"rail-switch-reboot": 1.0, "link-slow": 3.0, "hb-port-down": 1.0, "spine-crash": 2.0},
    ]
    digest = hashlib.sha256()
    for kind, domains, rails in (("rail-optimized", 3, 2), ("single-switch", 2, 3), ("dual-plane", 3, 2)):
        plan = nominal(domains, rails, kind)
        for mix, interval, share, most in product(mixes, (None, 0.05, 0.7), (0.0, 0.3, 1.0), (2, 9)):
            keys = {"mix": mix, "group_share": share, "mean_interval": interval, "max_concurrent": most}
            spec = random_faults(17, duration=(0.2, 0.3), **keys)
            digest.update(repr(spec.script("random", plan, 1)).encode())
    assert digest.hexdigest()[:16] == "aae46375e73e54c6"


def test_injections_are_as_far_apart_and_as_many_as_asked() -> None:
    spaced = random_faults(300, group_share=0, duration=(0.2, 0.3), mean_interval=2.0)
    gaps = [b.at_s - a.at_s for a, b in pairwise(spaced.script("random", nominal(4, 4), 5).faults)]
    assert 1.7 < mean(gaps) < 2.3
    assert 1.4 < stdev(gaps) < 2.6, "of a Poisson process it is the mean"
    links = random_faults(
        60, mix={"link-down": 1.0}, group_share=0, duration=(3.0, 5.0), mean_interval=0.1, max_concurrent=12
    )
    crowded = links.script("random", nominal(8, 8), 1).faults
    assert max(sum(other.at_s <= timed.at_s < end_s(other) for other in crowded) for timed in crowded) == 12
    faults = random_faults(50).script("random", nominal(4, 4), 1).faults
    assert sum(overlap(a, b) for a, b in combinations(faults, 2)) >= 20
    assert {timed.fault.kind for timed in faults} >= set(RandomFaults().weights) - {"spine-crash", "rail-switch-reboot"}


def test_reboots_last_long_enough_to_finish() -> None:
    reboots = random_faults(20, mix={"rail-switch-reboot": 1.0}, duration=(0.2, 0.2), mean_interval=0.05)
    faults = reboots.script("random", nominal(4, 4), 1).faults
    assert all(timed.repair_s > dict(timed.fault.parameters)["down"] for timed in faults)


def test_kinds_without_weight_or_target_are_left_out() -> None:
    plan = nominal(4, 4)
    mix = {"gpu-crash": 1.0, "spine-crash": 5.0, "link-down": 0.0}
    script = random_faults(10, mix=mix).script("random", plan, 1)
    assert {timed.fault.kind for timed in script.faults} == {"gpu-crash"}
    with pytest.raises(ValueError, match=r"nothing of the mix .*: spine-crash"):
        random_faults(10, mix={"spine-crash": 1.0}).script("random", plan, 1)


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        (("link-down", "d0g1"), ("gpu-crash", "d0g1"), True),
        (("link-down", "d0g1"), ("server-crash", "hb0"), True),
        (("link-down", "d0g1"), ("rail-switch-hang", "rail1"), True),
        (("gpu-hang", "d0g1"), ("server-crash", "hb0"), True),
        (("link-down", "d0g1"), ("link-gray", "d0g1"), True),
        (("hb-port-down", "d0g1"), ("server-crash", "hb0"), True),
        (("hb-port-down", "d0g1"), ("link-down", "d0g1"), False),
        (("hb-port-down", "d0g1"), ("rail-switch-hang", "rail1"), False),
        (("rail-switch-hang", "rail1"), ("server-crash", "hb0"), False),
        (("link-down", "d0g1"), ("link-down", "d1g1"), False),
    ],
)
def test_faults_conflict_if_one_hides_the_other(one: tuple[str, str], other: tuple[str, str], clash: bool) -> None:
    plan = nominal(4, 4)
    first, second = (Fault(*what).scope(plan) for what in (one, other))
    assert first.conflicts_with(second) == second.conflicts_with(first) == clash
    assert Fault(*one).impact(plan).dead_gpus <= set(plan.gpus)
