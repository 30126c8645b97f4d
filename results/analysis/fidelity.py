"""Fidelity of the emulation: a verdict with its reasons, from what was recorded beside the results.

ok: believe the numbers. degraded: believe the direction, not the last percent. invalid: the machine was measured, and
not the fabric. Each measurement interval has a verdict, and the run has the worst of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from railyard.core.records import IntervalId
from railyard.results.analysis.aggregate import (
    FOLLOW_FROM_TIME,
    TIME_METRICS,
    Slowdown,
    grouped,
    labels,
    measurements_frame,
    pairs,
    rows_of,
    slowdowns,
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
    LAG,
    PAUSE,
    PAUSED,
    PROCESS_MISSING,
    RESOLUTION,
    UNEXPLAINED,
)
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


_BUSY: Final = (CPU_BUSY, CPU_FOREIGN, CPU_STOLEN, CPU_THROTTLED, LAG, PAUSED, PAUSE)
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
    rows: dict[tuple[IntervalId, str, str], Verdict] = field(default_factory=dict)
    disturbed: frozenset[IntervalId] = frozenset()

    @property
    def machine_reason(self) -> str:
        """Reason in words why measurements are invalid, if the machine is the only reason.

        Empty if they are not invalid, or if the run itself is a reason too: no load of the machine loses a byte.
        """
        origins = {finding.limit.origin for finding in self.evidence if finding.verdict == "invalid"}
        if "run" in origins or "machine" not in origins:
            return ""
        return next(
            finding.text
            for finding in self.evidence
            if finding.verdict == "invalid" and finding.limit.origin == "machine"
        )

    def of_row(self, row: Measurement) -> Verdict:
        """Return the verdict of a measurement: of its interval, and of its own deviation from its prediction."""
        own = self.rows.get((row.interval, row.phase, row.metric), "ok")
        of_interval = self.intervals.get(row.interval, "ok")
        return own if own in NOT_COMPARED and of_interval != "invalid" else worst_verdict((of_interval, own))


def judge(run: Run) -> Judgement:
    """Return the worst of all findings; a run with no evidence at all is invalid, one with gaps at best degraded."""
    times = tuple(time_findings(run))
    recorded = tuple(_recorded_findings(run, times))
    missing_records = tuple(_missing_records(run))
    if not recorded:
        nothing = "nothing was recorded that could vouch for this run"
        unknown: dict[IntervalId, Verdict] = dict.fromkeys((m.interval for m in run.measurements), "invalid")
        return Judgement("invalid", (nothing, *missing_records), (), unknown)
    intervals = _interval_verdicts(run, recorded)
    rows = {(row.interval, row.phase, row.metric): verdict_of_time(row, deviations) for row, deviations in times}
    compared = _slowdowns(run, Judgement("ok", (), (), intervals, rows))
    findings = (*recorded, *_of_slowdowns(run, compared))
    verdict = worst_verdict((*(f.verdict for f in findings), "degraded" if missing_records else "ok"))
    reasons = (*_reasons(_displayed(findings, intervals), labels(run)), *missing_records)
    rows |= _of_derived(run, rows, compared)
    machine = (f for f in findings if f.limit.origin == "machine" and f.verdict == "invalid")
    disturbed = frozenset(f.interval for f in machine)
    return Judgement(verdict, reasons, findings, intervals, rows, disturbed)


def _recorded_findings(run: Run, times: Iterable[tuple[Measurement, list[Finding]]]) -> Iterator[Finding]:
    """Yield a finding for each quantity that was recorded. `times`: those with a prediction, and their deviations."""
    yield from link_findings(run.links)
    for load in run.loads:
        yield from load_findings(load)
    for row, deviations in times:
        yield from (finding for finding in deviations if counts_for_interval(row, finding))
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

    Empty if they are not invalid, or invalid for another reason too: a lost byte would be lost again, or hidden. The
    same if the run alone loads the machine beyond its limit.
    """
    invalid = [finding for finding in judge(run).evidence if finding.verdict == "invalid"]
    own = [load.cpu_busy - load.cpu_foreign - load.cpu_stolen for load in run.loads]
    if any(f.limit not in (*_BUSY, BACKGROUND) for f in invalid) or max(own, default=0.0) > CPU_BUSY.invalid:
        return ""
    return next((finding.text for finding in invalid if finding.limit in _BUSY), "")


def repeats(run: Run) -> dict[IntervalId, list[str]]:
    """Return the intervals that were measured again, and how the machine was busy each time before."""
    found: dict[IntervalId, list[str]] = {}
    for event in run.events:
        if (event.source, event.what) == (RUN, REPEATED):
            found.setdefault(IntervalId.of(event.detail), []).append(str(event.detail["text"]))
    return found


def _slowdowns(run: Run, judged: Judgement) -> tuple[Slowdown, ...]:
    """Return the comparisons of fabrics, of times with their verdicts."""
    if not pairs(run):
        return ()
    rows = rows_of(run, measurements_frame(run, judged.of_row))
    return slowdowns(run, [row for row in rows if row.metric in TIME_METRICS])


