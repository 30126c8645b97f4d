"""Analysis of a run: what views show, each part computed once, and the checks that a run has to pass."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar, cast

import pandas as pd

from railyard.core.records import IntervalId, Recovered, Recovery
from railyard.failure.faults import definition_of
from railyard.results.analysis import aggregate, recovery
from railyard.results.analysis.fidelity import INTERRUPTED, Judgement, judge
from railyard.results.analysis.targets import Outcome, measured_targets, recovery_outcomes
from railyard.results.measured import MEASURED, Check
from railyard.results.runs.records import LIVE, Run

T = TypeVar("T")
_FAULTS_ORDER: Final = 20  # place of their checks among those of measures
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
    recovery_rows = _of(lambda a: recovery.recovery_rows(a.run))  # faults that were injected alone, repeats together
    script_rows = _of(lambda a: recovery.script_runs(a.run))  # repeats of failure scripts
    rows = _of(lambda a: aggregate.rows_of(a.run, a.measurements))  # measurements, repeats together
    measure_outcomes = _of(lambda a: _measure_outcomes(a))  # targets of measures, by the measure's name
    heartbeat_rows = _of(lambda a: tuple(r for r in a.rows if r.work.workload == aggregate.HEARTBEATS))  # their cost
    slowdowns = _of(lambda a: aggregate.slowdowns(a.run, a.times))  # rail-only over rail-optimized
    agreement = _of(lambda a: aggregate.agreement(a.times))  # of measured times with the formulas
    passed = _of(lambda a: all(check.passed for check in a.checks))

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Checks for which the run has records: one that fails makes the exit status 1."""
        run = self.run
        verdict = self.judgement.verdict
        reasons = self.judgement.reasons
        early = run.failed or (INTERRUPTED if run.interrupted else "")
        believable = reasons[0] if verdict == "invalid" else f"verdict {verdict}"
        found = (
            *([Check("the run went to its end", False, early)] if early else []),
            *([Check("the records are complete", False, "; ".join(run.damaged))] if run.damaged else []),
            Check(BELIEVABLE, verdict != "invalid", believable),
            *self._checks_of(range(_FAULTS_ORDER)),
            *(*_recovery(run, self.judgement.disturbed), *_connectivity(run)),
            *(*_too_fast(run), *_claims(self.outcomes), *_losses(run)),
            *self._checks_of(range(_FAULTS_ORDER, sys.maxsize)),
        )
        return _without_success(run, found) if run.is_interactive else found

    def _checks_of(self, places: range) -> Iterator[Check]:
        """Yield the checks of measures whose order is in a range: those that targets claim, then the measure's own."""
        for name, measure in MEASURED.items():
            if measure.order in places:
                yield from _claims(self.measure_outcomes.get(name, ()))
                yield from measure.checks(self)

    @cached_property
    def times(self) -> tuple[aggregate.Row, ...]:
        """Rows that are times, each workload's whole iteration first."""
        works = list(dict.fromkeys(row.work for row in self.rows))
        timed = (row for row in self.rows if row.metric in aggregate.TIME_METRICS)
        return tuple(sorted(timed, key=lambda r: (works.index(r.work), aggregate.TIME_METRICS.index(r.metric))))

    @cached_property
    def shown_outcomes(self) -> dict[str, tuple[Outcome, ...]]:
        """The targets of measures that no section of a measure shows, by the measure's name."""
        names = [name for name in self.measure_outcomes if not MEASURED[name].shows_targets]
        return {name: self.measure_outcomes[name] for name in names}

    @cached_property
    def target_outcomes(self) -> tuple[Outcome, ...]:
        """All targets; none where nothing failed, or rerouting was off."""
        has_rerouted = any(recovery.reroute == "on" for recovery in self.run.recoveries)
        if has_rerouted or measured_targets(self.outcomes):
            return self.outcomes
        return ()

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The targets of recovery from faults, and of measures that recover, measured or not."""
        outcomes = list(recovery_outcomes(self.recovery_rows, self.script_rows, self.judgement))
        for measure in MEASURED.values():
            if measure.has_recovery_targets:
                outcomes += measure.targets(self)
        return tuple(outcomes)


def _measure_outcomes(analysis: Analysis) -> dict[str, tuple[Outcome, ...]]:
    """Return the targets of each measure that has any for this run, by its name."""
    outcomes: dict[str, tuple[Outcome, ...]] = {}
    for name, measure in MEASURED.items():
        of_measure = () if measure.has_recovery_targets else tuple(measure.targets(analysis))
        if of_measure:
            outcomes[name] = of_measure
    return outcomes


def _without_success(run: Run, checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the checks of a run that was changed by hand: none passes, since nothing predicts what was measured."""
    detail = f"interactive: {sum(event.source == LIVE for event in run.events)} changes on the live page"
    failed = (replace(check, passed=False, detail=f"interactive; {check.detail}") for check in checks)
    return (Check("the run was not changed by hand", False, detail), *failed)


