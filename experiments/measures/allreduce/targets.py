"""Performance targets of allreduces over several rails, and what a run measured of each.

Where Nezha's text states a figure, a target asks for it; the other targets are asked of a correct implementation.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any, Final, NamedTuple

from railyard.core.records import IntervalId, Record
from railyard.experiments.measures.allreduce.analysis import by_fabric, results_of
from railyard.experiments.measures.allreduce.fabric_targets import FABRIC_TARGETS, GLOO_TARGETS
from railyard.experiments.measures.allreduce.measured_target import NEVER, MeasuredTarget, Scope, Value
from railyard.experiments.measures.allreduce.records import AllreduceResults, Cut, DdpRun, Point
from railyard.failure.faults import definition_of
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Sample, Target
from railyard.results.runs.records import Verdict, worst_verdict
from railyard.workloads.allreduce.engine_kind import engine_of


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


TARGETS: Final = (
    MeasuredTarget("run", CORRECT_SUMS, _wrong_sums),
    *FABRIC_TARGETS,
    MeasuredTarget("fault", MIGRATION, partial(_migration, median)),
    MeasuredTarget("fault", MIGRATION_WORST, partial(_migration, max)),
    MeasuredTarget("fault", CORRECT_DURING_CUT, _wrong_during_cut),
    MeasuredTarget("fault", ABORTED_BY_CUT, _aborted),
    MeasuredTarget("fault", RAIL_REUSED, _stayed_idle),
    *GLOO_TARGETS,
    MeasuredTarget("DDP run", DDP_LOSS_DIFFERENCE, _loss_difference),
    MeasuredTarget("DDP run", DDP_SPEEDUP, _speedup),
)
"""Every target, in the order of the report."""
