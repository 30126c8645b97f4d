"""Performance targets of allreduces over several rails: records that meet each, and records that miss it."""

from dataclasses import replace

import pytest

from railyard.core.records import IntervalId
from railyard.core.units import size_name
from railyard.experiments.measures.allreduce import fabric_targets, tables, targets
from railyard.experiments.measures.allreduce.analysis import FabricMeasurements, by_fabric
from railyard.experiments.measures.allreduce.records import AllreduceResults, Skipped
from railyard.experiments.measures.allreduce.targets import outcomes
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Target
from railyard.results.format import NOTHING
from railyard.results.runs.records import Run, Verdict
from tests.unit.experiments.measures.allreduce.sample_results import (
    KIB,
    MIB,
    PAIR,
    SECONDS,
    SIZES,
    UNLIKE,
    cut_of,
    point_of,
    points,
    run_of,
    sample,
    started,
)
from tests.unit.replaced import replaced


def requirements(found: AllreduceResults) -> list[tuple[str, bool, str]]:
    """Checks of a run with these results, without that of its fidelity."""
    run = run_of(found) if found.fabrics else Run("mine", {}, {}, "now")
    return [(c.name, c.passed, c.detail) for c in Analysis(run).checks if c.name != "the emulation is believable"]


def of(found: AllreduceResults, target: Target) -> list[Outcome]:
    return [outcome for outcome in outcomes(found) if outcome.target == target]


def with_seconds(fabric: str, policy: str, small: float, large: float) -> AllreduceResults:
    changed = {**SECONDS, fabric: {**SECONDS[fabric], policy: (small, large)}}
    return replace(sample(), points=points(changed))


def test_targets_are_met_or_marked_as_not_measured() -> None:
    found = outcomes(sample())
    assert [o.target.quantity for o in found if o.samples and not o.met] == []
    assert [o.target for o in found if not o.samples] == [fabric_targets.PAIR[8]]
    assert all(passed for _, passed, _ in requirements(sample()))


def test_invalid_point_is_in_no_figure_of_speed() -> None:
    """A point that gives a gain which no rails have; a degraded one marks the target."""
    found = with_seconds(UNLIKE.label, "nezha", 1e-9, 1e-9)
    bad = {p.interval for p in found.points if (p.fabric, p.policy) == (UNLIKE.label, "nezha")}

    def gains(verdict: Verdict) -> list[Outcome]:
        of_intervals = dict.fromkeys(bad, verdict)
        return [o for o in outcomes(found, of_intervals) if o.target == fabric_targets.UNLIKE and o.samples]

    assert [o.verdict for o in gains("ok")] == ["ok"]
    assert [o.verdict for o in gains("degraded")] == ["degraded"]
    assert not gains("invalid")


@pytest.mark.parametrize(
    ("fabric", "policy", "small", "large", "missed"),
    [
        (PAIR.label, "nezha", 0.001, 0.17, {fabric_targets.PAIR[4], fabric_targets.OVER_BASELINE["mrib"]}),
        (PAIR.label, "nezha", 0.00104, 0.157, {fabric_targets.SMALL_LATENCY}),
        (PAIR.label, "mrib", 0.00105, 0.158, {fabric_targets.SMALL_LATENCY_OVER_BASELINE["mrib"]}),
        (
            PAIR.label,
            "mptcp",
            0.00105,
            0.150,
            {fabric_targets.SMALL_LATENCY_OVER_BASELINE["mptcp"], fabric_targets.OVER_BASELINE["mptcp"]},
        ),
        (PAIR.label, "slicing", 0.001, 0.150, {fabric_targets.OVER_BASELINE["slicing"]}),
        (PAIR.label, "gloo", 0.0005, 0.28, {fabric_targets.GLOO, fabric_targets.GLOO_PAIR}),
        (UNLIKE.label, "nezha", 0.0001, 0.12, {fabric_targets.SUM_OF_RAILS}),
        (UNLIKE.label, "nezha", 0.0001, 0.13, {fabric_targets.SUM_OF_RAILS, fabric_targets.UNLIKE}),
    ],
)
def test_long_time_misses_its_own_targets_alone(
    fabric: str, policy: str, small: float, large: float, missed: set[Target]
) -> None:
    found = outcomes(with_seconds(fabric, policy, small, large))
    assert {o.target for o in found if o.samples and not o.met} == missed
    assert {o.fabric for o in found if o.samples and not o.met} == {fabric}