def _of_slowdowns(run: Run, compared: Iterable[Slowdown]) -> Iterator[Finding]:
    """Yield what comparisons are off their formulas; as of times, not of phases whose resolution is not known."""
    resolved = {(m.interval.work, m.phase) for m in run.measurements if m.frames is not None}
    for s in compared:
        if s.predicted and (not s.row.phase or (s.row.work, s.row.phase) in resolved):
            off = digits(s.measured / s.predicted, 4)
            text = (
                f"{s.row.phase or 'the whole'} over that on {s.rail_optimized} is {off} of its prediction, unexplained"
            )
            yield Finding(s.interval, UNEXPLAINED, s.off, text, phase=s.row.phase)


_Rows = dict[tuple[IntervalId, str, str], Verdict]


def _of_derived(run: Run, times: Mapping[tuple[IntervalId, str, str], Verdict], compared: Iterable[Slowdown]) -> _Rows:
    """Return the verdicts of rows that were computed from times: the worst of those times."""
    found: _Rows = {}
    for m in run.measurements:
        if m.metric in FOLLOW_FROM_TIME:
            own = (times.get((m.interval, m.phase, metric), "ok") for metric in TIME_METRICS)
            found[m.interval, m.phase, m.metric] = worst_verdict(own)
    for s in compared:
        key = (s.interval, s.row.phase, SLOWDOWN)
        found[key] = worst_verdict((found.get(key, "ok"), s.verdict))
    return found


def _missing_records(run: Run) -> Iterator[str]:
    """What should have been recorded and wasn't: a verdict can't be better than its evidence."""
    if run.interrupted:
        yield INTERRUPTED
    elif run.failed:
        yield f"it failed, and only what was measured until then is here: {run.failed}"
    yield from (f"{fabric}: its links were not calibrated" for fabric in _uncalibrated(run))
    names = labels(run)
    yield from (f"{place(interval, names)}: the machine's load was not recorded" for interval in _unwatched(run))


def _uncalibrated(run: Run) -> list[str]:
    """Return the fabrics whose links were not calibrated."""
    calibrated = {link.fabric for link in run.links}
    return [fabric.label for fabric in run.fabrics if fabric.label not in calibrated]


def _unwatched(run: Run) -> list[IntervalId]:
    """Return the intervals with bytes or a predicted time in which the machine's load was not recorded."""
    watched = {load.interval for load in run.loads}
    timed = (m.interval for m in run.measurements if m.unit == "s" and m.predicted)
    return [i for i in dict.fromkeys((*(check.interval for check in run.bytes), *timed)) if i not in watched]


def _interval_verdicts(run: Run, findings: tuple[Finding, ...]) -> dict[IntervalId, Verdict]:
    """Return the verdict of every interval with records: of its own findings and its fabric's links.

    A fabric that is measured in slow motion is calibrated as often as it is built. A gap in the records degrades.
    """
    link_findings = [finding for finding in findings if _is_of_links(finding)]
    by_build = grouped(link_findings, "fabric", "dilation")
    by_interval = grouped([finding for finding in findings if not _is_of_links(finding)], "interval")
    dilations = {load.interval: load.dilation for load in run.loads}
    unwatched = _unwatched(run)
    uncalibrated = _uncalibrated(run)
    verdicts: dict[IntervalId, Verdict] = {}
    for interval in _recorded_intervals(run, findings, unwatched):
        parts: list[Verdict] = [finding.verdict for finding in by_interval.get(interval, ())]
        # a step of a GPU replacement has a fabric of its own, with spares
        is_replacement = bool(interval.script and interval.part)
        if not is_replacement:
            build = (interval.fabric, dilations.get(interval, 1.0))
            parts += [finding.verdict for finding in by_build.get(build, ())]
        if interval in unwatched or interval.fabric in uncalibrated:
            parts.append("degraded")
        verdicts[interval] = worst_verdict(parts)
    # what has no records of its own is as good as the interval in which it was measured
    for interval in dict.fromkeys(measurement.interval for measurement in run.measurements):
        if interval in verdicts:
            continue
        for measure in MEASURED.values():
            watched = measure.watched_interval(interval)
            if watched in verdicts:
                verdicts[interval] = verdicts[watched]
    return verdicts


def _is_of_links(finding: Finding) -> bool:
    """Return True for a finding about the links of a fabric, False for one about an interval."""
    return finding.interval == IntervalId(finding.fabric)


def _recorded_intervals(
    run: Run, findings: Iterable[Finding], unwatched: Iterable[IntervalId]
) -> dict[IntervalId, None]:
    """Return the intervals that have a verdict of their own, each once."""
    intervals = [load.interval for load in run.loads]
    intervals += [check.interval for check in run.bytes]
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
    groups = grouped([f for f in findings if f.verdict != "ok"], "fabric", "limit").values()
    worst = [(max(group, key=lambda f: f.value), len(group) - 1) for group in groups]
    for finding, more in sorted(worst, key=lambda item: VERDICTS.index(item[0].verdict), reverse=True):
        limit = finding.limit
        allowed = f", {limit.show(getattr(limit, finding.verdict))} is the limit" if limit.degraded else ""
        others = f" (and {more} more like it)" if more else ""
        yield f"{finding.verdict}: {place(finding.interval, names)}: {finding.text}{allowed}{others}"


def place(interval: IntervalId, names: Mapping[tuple[str, str], str]) -> str:
    """Return an interval as text, with the labels of its fabric and policy."""
    place = (interval.fabric, interval.policy)
    return interval_label(interval, names.get(place, " ".join(filter(None, place))))