def _recovery(run: Run, disturbed: Collection[IntervalId]) -> Iterator[Check]:
    """Check that traffic recovers from faults that rerouting helps against, and returns after their repair.

    Faults that came alone, and by their first packets those of scripts beside workloads: for other scripts,
    connectivity checks show what had to recover. In scripts, other faults may make the return unknowable; what died
    beside the data plane has no detours to withdraw. A fault that failed in a disturbed interval is not judged.
    """
    checked_scripts = {c.interval for c in run.connectivity_checks if c.script}
    kinds = {r: definition_of(r.fault) for r in run.recoveries if r.reroute == "on"}
    rerouted = [r for r, kind in kinds.items() if kind.is_rerouted]
    rows = [r for r in rerouted if r.interval not in checked_scripts]
    rows = [r for r in rows if r.is_probed or (not r.script and r.has_goodput_evidence)]
    unaffected = [r for r in rows if r.recovered is Recovered.UNAFFECTED]
    rows = [r for r in rows if r not in unaffected]
    failed = [r for r in rows if not (r.first_packet_ms is not None if r.script else r.recovered)]
    alone = [r for r in rerouted if not r.script and not kinds[r].is_control_plane]
    stayed = [r for r in alone if r.primary_path_ms is None]
    unaffected_text = f"; {len(unaffected)} more affected no pair" if unaffected else ""
    for claim, faults, missed, note in (
        ("traffic recovers when rerouting is on", rows, failed, unaffected_text),
        ("traffic returned to its primary path after each repair", alone, stayed, ""),
    ):
        bad = [r for r in missed if r.interval not in disturbed]
        left_out = [r for r in missed if r.interval in disturbed]
        faults = [r for r in faults if r not in left_out]
        if faults:
            names = f"; not: {', '.join(map(_fault_label, bad[:3]))}" if bad else ""
            names += f"; not judged, the machine was disturbed: {len(left_out)}" if left_out else ""
            figures = ("faults that failed", len(bad), 0, "faults", bad[0].interval if bad else None)
            yield Check(claim, not bad, f"{len(faults) - len(bad)} of {len(faults)} faults{names}{note}", *figures)


def _connectivity(run: Run) -> Iterator[Check]:
    """Without rerouting too: nothing has to recover then, but failed parts must not forward anything."""
    rows = run.connectivity_checks
    if rows:
        failed = [c for c in rows if c.done and c.mismatch_count]
        done = pd.DataFrame([(c.fabric, c.done) for c in rows], columns=["fabric", "done"])
        shares = done.groupby("fabric", sort=False).done.mean()
        under_checked = list(shares[shares < 0.5].index)  # fewer than half of the due checks could be done
        detail = recovery.checks_text(rows)
        if under_checked:
            detail += f"; too few on {', '.join(under_checked)}"
        if failed:
            worst = max(failed, key=lambda c: c.mismatch_count)
            where = " ".join(filter(None, (worst.fabric, worst.script)))
            detail += f"; worst: {where} repeat {worst.repeat} after {worst.last_event}: "
            detail += f"{worst.not_recovered} pairs not recovered, {worst.unexpected_answers} unexpected answers, "
            detail += f"{worst.forwarding_failed_parts} failed or slow parts forwarded too much"
        figures = ("connectivity checks that differ", len(failed), 0, "checks", failed[0].interval if failed else None)
        passed = not failed and not under_checked
        yield Check("every connectivity check matches the oracle", passed, detail, *figures)