def test_single_rail_below_its_bound_is_named() -> None:
    found = sample()
    pair, unlike = (one.label for one in found.fabrics)

    def slowed(policy: str) -> list[bool | None]:
        """Return whether the bar is met on both fabrics, if one policy is slower than it on one of them."""
        slow = [
            replace(p, mean_s=1.04 * p.mean_s) if (p.fabric, p.policy) == (unlike, policy) else p for p in found.points
        ]
        judged = of(replace(found, points=slow), fabric_targets.LINK_BOUND)
        assert [o.fabric for o in judged] == [pair, unlike]
        assert judged[1].worst.of == "single:tcp0"
        return [o.met for o in judged]

    assert slowed("single:tcp0") == [True, False]
    assert slowed("single:sharp1") == [True, True]  # a tree isn't a ring: its bound is another


def test_link_bound_does_not_depend_on_predictions() -> None:
    """2(N-1)/N of the 1,342,176 B that are sent at 5.5e7 bit/s; a rail that a processor holds up has no such bound."""
    (pair, _) = of(sample(), fabric_targets.LINK_BOUND)
    assert pair.value == pytest.approx(1.5 * 8 * 1342176 / 5.5e7 / 0.3)
    guessed = [replace(p, predicted_s=None) for p in sample().points]
    assert of(replace(sample(), points=guessed), fabric_targets.LINK_BOUND) == of(sample(), fabric_targets.LINK_BOUND)
    busy = replace(PAIR, cpu_s_per_byte=(1.2 * 8 / 5.5e7,) * 2)
    idle = replace(UNLIKE, cpu_s_per_byte=(0.9 * 8 / 5.5e7,) * 2)
    assert [o.fabric for o in of(replace(sample(), fabrics=[busy, idle]), fabric_targets.LINK_BOUND)] == [UNLIKE.label]


def test_small_sizes_are_judged_by_typical_times() -> None:
    """And not by their mean, in which one operation that the machine held up weighs as much as all others."""
    small = [p for p in points() if p.size == SIZES[0] and p.fabric == PAIR.label]
    both = [*small, *(replaced(p, size=4 * KIB, workload="allreduce 4KiB") for p in small)]
    held_up = [replace(p, mean_s=1.5 * p.mean_s) if p.policy == "nezha" else p for p in both]
    assert [o.met for o in of(AllreduceResults([PAIR], held_up), fabric_targets.SMALL_LATENCY)] == [True]
    slow = [replace(p, typical_s=1.1 * p.typical_s) if (p.policy, p.size) == ("nezha", 4 * KIB) else p for p in both]
    (outcome,) = of(AllreduceResults([PAIR], slow), fabric_targets.SMALL_LATENCY)
    assert (outcome.met, outcome.worst.of) == (False, "at 4KiB; median of 2 sizes 1.05x")
    assert outcome.value == pytest.approx(1.1)


def test_one_slow_operation_of_a_baseline_does_not_count() -> None:
    small = [p for p in points() if p.size == SIZES[0] and p.fabric == PAIR.label]
    held_up = [replace(p, mean_s=2 * p.mean_s, typical_s=0.00105) if p.policy == "mrib" else p for p in small]
    (outcome,) = of(AllreduceResults([PAIR], held_up), fabric_targets.SMALL_LATENCY_OVER_BASELINE["mrib"])
    assert outcome.value == pytest.approx(1 - 1 / 1.05)
    assert not outcome.met


