"""Fidelity of the emulation: a verdict with its reasons, from what was recorded beside the results.

ok: believe the numbers. degraded: believe the direction, not the last percent. invalid: the machine was measured, and
not the fabric. Each measurement interval has a verdict, and the run has the worst of them.
"""

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from railyard.core.records import IntervalId
from railyard.results.analysis.aggregate import (
    FOLLOW_FROM_TIME,
    TIME_METRICS,
    grouped,
    labels,
    measurements_frame,
    rows_of,
)
from railyard.results.analysis.findings import (
    Finding,
    byte_findings,
    clock_finding,
    counts_for_interval,
    event_findings,
    link_findings,
    load_findings,
    time_findings,
    underlay_finding,
    verdict_of_time,
)
from railyard.results.analysis.limits import (
    BACKGROUND,
    CPU_BUSY,
    CPU_FOREIGN,
    CPU_STOLEN,
    CPU_THROTTLED,
    FAULT_LATE,
    LAG,
    PAUSE,
    PAUSED,
    PROCESS_MISSING,
    RESOLUTION,
    UNEXPLAINED,
)
from railyard.results.analysis.slowdowns import Slowdown, pairs, slowdowns_of
from railyard.results.format import digits, interval_label
from railyard.results.measured import MEASURED, policies_in_turn
from railyard.results.runs.records import (
    CLOCK_UNCERTAINTY,
    NOT_COMPARED,
    REPEATED,
    RUN,
    SLOWDOWN,
    UNDERLAY_BYTES,
    VERDICTS,
    Measurement,
    Run,
    Verdict,
    worst_verdict,
)

INTERRUPTED: Final = "interrupted: only what was measured until then is here"