def _too_fast(run: Run) -> Iterator[Check]:
    """With rerouting or without: more than the oracle allows went where nothing should."""
    if rows := [r for r in run.recoveries if r.reroute]:
        total = sum(r.above_max_flow for r in rows)
        worst = max(rows, key=lambda r: r.above_max_flow)
        detail = f"{total} of them over {len(rows)} faults" + (f"; most: {_fault_label(worst)}" if total else "")
        figures = ("streams above their max-flow", total, 0, "streams", worst.interval)
        yield Check("no stream gets more than the max-flow of what is left", total == 0, detail, *figures)


def _losses(run: Run) -> Iterator[Check]:
    """Check that nothing was lost with rerouting on; a failed GPU loses its own connections.

    Each fault of a script has what the whole script lost: that counts once.
    """
    rows = [r for r in run.recoveries if r.reroute == "on"]
    with_failed_gpus = {r.interval for r in rows if definition_of(r.fault).stops_gpus}
    others = [r for r in rows if r.interval not in with_failed_gpus]
    lost_bytes = ("no fault loses a byte when rerouting is on", "{:,} bytes lost over {} faults and scripts")
    connections = ("TCP connections are lost only where a GPU failed", "{} lost over {} other faults and scripts")
    for (claim, detail), counted, column, quantity, unit in (
        (lost_bytes, rows, "lost_bytes", "bytes lost", "B"),
        (connections, others, "connections_lost", "connections lost", "connections"),
    ):
        if counted:
            values = [(r.interval, getattr(r, column), r) for r in counted]
            frame = pd.DataFrame(values, columns=["interval", "lost", "fault"])
            first = frame.loc[frame.groupby("interval", sort=False).lost.idxmax()]
            total = int(first.lost.sum())
            worst = first.fault.iloc[int(first.lost.to_numpy().argmax())]
            place = f"; most: {worst.fabric} {worst.script or f'{worst.fault} {worst.target}'} repeat {worst.repeat}"
            text = detail.format(total, len(first)) + (place if total else "")
            yield Check(claim, total == 0, text, quantity, total, 0, unit, worst.interval)


def _fault_label(r: Recovery) -> str:
    return f"{r.fabric} {r.script} {r.fault} {r.target} repeat {r.repeat}".replace("  ", " ")


def _claims(outcomes: Sequence[Outcome]) -> Iterator[Check]:
    """Check the targets that a run must meet on any machine, with the value that is furthest from the limit."""
    for target in dict.fromkeys(o.target for o in outcomes if o.target.claim):
        if found := [o for o in outcomes if o.target == target and o.samples]:
            worst = max(found, key=lambda o: o.value or 0.0)
            detail = "; ".join(f"{target.text(o.value)} {o.worst.of} ({o.fabric})" for o in found)
            if target.unit == "probes":  # what a data plane loses while nothing in it is broken: of all faults together
                samples = [sample for o in found for sample in o.samples]
                total = sum(s.value or 0 for s in samples)
                pairs = sum(s.pairs for s in samples)
                detail = f"{total:,.0f} probes lost over {len(samples)} faults, of {pairs} probed pairs"
                detail += f"; most: {worst.fabric} {worst.worst.of}" if total else ""
            figures = (target.quantity, worst.value, next(iter(target.limits.values())), target.unit)
            yield Check(target.claim, all(o.met for o in found), detail, *figures, worst.worst.interval)