def test_policies_in_turn_are_compared_start_by_start() -> None:
    """What a start did to both of them is in neither's favour, however unlike starts are."""
    mine, rail = (point_of(PAIR.label, policy, KIB, 1.0) for policy in ("nezha", "single:tcp0"))
    found = [*started(mine, 1.0, 3.0, 1.5), *started(rail, 1.0, 3.3, 1.5 / 1.1)]
    (outcome,) = of(AllreduceResults([PAIR], found), fabric_targets.SMALL_LATENCY)
    assert outcome.value == pytest.approx(1.0)
    alone = [p for p in found if (p.policy, p.repeat) != ("single:tcp0", 1)]
    assert FabricMeasurements(PAIR, tuple(alone)).ratios("nezha", "single:tcp0", KIB) == pytest.approx([1.0, 1.1])


def test_small_latency_shows_the_spread_of_starts() -> None:
    """Of the compared policies alone: the spread of mptcp does not appear beside a single rail or mrib."""
    times = {"nezha": (0.98, 1.0, 1.02), "single:tcp0": (1.0, 1.0, 1.0), "mrib": (1.4, 1.5, 1.7), "mptcp": (1, 2, 3)}
    found = [p for policy, all_s in times.items() for p in started(point_of(PAIR.label, policy, KIB, 1.0), *all_s)]
    found_of = {o.target: o.worst.of for o in outcomes(AllreduceResults([PAIR], found)) if o.samples}
    assert found_of[fabric_targets.SMALL_LATENCY] == "at 1KiB; median of 1 sizes 1.00x; 0.98x to 1.02x in 3 starts"
    saved = found_of[fabric_targets.SMALL_LATENCY_OVER_BASELINE["mrib"]]
    assert saved == "median of 1 sizes; 30.0% to 40.0% in 3 starts"
    once = AllreduceResults([PAIR], [p for p in found if p.repeat == 0])
    assert [o.worst.of for o in of(once, fabric_targets.SMALL_LATENCY)] == ["at 1KiB; median of 1 sizes 0.98x"]


def test_balancer_that_never_converges_misses_its_target() -> None:
    found = sample()
    restless = [replace(p, settled_after=None) if p.split else p for p in found.points]
    assert [o.value for o in of(found, fabric_targets.CONVERGENCE)] == [25, 25]
    assert [o.met for o in of(replace(found, points=restless), fabric_targets.CONVERGENCE)] == [False, False]
    relative_spread = [replace(p, rail_s=(1.0, 0.8)) if p.split else p for p in found.points]
    assert [o.value for o in of(replace(found, points=relative_spread), fabric_targets.RAIL_TIME_SPREAD)] == [
        pytest.approx(0.2)
    ] * 2


def test_size_counts_once_whatever_its_number_of_starts() -> None:
    small, large = (point_of(PAIR.label, "nezha", size, 0.1, shares=(0.5, 0.5)) for size in (512 * KIB, 64 * MIB))
    found = [*started(small, *[0.1] * 3, rail_s=(1.0, 0.9)), replace(large, rail_s=(1.0, 0.7))]
    (level,) = of(AllreduceResults([PAIR], found), fabric_targets.RAIL_TIME_SPREAD)
    assert level.value == pytest.approx(0.2)
    assert level.worst.of == "mean of 2 sizes"


def test_few_split_operations_make_no_split() -> None:
    looked = point_of(PAIR.label, "nezha", 512 * KIB, 0.1, shares=(0.997, 0.003), rail_s=(1.0, 0.001))
    assert [bool(o.samples) for o in of(AllreduceResults([PAIR], [looked]), fabric_targets.RAIL_TIME_SPREAD)] == [False]
    little = AllreduceResults([PAIR], [replace(looked, shares=(0.98, 0.02))])
    assert [o.value for o in of(little, fabric_targets.RAIL_TIME_SPREAD)] == [pytest.approx(0.999)]


def test_one_start_without_convergence_misses_the_target() -> None:
    split = point_of(PAIR.label, "nezha", 64 * MIB, 0.1)
    found = [split, replaced(split, repeat=1, settled_after=101), replaced(split, repeat=2)]
    assert [(o.value, o.met) for o in of(AllreduceResults([PAIR], found), fabric_targets.CONVERGENCE)] == [(101, False)]


