"""Analysis of a run: what views show, each part computed once, and the checks that a run has to pass."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar, cast

from railyard.results.analysis import aggregate
from railyard.results.analysis.agreement import agreement_of
from railyard.results.analysis.fidelity import INTERRUPTED, Judgement, judge
from railyard.results.analysis.slowdowns import slowdowns_of
from railyard.results.analysis.targets import Outcome
from railyard.results.measured import MEASURED, Check
from railyard.results.runs.records import LIVE, Run

T = TypeVar("T")
BELIEVABLE: Final = "the emulation is believable"
"""The one check that another load of the machine may fail."""


def _of(compute: "Callable[[Analysis], T]") -> "cached_property[T]":
    return cached_property(compute)


class Analysis:
    """A run with everything that is derived from its records. The run must not change any more."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._derived: dict[Callable[[Analysis], Any], Any] = {}

    def derived(self, compute: "Callable[[Analysis], T]") -> T:
        """Return what a measure computes of the run, computed once. `compute`: a function, not a lambda."""
        if compute not in self._derived:
            self._derived[compute] = compute(self)
        return cast(T, self._derived[compute])

    judgement: cached_property[Judgement] = _of(lambda a: judge(a.run))  # the verdict of fidelity, with its evidence
    labels = _of(lambda a: aggregate.labels(a.run))  # (fabric, policy) -> the label in tables
    measurements = _of(lambda a: aggregate.measurements_frame(a.run, a.judgement.of_row))  # a row for each measurement
    rows = _of(lambda a: aggregate.rows_of(a.run, a.measurements))  # measurements, repeats together
    measure_outcomes = _of(lambda a: _measure_outcomes(a))  # targets of measures, by the measure's name
    slowdowns = _of(lambda a: slowdowns_of(a.run, a.times))  # rail-only over rail-optimized
    agreement = _of(lambda a: agreement_of(a.times))  # of measured times with the formulas
    passed = _of(lambda a: all(check.passed for check in a.checks))

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Checks for which the run has records: one that fails makes the exit status 1."""
        run = self.run
        verdict = self.judgement.verdict
        checks: list[Check] = []
        if run.failed:
            checks.append(Check("the run went to its end", False, run.failed))
        elif run.interrupted:
            checks.append(Check("the run went to its end", False, INTERRUPTED))
        if run.damaged:
            checks.append(Check("the records are complete", False, "; ".join(run.damaged)))
        if verdict == "invalid":
            checks.append(Check(BELIEVABLE, False, self.judgement.reasons[0]))
        else:
            checks.append(Check(BELIEVABLE, True, f"verdict {verdict}"))
        checks += self._checks_of_measures()
        if run.is_interactive:
            return _without_success(run, checks)
        return tuple(checks)

    def _checks_of_measures(self) -> Iterator[Check]:
        """Yield the checks of measures: those that targets claim, then the measure's own."""
        for name, measure in MEASURED.items():
            yield from claims(self.measure_outcomes.get(name, ()))
            yield from measure.checks(self)

    @cached_property
    def times(self) -> tuple[aggregate.Row, ...]:
        """Rows that are times, each workload's whole iteration first."""
        ordered: list[aggregate.Row] = []
        for rows in aggregate.grouped(self.rows, "work").values():
            for metric in aggregate.TIME_METRICS:
                ordered += [row for row in rows if row.metric == metric]
        return tuple(ordered)

    @cached_property
    def shown_outcomes(self) -> dict[str, tuple[Outcome, ...]]:
        """The targets of measures that no section of a measure shows, by the measure's name."""
        return {name: targets for name, targets in self.measure_outcomes.items() if not MEASURED[name].shows_targets}

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The targets of measures that show recovery, measured or not."""
        outcomes: list[Outcome] = []
        for measure in MEASURED.values():
            if measure.has_recovery_targets:
                outcomes += measure.targets(self)
        return tuple(outcomes)


def _measure_outcomes(analysis: Analysis) -> dict[str, tuple[Outcome, ...]]:
    """Return the targets of each measure that has any for this run, by its name."""
    outcomes: dict[str, tuple[Outcome, ...]] = {}
    for name, measure in MEASURED.items():
        # those of recovery are tables of their own, also without samples: `Analysis.outcomes`
        if measure.has_recovery_targets:
            continue
        targets = tuple(measure.targets(analysis))
        if targets:
            outcomes[name] = targets
    return outcomes


def _without_success(run: Run, checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the checks of a run that was changed by hand: none passes, since nothing predicts what was measured."""
    changes = sum(event.source == LIVE for event in run.events)
    detail = f"interactive: {changes} changes on the live page"
    failed = [Check("the run was not changed by hand", False, detail)]
    for check in checks:
        failed.append(replace(check, passed=False, detail=f"interactive; {check.detail}"))
    return tuple(failed)


def claims(outcomes: Sequence[Outcome]) -> Iterator[Check]:
    """Check the targets that a run must meet on any machine, with the value that is furthest from the limit."""
    for target, of_target in aggregate.grouped(outcomes, "target").items():
        measured = [outcome for outcome in of_target if outcome.samples]
        if not target.claim or not measured:
            continue
        worst = max(measured, key=lambda outcome: outcome.value or 0.0)
        if target.unit == "probes":
            detail = _probes_lost(measured, worst)
        else:
            texts = [f"{target.text(outcome.value)} {outcome.worst.of} ({outcome.fabric})" for outcome in measured]
            detail = "; ".join(texts)
        yield Check(
            name=target.claim,
            passed=all(outcome.met for outcome in measured),
            detail=detail,
            quantity=target.quantity,
            value=worst.value,
            limit=next(iter(target.limits.values())),
            unit=target.unit,
            interval=worst.worst.interval,
        )


def _probes_lost(outcomes: Sequence[Outcome], worst: Outcome) -> str:
    """Return how many probes a data plane lost while nothing in it was broken, of all faults together."""
    faults = 0
    total = 0.0
    pairs = 0
    for outcome in outcomes:
        for sample in outcome.samples:
            faults += 1
            total += sample.value or 0
            pairs += sample.pairs
    detail = f"{total:,.0f} probes lost over {faults} faults, of {pairs} probed pairs"
    if total:
        detail += f"; most: {worst.fabric} {worst.worst.of}"
    return detail
