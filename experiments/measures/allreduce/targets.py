"""Performance targets of allreduces over several rails, and what a run measured of each.

Where Nezha's text states a figure, a target asks for it; the other targets are asked of a correct implementation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import attrgetter
from statistics import fmean, geometric_mean, median
from typing import Any, Final, Literal, NamedTuple

from railyard.core.records import IntervalId, Record
from railyard.core.units import size_name
from railyard.experiments.measures.allreduce.analysis import (
    SINGLE,
    FabricMeasurements,
    by_fabric,
    results_of,
)
from railyard.experiments.measures.allreduce.records import AllreduceResults, Cut, DdpRun, Point
from railyard.failure.faults import definition_of
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Sample, Target
from railyard.results.format import times
from railyard.results.runs.records import Verdict, worst_verdict
from railyard.results.theory import nezha
from railyard.workloads.allreduce.engine_kind import engine_of

Scope = Literal["run", "fabric", "fault", "DDP run"]
"""The part of the results on which a target is measured."""


NEVER: Final = inf
"""The value of what a target waits for and what didn't happen, such as a migration."""


class Value(NamedTuple):
    """A measured value, or NEVER, and a text that says of what part or of how many it is."""

    value: float
    text: str = ""


@dataclass(frozen=True)
class MeasuredTarget:
    """A target with its measurement, once for each part of the results.

    `measure`: takes a part (AllreduceResults, FabricMeasurements, the cuts of a fault, DdpRun) and returns its value;
    None where the quantity was not measured on that part.
    """

    scope: Scope
    target: Target
    measure: Callable[[Any], Value | None]


class Part(NamedTuple):
    """A part of the results: its place, itself, and the rows that it consists of."""

    place: IntervalId
    results: Any
    rows: Sequence[Record]


def performance(analysis: Analysis) -> tuple[Outcome, ...]:
    """Return the outcomes of all targets; none for a run without allreduces. For Analysis.derived."""
    results = analysis.derived(results_of)
    return outcomes(results, analysis.judgement.intervals) if results else ()


def outcomes(results: AllreduceResults, verdicts: Mapping[IntervalId, Verdict] | None = None) -> tuple[Outcome, ...]:
    """Return every target, once for each part on which it was measured, or else once as not measured.

    `verdicts`: of the intervals. Invalid intervals count for no target but those of correctness, which hold on any
    machine.
    """
    verdicts = verdicts or {}
    invalid = {interval for interval, verdict in verdicts.items() if verdict == "invalid"}
    all_parts = _parts(results)
    valid_parts = _parts(results.without(invalid))
    all_outcomes: list[Outcome] = []
    for definition in TARGETS:
        target = definition.target
        parts = all_parts if target.claim else valid_parts
        measured = []
        for part in parts[definition.scope]:
            value = definition.measure(part.results)
            if value is not None:
                measured.append(_outcome(target, part, value, verdicts))
        all_outcomes += measured or [Outcome(target)]
    return tuple(all_outcomes)


def _outcome(target: Target, part: Part, value: Value, verdicts: Mapping[IntervalId, Verdict]) -> Outcome:
    """Return what was measured of a target on a part, with the worst verdict of the part's intervals."""
    place = ": ".join(filter(None, (part.place.fabric, part.place.part)))
    verdict: Verdict = "ok"
    # wrong elements are no matter of speed, so a disturbed machine is no excuse for them
    if not target.claim:
        row_verdicts = [verdicts.get(row.interval, "ok") for row in part.rows]
        verdict = worst_verdict(row_verdicts)
    # a sample has no number for what never happened
    number = None if value.value == NEVER else value.value
    sample = Sample(number, value.text, part.place)
    return Outcome(target, place or "all", samples=(sample,), verdict=verdict)


def _parts(results: AllreduceResults) -> dict[Scope, list[Part]]:
    """Return the parts of each scope."""
    faults = grouped(results.cuts, "fabric", "name")
    return {
        "run": [Part(IntervalId(), results, results.points)],
        "fabric": [Part(IntervalId(fabric.rails.label), fabric, fabric.points) for fabric in by_fabric(results)],
        "fault": [Part(IntervalId(fabric, part=name), cuts, cuts) for (fabric, name), cuts in faults.items()],
        "DDP run": [Part(ddp_run.interval, ddp_run, [ddp_run]) for ddp_run in results.ddp_runs],
    }