_BUSY: Final = (CPU_BUSY, CPU_FOREIGN, CPU_STOLEN, CPU_THROTTLED, LAG, PAUSED, PAUSE, FAULT_LATE)
"""Limits that a machine exceeds which is busy with something else than the run."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The run's verdict, the reasons if it isn't ok, each finding, and the verdict of each interval.

    `rows`: of the interval, phase and metric of each time that has a prediction. `disturbed`: the intervals that
    are invalid because of the machine: what missed a target in them was not judged.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    evidence: tuple[Finding, ...]
    intervals: dict[IntervalId, Verdict]
    rows: "RowVerdicts" = field(default_factory=dict)
    disturbed: frozenset[IntervalId] = frozenset()

    @property
    def machine_reason(self) -> str:
        """Reason in words why measurements are invalid, if the machine is the only reason; else empty."""
        invalid = [finding for finding in self.evidence if finding.verdict == "invalid"]
        origins = {finding.limit.origin for finding in invalid}
        # no load of the machine loses a byte
        if "run" in origins:
            return ""
        for finding in invalid:
            if finding.limit.origin == "machine":
                return finding.text
        return ""

    def of_row(self, row: Measurement) -> Verdict:
        """Return the verdict of a measurement: of its interval, and of its own deviation from its prediction."""
        return _verdict_of_row(row, self.rows, self.intervals)

    def of_interval(self, interval: IntervalId) -> Verdict:
        """Return the verdict of an interval: ok for one without findings."""
        return self.intervals.get(interval, "ok")


RowKey = tuple[IntervalId, str, str]
"""Interval, phase and metric of a measurement."""
RowVerdicts = dict[RowKey, Verdict]


def _verdict_of_row(
    row: Measurement, rows: Mapping[RowKey, Verdict], intervals: Mapping[IntervalId, Verdict]
) -> Verdict:
    """Return the worse of the verdicts of a measurement and of its interval."""
    of_deviation = rows.get((row.interval, row.phase, row.metric), "ok")
    of_interval = intervals.get(row.interval, "ok")
    # that a time isn't compared with a prediction goes before a degraded interval
    if of_deviation in NOT_COMPARED and of_interval != "invalid":
        return of_deviation
    return worst_verdict((of_interval, of_deviation))


def _is_invalid_by_machine(finding: Finding) -> bool:
    """Return whether a finding makes an interval invalid because of the machine, and not of the run itself."""
    return finding.verdict == "invalid" and finding.limit.origin == "machine"


def judge(run: Run) -> Judgement:
    """Return the worst of all findings; a run with no evidence at all is invalid, one with gaps at best degraded."""
    times = tuple(time_findings(run))
    recorded = tuple(_recorded_findings(run, times))
    missing_records = tuple(_missing_records(run))
    if not recorded:
        nothing = "nothing was recorded that could vouch for this run"
        unknown: dict[IntervalId, Verdict] = {row.interval: "invalid" for row in run.measurements}
        return Judgement("invalid", (nothing, *missing_records), (), unknown)
    intervals = _interval_verdicts(run, recorded)
    rows: RowVerdicts = {}
    for row, deviations in times:
        rows[row.interval, row.phase, row.metric] = verdict_of_time(row, deviations)

    # comparisons of fabrics depend on the verdicts of the times that they compare, and are findings too
    slowdowns = _slowdowns(run, rows, intervals)
    findings = (*recorded, *_slowdown_findings(run, slowdowns))
    rows |= _derived_verdicts(run, rows, slowdowns)

    verdict = worst_verdict(finding.verdict for finding in findings)
    if missing_records:
        verdict = worst_verdict((verdict, "degraded"))
    reasons = (*_reasons(_displayed(findings, intervals), labels(run)), *missing_records)
    invalid_by_machine = filter(_is_invalid_by_machine, findings)
    disturbed = frozenset(finding.interval for finding in invalid_by_machine)
    return Judgement(verdict, reasons, findings, intervals, rows, disturbed)


def _recorded_findings(run: Run, times: Iterable[tuple[Measurement, list[Finding]]]) -> Iterator[Finding]:
    """Yield a finding for each quantity that was recorded. `times`: those with a prediction, and their deviations."""
    yield from link_findings(run.links)
    for load in run.loads:
        yield from load_findings(load)
    for row, deviations in times:
        for finding in deviations:
            if counts_for_interval(row, finding):
                yield finding
    for row in run.measurements:
        if row.metric == CLOCK_UNCERTAINTY:
            yield clock_finding(row)
        elif row.metric == UNDERLAY_BYTES and row.predicted:
            yield underlay_finding(row, row.predicted)
    for measure in MEASURED.values():
        yield from measure.findings(run)
    for event in run.events:
        yield from event_findings(event)
    faulted = {load.interval for load in run.loads if load.transfers_faulted}
    is_port_traffic_known = not policies_in_turn(run)
    for check in run.bytes:
        if check.interval not in faulted:
            yield from byte_findings(check, is_port_traffic_known)


def disturbance(run: Run) -> str:
    """Return how the machine was busy with something else, so that these records are to be measured again.

    Empty if they are not invalid, or invalid for another reason too.
    """
    reason = ""
    for finding in judge(run).evidence:
        if finding.verdict != "invalid" or finding.limit is BACKGROUND:
            continue
        # a lost byte would be lost again, or hidden
        if finding.limit not in _BUSY:
            return ""
        reason = reason or finding.text
    # a run that alone loads the machine beyond its limit would do so again
    loads_by_run = [load.cpu_busy - load.cpu_foreign - load.cpu_stolen for load in run.loads]
    if max(loads_by_run, default=0.0) > CPU_BUSY.invalid:
        return ""
    return reason


def repeats(run: Run) -> dict[IntervalId, list[str]]:
    """Return the intervals that were measured again, and how the machine was busy each time before."""
    reasons: dict[IntervalId, list[str]] = {}
    for event in run.events:
        if (event.source, event.what) == (RUN, REPEATED):
            reasons.setdefault(IntervalId.of(event.detail), []).append(str(event.detail["text"]))
    return reasons


def _slowdowns(
    run: Run, rows: Mapping[RowKey, Verdict], intervals: Mapping[IntervalId, Verdict]
) -> tuple[Slowdown, ...]:
    """Return the comparisons of fabrics, of times with their verdicts."""
    if not pairs(run):
        return ()
    frame = measurements_frame(run, lambda row: _verdict_of_row(row, rows, intervals))
    times = [row for row in rows_of(run, frame) if row.metric in TIME_METRICS]
    return slowdowns_of(run, times)


def _slowdown_findings(run: Run, compared: Iterable[Slowdown]) -> Iterator[Finding]:
    """Yield a finding for each comparison that is off its formula."""
    # runs of an earlier version recorded no resolution: their phases may be short enough to deviate by it
    resolved = {(row.interval.work, row.phase) for row in run.measurements if row.frames is not None}
    for slowdown in compared:
        phase = slowdown.row.phase
        if not slowdown.predicted or (phase and (slowdown.row.work, phase) not in resolved):
            continue
        ratio = digits(slowdown.measured / slowdown.predicted, 4)
        name = phase or "the whole"
        text = f"{name} over that on {slowdown.rail_optimized} is {ratio} of its prediction, unexplained"
        yield Finding(slowdown.interval, UNEXPLAINED, slowdown.off, text, phase=phase)


def _derived_verdicts(run: Run, times: Mapping[RowKey, Verdict], compared: Iterable[Slowdown]) -> RowVerdicts:
    """Return the verdicts of rows that were computed from times: the worst of those times."""
    verdicts: RowVerdicts = {}
    for row in run.measurements:
        if row.metric in FOLLOW_FROM_TIME:
            verdict: Verdict = "ok"
            for metric in TIME_METRICS:
                verdict = worst_verdict((verdict, times.get((row.interval, row.phase, metric), "ok")))
            verdicts[row.interval, row.phase, row.metric] = verdict
    for slowdown in compared:
        key = (slowdown.interval, slowdown.row.phase, SLOWDOWN)
        verdicts[key] = worst_verdict((verdicts.get(key, "ok"), slowdown.verdict))
    return verdicts


def _missing_records(run: Run) -> Iterator[str]:
    """What should have been recorded and wasn't: a verdict can't be better than its evidence."""
    if run.interrupted:
        yield INTERRUPTED
    elif run.failed:
        yield f"it failed, and only what was measured until then is here: {run.failed}"
    for fabric in _uncalibrated(run):
        yield f"{fabric}: its links were not calibrated"
    names = labels(run)
    for interval in _unwatched(run):
        yield f"{place(interval, names)}: the machine's load was not recorded"


def _uncalibrated(run: Run) -> list[str]:
    """Return the fabrics whose links were not calibrated."""
    labels_without_links = dict.fromkeys(fabric.label for fabric in run.fabrics)
    for link in run.links:
        labels_without_links.pop(link.fabric, None)
    return list(labels_without_links)


def _unwatched(run: Run) -> list[IntervalId]:
    """Return the intervals with bytes or a predicted time in which the machine's load was not recorded."""
    intervals = dict.fromkeys(check.interval for check in run.bytes)
    for row in run.measurements:
        if row.unit == "s" and row.predicted:
            intervals[row.interval] = None
    for load in run.loads:
        intervals.pop(load.interval, None)
    return list(intervals)