def test_link_bound_takes_the_median_of_starts() -> None:
    others = [p for p in points() if (p.fabric, p.policy) != (PAIR.label, "single:tcp0")]
    ring = point_of(PAIR.label, "single:tcp0", 64 * MIB, 0.3)
    found = of(replace(sample(), points=[*others, *started(ring, 0.3, 0.6, 0.301)]), fabric_targets.LINK_BOUND)
    assert found[0].value == pytest.approx(1.5 * 8 * 1342176 / 5.5e7 / 0.301)


def test_one_wrong_element_fails_the_run_and_is_located() -> None:
    found = sample()
    found.points[3] = replace(found.points[3], wrong=1)
    failed = {name: detail for name, passed, detail in requirements(found) if not passed}
    assert list(failed) == [f"{targets.CORRECT_SUMS.quantity}: none"]
    assert f"{found.points[3].policy} on {PAIR.label}" in failed[f"{targets.CORRECT_SUMS.quantity}: none"]


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"wrong": 2}, {targets.CORRECT_DURING_CUT}),
        ({"home_ms": None}, {targets.RAIL_REUSED}),
        ({"home_ms": None, "carried": False}, set()),
        ({"error": "rank 1 is gone"}, {targets.ABORTED_BY_CUT}),
        ({"migrate_ms": 201.0}, {targets.MIGRATION_WORST}),
        ({"migrate_ms": None}, {targets.MIGRATION_WORST}),
        ({"migrate_ms": None, "inside": False}, set()),
    ],
)
def test_one_fault_of_twenty_can_miss_a_target(changed: dict[str, object], missed: set[Target]) -> None:
    found = replace(sample(), cuts=[*(cut_of(n) for n in range(19)), cut_of(19, **changed)])
    assert {o.target for o in outcomes(found) if o.samples and not o.met} == missed
    assert all(passed for _, passed, _ in requirements(found)) == (not {target for target in missed if target.claim})


def test_return_of_an_unused_rail_is_not_judged() -> None:
    idle = replace(sample(), cuts=[cut_of(home_ms=None, carried=False)])
    assert [bool(o.samples) for o in of(idle, targets.RAIL_REUSED)] == [False]
    (row,) = tables.cuts_table(idle.cuts).cells
    assert row[6] == NOTHING
    assert all(passed for _, passed, _ in requirements(idle))


def test_engine_that_hides_its_rails_is_judged_by_sums_alone() -> None:
    """The kernel's MPTCP tells no rank when bytes move to another rail, or back."""
    cut = cut_of(migrate_ms=None, home_ms=None)
    hidden = replace(sample(), cuts=[replace(cut, interval=replace(cut.interval, policy="mptcp"))])
    for target in (targets.MIGRATION, targets.RAIL_REUSED):
        assert [bool(outcome.samples) for outcome in of(hidden, target)] == [False]
    assert [outcome.value for outcome in of(hidden, targets.CORRECT_DURING_CUT)] == [0.0]


def test_median_migration_is_a_target_of_its_own() -> None:
    slow = replace(sample(), cuts=[cut_of(n, migrate_ms=60.0) for n in range(20)])
    assert [o.value for o in of(slow, targets.MIGRATION)] == [60.0]
    assert {o.target for o in outcomes(slow) if o.samples and not o.met} == {targets.MIGRATION}


def test_failed_policy_fails_the_run_a_missing_one_does_not() -> None:
    found = sample()
    found.skipped.append(Skipped(PAIR.label, "gloo", "PyTorch isn't installed", failed=False))
    assert all(passed for _, passed, _ in requirements(found))
    found.skipped.append(Skipped(PAIR.label, "equal", "rank 2 never came", failed=True))
    assert [detail for _, passed, detail in requirements(found) if not passed] == [
        f"equal on {PAIR.label}: rank 2 never came"
    ]


def test_different_loss_fails_the_run_a_slow_step_does_not() -> None:
    found = sample()
    relative_spread = replace(found, ddp_runs=[replace(found.ddp_runs[0], losses_apart=2e-3)])
    assert [(name, detail) for name, passed, detail in requirements(relative_spread) if not passed] == [
        (targets.DDP_LOSS_DIFFERENCE.quantity, f"0.200% 3 steps ({PAIR.label})")
    ]
    slow = replace(found, ddp_runs=[replace(found.ddp_runs[0], step_s=0.3)])
    assert {o.target for o in outcomes(slow) if o.samples and not o.met} == {targets.DDP_SPEEDUP}
    assert all(passed for _, passed, _ in requirements(slow))