def _none(quantity: str, unit: str) -> Target:
    """Return a target of 0 that every run has to meet."""
    return Target(quantity=quantity, unit=unit, most=0, claim=f"{quantity}: none")


# Sums -----------------------------------------------------------------------------------------------------------------

CORRECT_SUMS: Final = _none("elements other than numpy's sum", "elements")


def _wrong_sums(results: AllreduceResults) -> Value | None:
    """Wrong elements of all fabrics and policies together, since a single one is one too many."""
    points = [point for point in results.points if point.checked]
    if not points:
        return None
    wrong, checked = _wrong_and_checked(points)
    text = f"of {checked:,} in {len(points)} points"
    if wrong:
        worst = max(points, key=attrgetter("wrong"))
        text += f"; {worst.policy} on {worst.fabric}"
    return Value(float(wrong), text)


def _wrong_and_checked(rows: Sequence[Point | Cut]) -> tuple[int, int]:
    """Return how many elements are wrong, of how many that were compared with numpy's sums."""
    wrong = 0
    checked = 0
    for row in rows:
        wrong += row.wrong
        checked += row.checked
    return wrong, checked


# Throughput at large sizes --------------------------------------------------------------------------------------------

LINK_BOUND: Final = Target(quantity="single rail, ring, large: of its links' bound", unit="share", least=0.95)


def _of_link_bound(fabric: FabricMeasurements) -> Value | None:
    """The worst of the rings at the largest size: the time that its links alone would take, over the measured time.

    Of a ring of N no rank's link can carry less than 2(N-1)/N of the buffer (Patarasuk and Yuan, 2009). Set-up is not
    included. Rails whose processor is slower than their links are left out.
    """
    nodes = fabric.rails.nodes
    rates = _link_bound_rates(fabric)
    bits_per_byte_sent = 8 * 2 * (nodes - 1) / nodes
    shares: list[Value] = []
    for point in fabric.points:
        if point.size == fabric.large and point.policy in rates:
            bound_s = bits_per_byte_sent * point.sent / rates[point.policy]
            measured_s = fabric.at(point.policy, fabric.large) or inf
            shares.append(Value(bound_s / measured_s, point.policy))
    return min(shares, default=None)


def _link_bound_rates(fabric: FabricMeasurements) -> dict[str, float]:
    """Return the rate of each single rail that is a ring and whose links are its bottleneck, bit/s, by policy."""
    rails = fabric.rails
    cpu_times = rails.cpu_s_per_byte or (0.0,) * len(rails.names)
    rates: dict[str, float] = {}
    for name, kind, bps, cpu_s in zip(rails.names, rails.kinds, rails.bps, cpu_times, strict=True):
        if kind != "sharp" and cpu_s <= 8 / bps:
            rates[f"{SINGLE}:{name}"] = bps
    return rates


def _gain_of_pair(nodes: int) -> Target:
    """Return the target of the gain by a second rail like the first, on so many nodes."""
    stated = nezha.GAINS["tcp+tcp", nodes, "nezha"]
    quantity = f"two like rails, {nodes} nodes, large: of one"
    return Target(quantity=quantity, unit="times", least=stated, source="Nezha 5.2.1", goal=1.95)


PAIR: Final = {nodes: _gain_of_pair(nodes) for nodes in (4, 8)}


def _gain_of_second_rail(nodes: int, fabric: FabricMeasurements) -> Value | None:
    """Gain at the largest size, on fabrics with so many nodes."""
    if fabric.rails.nodes != nodes or not _has_two_like_rails(fabric):
        return None
    return _value_if_measured(fabric.gain("nezha", fabric.large))


def _has_two_like_rails(fabric: FabricMeasurements) -> bool:
    kinds = fabric.rails.kinds
    distinct_rails = set(zip(kinds, fabric.rails.bps, strict=True))
    return len(kinds) == 2 and len(distinct_rails) == 1


def _value_if_measured(number: float | None) -> Value | None:
    if number is None:
        return None
    return Value(number)


_STATED_BASELINES: Final = {
    "mptcp": "Nezha 5.2.2, unlike rails: up to 1.80x",
    "mrib": "Nezha 5.2.2, unlike rails: up to 1.41x",
    "slicing": "",
}
"""Policy of the paper -> what it states of it."""