def _interval_verdicts(run: Run, findings: tuple[Finding, ...]) -> dict[IntervalId, Verdict]:
    """Return the verdict of every interval with records: of its own findings and its fabric's links.

    A gap in the records degrades.
    """
    # a fabric that is measured in slow motion is built anew, and calibrated, for each of its dilations
    by_build = grouped(filter(_is_of_links, findings), "fabric", "dilation")
    by_interval = grouped(itertools.filterfalse(_is_of_links, findings), "interval")
    dilations = {load.interval: load.dilation for load in run.loads}
    unwatched = _unwatched(run)
    uncalibrated = _uncalibrated(run)
    verdicts: dict[IntervalId, Verdict] = {}
    for interval in _recorded_intervals(run, findings, unwatched):
        relevant: list[Finding] = list(by_interval.get(interval, ()))
        if not _has_fabric_of_its_own(interval):
            build = (interval.fabric, dilations.get(interval, 1.0))
            relevant += by_build.get(build, ())
        verdict = worst_verdict(finding.verdict for finding in relevant)
        if interval in unwatched or interval.fabric in uncalibrated:
            verdict = worst_verdict((verdict, "degraded"))
        verdicts[interval] = verdict
    # what has no records of its own is as good as the interval in which it was measured
    for row in run.measurements:
        if row.interval not in verdicts:
            watched = _watched_interval(row.interval, verdicts)
            if watched:
                verdicts[row.interval] = verdicts[watched]
    return verdicts


def _has_fabric_of_its_own(interval: IntervalId) -> bool:
    """Return whether a measure built a fabric for an interval alone: the links of the run's fabrics don't count."""
    return any(measure.has_fabric_of_its_own(interval) for measure in MEASURED.values())


def _watched_interval(interval: IntervalId, watched: Container[IntervalId]) -> IntervalId | None:
    """Return the interval whose records of the machine's load are those of another one; None if no measure has one."""
    for measure in MEASURED.values():
        candidate = measure.watched_interval(interval)
        if candidate in watched:
            return candidate
    return None


def _is_of_links(finding: Finding) -> bool:
    """Return True for a finding about the links of a fabric, False for one about an interval."""
    return finding.interval == IntervalId(finding.fabric)


def _recorded_intervals(
    run: Run, findings: Iterable[Finding], unwatched: Iterable[IntervalId]
) -> dict[IntervalId, None]:
    """Return the intervals that have a verdict of their own, each once."""
    intervals = [record.interval for record in (*run.loads, *run.bytes)]
    for finding in findings:
        if finding.limit is PROCESS_MISSING and not _is_of_links(finding):
            intervals.append(finding.interval)
    return dict.fromkeys([*intervals, *unwatched])


def _displayed(findings: Iterable[Finding], verdicts: Mapping[IntervalId, Verdict]) -> Iterator[Finding]:
    """Yield the findings for reasons: no ratio to a prediction in an interval that is invalid for another reason."""
    for finding in findings:
        if finding.limit not in (UNEXPLAINED, RESOLUTION) or verdicts.get(finding.interval, "ok") != "invalid":
            yield finding


def _reasons(findings: Iterable[Finding], names: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield a line for each quantity of a fabric that is off, worst first: its worst interval, and how many others."""
    groups = grouped((finding for finding in findings if finding.verdict != "ok"), "fabric", "limit")
    worst: list[tuple[Finding, int]] = []
    for group in groups.values():
        worst.append((max(group, key=attrgetter("value")), len(group) - 1))
    worst.sort(key=lambda item: VERDICTS.index(item[0].verdict), reverse=True)
    for finding, similar in worst:
        line = f"{finding.verdict}: {place(finding.interval, names)}: {finding.text}"
        limit = finding.limit
        if limit.degraded:
            line += f", {limit.show(getattr(limit, finding.verdict))} is the limit"
        if similar:
            line += f" (and {similar} more like it)"
        yield line


def place(interval: IntervalId, names: Mapping[tuple[str, str], str]) -> str:
    """Return an interval as text, with the labels of its fabric and policy."""
    built = (interval.fabric, interval.policy)
    label = names.get(built, " ".join(filter(None, built)))
    return interval_label(interval, label)