def test_empty_results_have_no_checks() -> None:
    assert list(requirements(AllreduceResults())) == []
    assert not any(o.samples for o in outcomes(AllreduceResults()))


def test_gain_is_over_the_better_rail() -> None:
    _, unlike = by_fabric(sample())
    assert unlike.gain("nezha", SIZES[1]) == pytest.approx(0.18 / 0.113)
    assert unlike.of_ideal("nezha", SIZES[1]) == pytest.approx(1 / 0.113 / (1 / 0.3 + 1 / 0.18))
    assert unlike.threshold() == SIZES[0]
    assert unlike.gain("unknown", SIZES[1]) is None


def test_shares_belong_to_the_start_of_median_time() -> None:
    """And no mean of starts that split and such that didn't."""
    point = point_of(PAIR.label, "nezha", 64 * MIB, 0.1)
    slow, fast, middle = started(point, 0.3, 0.1, 0.2, shares=(1.0, 0.0))
    three = FabricMeasurements(PAIR, (slow, replace(fast, shares=(0.5, 0.5)), middle))
    assert three.shares("nezha", 64 * MIB) == (1.0, 0.0)
    assert FabricMeasurements(PAIR, three.points[:2]).shares("nezha", 64 * MIB) == (0.5, 0.5), "the faster one of two"
    alike = started(point, 0.1, 0.1, 0.2)
    assert FabricMeasurements(PAIR, (replace(alike[0], shares=()), *alike[1:])).shares("nezha", 64 * MIB) == (0.4, 0.6)
    assert three.shares("mrib", 64 * MIB) is None


@pytest.mark.parametrize(
    ("splits", "last"),
    [((False, False, True), KIB), ((True, True, False), None), ((True, False), KIB), ((False, True, True), None)],
)
def test_size_is_split_if_most_of_its_starts_split(splits: tuple[bool, ...], last: int | None) -> None:
    point = point_of(PAIR.label, "nezha", KIB, 0.001)
    starts = [replaced(point, repeat=n, shares=(0.5, 0.5) if split else (1.0, 0.0)) for n, split in enumerate(splits)]
    large = point_of(PAIR.label, "nezha", 64 * MIB, 0.1, shares=(0.5, 0.5))
    assert FabricMeasurements(PAIR, (*starts, large)).threshold() == last
    assert FabricMeasurements(PAIR, tuple(starts[:1])).threshold() is None, "split from the first, or never"


@pytest.mark.parametrize(
    ("size", "name"), [(2 * KIB, "2KiB"), (64 * MIB, "64MiB"), (1536, "1.536KB"), (4, "4B"), (3 * KIB // 2 * 2, "3KiB")]
)
def test_sizes_are_named_as_in_the_paper(size: int, name: str) -> None:
    assert size_name(size) == name


def test_largest_size_is_not_judged_by_a_smaller_one() -> None:
    """The largest size is invalid: its target was met by the gain of the size below, or missed by it."""
    found = sample()
    pair = next(m for m in by_fabric(found) if m.rails == PAIR)
    last = pair.sizes[-1]
    half = [replace(point, size=last // 2) for point in pair.points if point.size == last]
    other_interval = [replaced(point, workload="allreduce half") for point in half]
    both = replace(found, points=[*found.points, *other_interval])
    verdicts: dict[IntervalId, Verdict] = {point.interval: "ok" for point in both.points}
    assert any(o.samples for o in of_verdicts(both, verdicts))
    verdicts |= {point.interval: "invalid" for point in both.points if point.size == last}
    assert not any(o.samples for o in of_verdicts(both, verdicts))


def of_verdicts(found: AllreduceResults, verdicts: dict[IntervalId, Verdict]) -> list[Outcome]:
    return [o for o in outcomes(found, verdicts) if o.target == fabric_targets.PAIR[4]]