def _throughput_target(baseline: str, source: str) -> Target:
    """Return the target of the throughput over a baseline's, at the large size where it is worst."""
    return Target(quantity=f"nezha, large: throughput of {baseline}'s", unit="times", least=0.98, source=source)


OVER_BASELINE: Final = {name: _throughput_target(name, source) for name, source in _STATED_BASELINES.items()}


def _throughput_over(baseline: str, fabric: FabricMeasurements) -> Value | None:
    """Throughput over a baseline's at the size where it is lowest, of the large ones that the paper measures."""
    ratio_by_size: dict[int, float] = {}
    for size in fabric.sizes:
        if nezha.LARGE <= size <= nezha.LARGEST:
            ratios = fabric.ratios(baseline, "nezha", size)
            if ratios:
                ratio_by_size[size] = geometric_mean(ratios)
    if not ratio_by_size:
        return None
    worst_size = min(ratio_by_size, key=ratio_by_size.__getitem__)
    return Value(ratio_by_size[worst_size], f"at {size_name(worst_size)}")


UNLIKE: Final = Target(
    quantity="unlike rails, large: of the better one", unit="times", least=1.4, source="Nezha 5.2.2: 1.46 to 1.63"
)


def _gain_of_unlike(fabric: FabricMeasurements) -> Value | None:
    """Gain at the largest size."""
    if not _has_unlike_rails(fabric):
        return None
    return _value_if_measured(fabric.gain("nezha", fabric.large))


SUM_OF_RAILS: Final = Target(quantity="unlike rails, large: of the sum of both", unit="share", least=0.95)


def _share_of_sum(fabric: FabricMeasurements) -> Value | None:
    """Throughput at the largest size, over that of all rails alone."""
    if not _has_unlike_rails(fabric):
        return None
    return _value_if_measured(fabric.of_ideal("nezha", fabric.large))


def _has_unlike_rails(fabric: FabricMeasurements) -> bool:
    return len(set(fabric.rails.kinds)) > 1


GLOO: Final = Target(quantity="one tcp rail, large: throughput of Gloo's", unit="times", least=1.0)


def _over_gloo(fabric: FabricMeasurements) -> Value | None:
    """The first TCP rail that was measured."""
    policies: list[str] = []
    for name, kind in zip(fabric.rails.names, fabric.rails.kinds, strict=True):
        if kind == "tcp":
            policies.append(f"{SINGLE}:{name}")
    if not policies:
        return None
    # runs that name no rail have only the policy that chooses one
    policies.append(SINGLE)
    for policy in policies:
        ratio = fabric.over(policy, "gloo", fabric.large)
        if ratio is not None:
            return Value(ratio)
    return None


GLOO_PAIR: Final = Target(
    quantity="two tcp rails, large: throughput of Gloo's", unit="times", least=1.8, source="Nezha: 1.7 to 4.3"
)


def _pair_over_gloo(fabric: FabricMeasurements) -> Value | None:
    """Nezha over Gloo at the largest size."""
    if not _has_two_like_rails(fabric):
        return None
    return _value_if_measured(fabric.over("nezha", "gloo", fabric.large))


# Latency at small sizes -----------------------------------------------------------------------------------------------

SMALL_LATENCY: Final = Target(quantity="small, cold: latency of the best single rail's", unit="times", most=1.03)


def _worst_small_latency(fabric: FabricMeasurements) -> Value | None:
    """The small size where it was worst, beside the rail that was best there."""
    ratios_by_size: dict[int, list[float]] = {}
    for size in fabric.small:
        ratios = _ratios_to_best_rail(fabric, size)
        if ratios:
            ratios_by_size[size] = ratios
    if not ratios_by_size:
        return None
    ratio_by_size = {size: geometric_mean(ratios) for size, ratios in ratios_by_size.items()}
    worst_size = max(ratio_by_size, key=ratio_by_size.__getitem__)
    # one size has few operations, so its figure varies by chance: the median of all sizes is shown with it
    median_text = f"median of {len(ratio_by_size)} sizes {times(median(ratio_by_size.values()))}"
    starts_text = _range_of_starts(ratios_by_size[worst_size], times)
    return Value(ratio_by_size[worst_size], f"at {size_name(worst_size)}; {median_text}{starts_text}")


def _ratios_to_best_rail(fabric: FabricMeasurements, size: int) -> list[float]:
    """Return nezha's latency over that of the rail that was best at a size, by start; empty if none was measured."""
    ratios_by_rail = [fabric.ratios("nezha", rail, size) for rail in fabric.singles(size)]
    return max(filter(None, ratios_by_rail), key=geometric_mean, default=[])


def _range_of_starts(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return `; 0.96x to 1.04x in 3 starts`, which shows how much a few percent mean; nothing for one start."""
    if len(values) < 2:
        return ""
    return f"; {show(min(values))} to {show(max(values))} in {len(values)} starts"


def _less_latency_target(baseline: str) -> Target:
    quantity = f"small, cold: less latency than {baseline}"
    return Target(quantity=quantity, unit="share", least=0.15, source="Nezha 5.2.1")


SMALL_LATENCY_OVER_BASELINE: Final = {name: _less_latency_target(name) for name in ("mrib", "mptcp")}


def _less_latency_than(baseline: str, fabric: FabricMeasurements) -> Value | None:
    """Part of the baseline's latency that is saved, as the median over small sizes."""
    ratios_by_size = [fabric.ratios("nezha", baseline, size) for size in fabric.small]
    measured = [ratios for ratios in ratios_by_size if ratios]
    if not measured:
        return None
    saved_by_start = [1 - median(ratios) for ratios in zip(*measured, strict=False)]
    starts_text = _range_of_starts(saved_by_start, SMALL_LATENCY_OVER_BASELINE[baseline].text)
    # the paper's 15% are of set-ups, which all sizes have, so one slow operation of the baseline's must not count
    saved = 1 - median(map(geometric_mean, measured))
    return Value(saved, f"median of {len(measured)} sizes{starts_text}")


# Balancer -------------------------------------------------------------------------------------------------------------

CONVERGENCE: Final = Target(
    quantity="balancer converges in", unit="operations", most=nezha.CONVERGENCE_OPERATIONS, source="Nezha 4.3"
)


def _slowest_convergence(fabric: FabricMeasurements) -> Value | None:
    """The size, and of its starts the one, that took longest: it has to converge however often it is started."""
    split = _split_points(fabric)
    if not split:
        return None
    slowest = max(split, key=_operations_to_converge)
    return Value(_operations_to_converge(slowest), f"at {size_name(slowest.size)}")


def _operations_to_converge(point: Point) -> float:
    if point.settled_after is None:
        return NEVER
    return point.settled_after


RAIL_TIME_SPREAD: Final = Target(
    quantity="time between rails after that", unit="share", most=nezha.MEAN_RAIL_TIME_SPREAD, source="Nezha 5.3.2"
)


def _mean_spread(fabric: FabricMeasurements) -> Value | None:
    """Mean over the sizes that were split, since the paper's figure is an average."""
    spreads: list[float] = []
    # a size counts once, whatever its number of starts: small sizes have more than large ones
    for starts in grouped(_split_points(fabric), "size").values():
        spreads.append(fmean([point.relative_spread for point in starts]))
    if not spreads:
        return None
    return Value(fmean(spreads), f"mean of {len(spreads)} sizes")


def _split_points(fabric: FabricMeasurements) -> list[Point]:
    return [point for point in fabric.points if point.policy == "nezha" and point.split]


# Faults of rails ------------------------------------------------------------------------------------------------------

MIGRATION: Final = Target(
    quantity="NIC cut until migrated, median", most=50, source="Nezha 4.4: below 200, from detection on"
)
MIGRATION_WORST: Final = Target(quantity="NIC cut until migrated, worst", most=200)


def _known_to_the_engine(cuts: Sequence[Cut]) -> list[Cut]:
    """Return the cuts of an engine that knows its rails: the kernel's MPTCP moves bytes without telling its ranks."""
    return [cut for cut in cuts if engine_of(cut.policy).runs_policies]


def _migration(statistic: Callable[[list[float]], float], cuts: Sequence[Cut]) -> Value | None:
    """Time from the fault until traffic has moved, ms, of faults that fell into an operation: median or maximum.

    Only kinds of faults count from which traffic is moved.
    """
    durations_ms: list[float] = []
    for cut in _known_to_the_engine(cuts):
        if cut.inside and definition_of(cut.fault).is_rerouted:
            durations_ms.append(NEVER if cut.migrate_ms is None else cut.migrate_ms)
    if not durations_ms:
        return None
    return Value(statistic(durations_ms), f"n={len(durations_ms)}")


CORRECT_DURING_CUT: Final = _none("elements wrong while a rail was cut", "elements")


def _wrong_during_cut(cuts: Sequence[Cut]) -> Value:
    """Sum over the repeats."""
    wrong, checked = _wrong_and_checked(cuts)
    return Value(float(wrong), f"of {checked:,}")


ABORTED_BY_CUT: Final = _none("cuts that ended the operations", "cuts")


def _aborted(cuts: Sequence[Cut]) -> Value:
    """Repeats with an error."""
    errors = [cut.error for cut in cuts if cut.error]
    if not errors:
        return Value(0.0, f"of {len(cuts)}")
    return Value(float(len(errors)), errors[0])


RAIL_REUSED: Final = _none("cuts after whose repair the rail stayed idle", "cuts")


def _stayed_idle(cuts: Sequence[Cut]) -> Value | None:
    """Repeats in which the rail carried something before its fault, and nothing after its repair."""
    times_of_return = [cut.home_ms for cut in _known_to_the_engine(cuts) if cut.carried]
    if not times_of_return:
        return None
    return Value(float(times_of_return.count(None)), f"of {len(times_of_return)}")


# Real training --------------------------------------------------------------------------------------------------------

_LOSSES: Final = "DDP: losses differ from Gloo's by"
DDP_LOSS_DIFFERENCE: Final = Target(quantity=_LOSSES, unit="share", most=1e-3, claim=_LOSSES)


def _loss_difference(ddp_run: DdpRun) -> Value:
    """Largest difference of any rank and step."""
    return Value(ddp_run.losses_apart, f"{len(ddp_run.losses)} steps")


DDP_SPEEDUP: Final = Target(quantity="DDP: steps as fast as Gloo's", unit="times", least=1.0)


def _speedup(ddp_run: DdpRun) -> Value:
    """Gloo's step over Railyard's."""
    return Value(ddp_run.gloo_step_s / ddp_run.step_s, ddp_run.policy)


def _pair_targets() -> list[MeasuredTarget]:
    return [MeasuredTarget("fabric", target, partial(_gain_of_second_rail, nodes)) for nodes, target in PAIR.items()]


def _throughput_targets() -> list[MeasuredTarget]:
    return [MeasuredTarget("fabric", target, partial(_throughput_over, name)) for name, target in OVER_BASELINE.items()]


def _latency_targets() -> list[MeasuredTarget]:
    targets = SMALL_LATENCY_OVER_BASELINE.items()
    return [MeasuredTarget("fabric", target, partial(_less_latency_than, name)) for name, target in targets]


TARGETS: Final = (
    MeasuredTarget("run", CORRECT_SUMS, _wrong_sums),
    MeasuredTarget("fabric", LINK_BOUND, _of_link_bound),
    *_pair_targets(),
    *_throughput_targets(),
    MeasuredTarget("fabric", UNLIKE, _gain_of_unlike),
    MeasuredTarget("fabric", SUM_OF_RAILS, _share_of_sum),
    MeasuredTarget("fabric", SMALL_LATENCY, _worst_small_latency),
    *_latency_targets(),
    MeasuredTarget("fabric", CONVERGENCE, _slowest_convergence),
    MeasuredTarget("fabric", RAIL_TIME_SPREAD, _mean_spread),
    MeasuredTarget("fault", MIGRATION, partial(_migration, median)),
    MeasuredTarget("fault", MIGRATION_WORST, partial(_migration, max)),
    MeasuredTarget("fault", CORRECT_DURING_CUT, _wrong_during_cut),
    MeasuredTarget("fault", ABORTED_BY_CUT, _aborted),
    MeasuredTarget("fault", RAIL_REUSED, _stayed_idle),
    MeasuredTarget("fabric", GLOO, _over_gloo),
    MeasuredTarget("fabric", GLOO_PAIR, _pair_over_gloo),
    MeasuredTarget("DDP run", DDP_LOSS_DIFFERENCE, _loss_difference),
    MeasuredTarget("DDP run", DDP_SPEEDUP, _speedup),
)
"""Every target, in the order of the report."""
