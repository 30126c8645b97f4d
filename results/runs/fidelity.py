"""Fidelity of the emulation: a verdict with its reasons, from what was recorded beside the results.

ok: believe the numbers. degraded: believe the direction, not the last percent. invalid: the machine was measured, and
not the fabric. Each measurement interval has a verdict, and the run has the worst of them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from railyard.core.host_load import FOREIGN_LIMIT, PAUSE_S
from railyard.core.records import IntervalId, Record
from railyard.results.analysis.aggregate import (
    FOLLOW_FROM_TIME,
    MAX_UNEXPLAINED,
    TIME_METRICS,
    Slowdown,
    grouped,
    labels,
    measurements_frame,
    pairs,
    rows_of,
    slowdowns,
    unexplained,
)
from railyard.results.format import digits, interval_label, percent, rate, size
from railyard.results.runs.allreduce import LostRails, lost_rails, watched_interval
from railyard.results.runs.records import (
    BACKGROUND_SENT,
    CLOCK_UNCERTAINTY,
    INJECTED_LATE,
    LATE_S,
    NOT_COMPARED,
    PROCESS,
    REPEATED,
    RUN,
    SLOWDOWN,
    UNDERLAY_BYTES,
    VERDICTS,
    ByteCheck,
    Event,
    LinkCheck,
    Load,
    Measurement,
    Run,
    Verdict,
    worst_verdict,
)

INTERRUPTED: Final = "interrupted: only what was measured until then is here"
Origin = Literal["machine", "network", "run"]
"""Of a deviation: the machine's load; links and queues, which a loaded machine slows down too; the run itself."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of a quantity: above `degraded` or `invalid` (in `unit`; "share" is 0 to 1) that is the verdict.

    `why`: the reason for these figures. `origin`: what a deviation says something about. Where links are slow, lag has
    a higher limit; limits of the same quantity are equal.
    """

    quantity: str
    degraded: float = field(compare=False)
    invalid: float = field(compare=False)
    unit: str
    origin: Origin
    why: str

    def show(self, value: float) -> str:
        """Return a value as text."""
        if math.isinf(value):
            return "never"
        if self.unit == "share":
            return percent(value, 1 if self.degraded >= 0.01 else 2)
        return f"{digits(value, 3)} {self.unit}".strip()


# fmt: off
LINK_RATE: Final = Limit("link rate", 0.03, 0.10, "share", "network",
    "times are to be within 3 to 5% of the formulas; a link that is off by more hides what is being measured")
CPU_BUSY: Final = Limit("CPU busy", 0.85, 0.97, "share", "machine",
    "above 85% packets start to wait for a core instead of their link; at 97% the cores are the bottleneck")
CPU_FOREIGN: Final = Limit("CPU used by others", FOREIGN_LIMIT, 0.40, "share", "machine",
    "another program's load comes and goes, so it spoils repeats before it fills the cores")
LAG: Final = Limit("scheduling lag p99", PAUSE_S * 1e3, 50.0, "ms", "machine",
    "a quarter of the 20 ms in which a link-down is to be healed; without faults, of a frame's time, if that is longer")
RETRANSMITS: Final = Limit("retransmitted segments", 0.001, 0.02, "share", "network",
    "a GPU fabric is lossless; one segment in a thousand already costs TCP visible time, one in fifty governs it")
NEEDLESS: Final = Limit("segments retransmitted needlessly", 0.01, 0.10, "share", "network",
    "they take as much of their links as others, and a time may be off by 5%; a tenth is the limit of bytes on rails")
DROPS: Final = Limit("packets dropped", 0.001, 0.02, "share", "network",
    "as for retransmits: a queue of the emulation overflowed that a real, lossless fabric would have paused")
PORT_BYTES: Final = Limit("rail port counters off", 0.02, 0.10, "share", "run",
    "headers are in the expected figure; what is beyond 2% was sent twice, or took another way than it should have")
BYTES: Final = Limit("bytes not as asked for", 0.0, 0.0, "B", "run",
    "every byte must arrive once, where it was sent")
CPU_STOLEN: Final = Limit("CPU stolen", 0.05, 0.40, "share", "machine",
    "other guests of the host had these cores, as if their programs ran here; a twentieth of the time may show in it")
CPU_THROTTLED: Final = Limit("CPU throttled", 0.01, 0.10, "share", "machine",
    "a CPU quota stops every process of the run at once; at a tenth of the time no figure is the fabric's")
PAUSED: Final = Limit("time in pauses", 0.05, 0.20, "share", "machine",
    "what a thread is late by beyond that limit adds up; a twentieth of the time is as much as a time may be off")
PAUSE: Final = Limit("longest pause", 10.0, 40.0, "ms", "machine",
    "in intervals with faults: half a bin of 20 ms of goodput may be missing; a link may take 40 ms to recover (p95)")
FOREIGN_BURST: Final = Limit("busiest 100 ms of others", 0.50, math.inf, "share", "machine",
    "a recovery or a short phase lies in a few of these windows; without other programs they show up to 21%")
UNEXPLAINED: Final = Limit("off its prediction, unexplained", MAX_UNEXPLAINED, math.inf, "share", "run",
    "an exact formula predicts this very time, and links are within 3 to 5% of theirs; what is more has another cause")
TOO_FAST: Final = Limit("faster than its links allow", 0.03, 0.03, "share", "run",
    "a shaper passes its rate and its idle credit, no more; rates are within 3%, so the clock or the count is wrong")
RESOLUTION: Final = Limit("share of idle credit or lag", 0.05, math.inf, "share", "run",
    "what idle credit (credit over message) or a late thread changes must not be more than what a row is judged by")
RAILS_MISSING: Final = Limit("points with a rail lost", 0.0, 0.0, "", "run",
    "without a rail that nothing cut, it is another fabric than the point is named for")
RAILS_REMEASURED: Final = Limit("times measured anew", 0.0, math.inf, "", "run",
    "a rail that nothing cut was taken for dead: the machine stood still, which it may have done unseen, too")
PROCESS_MISSING: Final = Limit("processes interrupted", 0.0, 0.0, "", "machine",
    "what a stopped or dead process should have sent, received or forwarded meanwhile is missing from the result")
CLOCKS: Final = Limit("clocks apart", 100e-6, math.inf, "s", "machine",
    "a transfer begins by one machine's clock and ends by another's; the shortest phases that are judged take ms")
UNDERLAY: Final = Limit("underlay bytes off", 0.25, math.inf, "share", "machine",
    "headers are counted, acknowledgements and control add up to 10%; what is more shares interfaces with the cables")
FAULT_LATE: Final = Limit("fault injected late", LATE_S, math.inf, "s", "machine",
    "faults less than 50 ms apart count as simultaneous; a later one meets another state of the fabric or workload")
BACKGROUND: Final = Limit("background not sent", 0.03, 0.10, "share", "machine",
    "as for link rates: beside less background than was asked for, a path is faster than its prediction")
LIMITS: Final = (
    LINK_RATE, CPU_BUSY, CPU_FOREIGN, CPU_STOLEN, CPU_THROTTLED, LAG, PAUSED, PAUSE, FOREIGN_BURST, RETRANSMITS,
    NEEDLESS, DROPS, PORT_BYTES, BYTES, UNEXPLAINED, TOO_FAST, RESOLUTION, RAILS_MISSING, RAILS_REMEASURED,
    PROCESS_MISSING, FAULT_LATE, BACKGROUND, CLOCKS, UNDERLAY)
# fmt: on


UNDERLAY_FLOOR_BYTES: Final = 1e6
"""Of fewer bytes between machines, control messages may be most."""
_BUSY: Final = (CPU_BUSY, CPU_FOREIGN, CPU_STOLEN, CPU_THROTTLED, LAG, PAUSED, PAUSE)
"""Limits that a machine exceeds which is busy with something else than the run."""


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """One quantity in one interval, set against its limit.

    The interval has a fabric only where it holds for the whole fabric, as it was built with this `dilation`.
    """

    limit: Limit
    value: float
    text: str
    dilation: float = 1.0
    phase: str | None = None  # of the row that it is about; None: of the whole interval

    @property
    def verdict(self) -> Verdict:
        """Verdict on its value."""
        value, limit = self.value, self.limit
        return "invalid" if value > limit.invalid else "degraded" if value > limit.degraded else "ok"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, with the limit that it exceeds, or else the first one that it could."""
        return {
            "interval": self.interval.as_dict(),
            "quantity": self.limit.quantity,
            "origin": self.limit.origin,
            "value": self.value,
            "limit": self.limit.invalid if self.verdict == "invalid" else self.limit.degraded,
            "unit": self.limit.unit,
            "verdict": self.verdict,
            "text": self.text,
        }


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
        """How the machine alone made measurements invalid.

        Empty if they are not invalid, or if the run itself is a reason too: a lost byte is no matter of load.
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
    faulted = {x.interval for x in run.loads if x.transfers_faulted}
    times = tuple(_times(run))
    own = (
        *link_findings(run.links),
        *(f for load in run.loads for f in load_findings(load)),
        *(f for row, found in times for f in found if _counts(row, f)),
        *(_clocks(row) for row in run.measurements if row.metric == CLOCK_UNCERTAINTY),
        *(_underlay(row, row.predicted) for row in run.measurements if row.metric == UNDERLAY_BYTES and row.predicted),
        *map(_lost, lost_rails(run.events)),
        *(f for event in run.events for f in _of_event(event)),
        *(f for check in run.bytes if check.interval not in faulted for f in _bytes(check, run.is_steered)),
    )
    missing_records = tuple(_missing_records(run))
    if not own:
        nothing = "nothing was recorded that could vouch for this run"
        unknown: dict[IntervalId, Verdict] = dict.fromkeys((m.interval for m in run.measurements), "invalid")
        return Judgement("invalid", (nothing, *missing_records), (), unknown)
    intervals = _interval_verdicts(run, own)
    rows = {(row.interval, row.phase, row.metric): _of_time(row, found) for row, found in times}
    compared = _slowdowns(run, Judgement("ok", (), (), intervals, rows))
    findings = (*own, *_of_slowdowns(run, compared))
    verdict = worst_verdict((*(f.verdict for f in findings), "degraded" if missing_records else "ok"))
    reasons = (*_reasons(_displayed(findings, intervals), labels(run)), *missing_records)
    rows |= _of_derived(run, rows, compared)
    machine = (f for f in findings if f.limit.origin == "machine" and f.verdict == "invalid")
    disturbed = frozenset(f.interval for f in machine)
    return Judgement(verdict, reasons, findings, intervals, rows, disturbed)


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


def link_findings(links: Sequence[LinkCheck]) -> Iterator[Finding]:
    """Yield the link of each class that is furthest off: a collective takes as long as its slowest link."""

    def error(link: LinkCheck) -> float:
        return abs(link.measured_bps / link.expected_bps - 1) if link.expected_bps else 1.0

    for (fabric, name, dilation), sample in grouped(links, "fabric", "link_class", "dilation").items():
        worst = max(sample, key=error)
        text = f"{name} link {worst.link} carries {rate(worst.measured_bps)}, expected {rate(worst.expected_bps)}"
        yield Finding(IntervalId(fabric), LINK_RATE, error(worst), text, dilation)


def load_findings(load: Load) -> Iterator[Finding]:
    """Yield what the machine's load says of one interval."""
    where = load.interval
    yield Finding(where, CPU_BUSY, load.cpu_busy, f"{percent(load.cpu_busy)} of all cores busy")
    text = f"{percent(load.cpu_foreign)} of all cores used by other programs"
    yield Finding(where, CPU_FOREIGN, load.cpu_foreign, text)
    text = f"a 1 ms sleeper woke {load.lag_p99_ms:.1f} ms late (99th percentile)"
    lag = replace(LAG, degraded=load.late_ms, invalid=max(LAG.invalid, load.late_ms))
    yield Finding(where, lag, load.lag_p99_ms, text)
    text = f"{percent(load.cpu_stolen)} of all cores had by other guests of the host"
    yield Finding(where, CPU_STOLEN, load.cpu_stolen, text)
    text = f"stopped by a CPU quota for {percent(load.cpu_throttled)} of the time"
    yield Finding(where, CPU_THROTTLED, load.cpu_throttled, text)
    text = f"{percent(load.paused)} of the time in pauses of over {digits(load.late_ms, 2)} ms"
    yield Finding(where, PAUSED, load.paused, text)
    text = f"{percent(load.foreign_100ms)} of all cores used by other programs for 100 ms"
    yield Finding(where, FOREIGN_BURST, load.foreign_100ms, text)
    if load.transfers_faulted:
        yield Finding(where, PAUSE, load.pause_ms, f"the machine paused for {load.pause_ms:.0f} ms")
        return  # links were cut on purpose: what that loses is the result, and not a fault of the emulation
    retransmitted, dropped = (count / max(1, load.segments) for count in (load.retransmits, load.drops))
    if not load.rerouted:
        text = f"{load.retransmits:,} of {load.segments:,} segments retransmitted ({percent(retransmitted, 2)})"
        yield Finding(where, RETRANSMITS, retransmitted, text)
        again = load.needless_retransmits / max(1, load.segments)
        text = f"TCP sent {load.needless_retransmits:,} of {load.segments:,} segments again, which had arrived"
        yield Finding(where, NEEDLESS, again, f"{text} ({percent(again)})")
    text = f"{load.drops:,} packets dropped for {load.segments:,} segments sent ({percent(dropped, 2)})"
    if load.drops_node:
        text += f", most at {load.drops_node}, port {load.drops_interface} ({load.drops_most:,})"
    yield Finding(where, DROPS, dropped, text)


def _clocks(row: Measurement) -> Finding:
    text = f"clocks of its machines known to {digits(row.value * 1e6, 3)} us"
    return Finding(row.interval, CLOCKS, row.value, text)


def _underlay(row: Measurement, predicted: float) -> Finding:
    off = abs(row.value - predicted) / max(predicted, UNDERLAY_FLOOR_BYTES)
    text = f"interfaces between the machines sent {size(row.value)}, expected {size(predicted)} ({percent(off)} off)"
    return Finding(row.interval, UNDERLAY, off, text)


def _bytes(check: ByteCheck, is_steered: bool) -> Iterator[Finding]:
    """Of steered runs it may not be known what the rail ports should have counted."""
    wrong = abs(check.delivered_bytes - check.asked_bytes)
    text = f"{size(check.delivered_bytes)} delivered of {size(check.asked_bytes)}, {check.pairs_wrong} GPU pairs differ"
    yield Finding(check.interval, BYTES, float(max(wrong, check.pairs_wrong)), text)
    counted, expected = check.rail_port_bytes, check.rail_expected_bytes
    if not is_steered or expected > 0:
        # a workload that stays in its HB domains expects nothing on the rails: set what is there against what was sent
        off = abs(counted - expected) / (expected or check.asked_bytes or 1)
        text = f"rail ports counted {size(counted)}, expected {size(expected)} with headers ({percent(off)} off)"
        yield Finding(check.interval, PORT_BYTES, off, text)


def _times(run: Run) -> Iterator[tuple[Measurement, list[Finding]]]:
    """Yield each time that has a prediction, with what makes it more or less than that.

    A whole that is below resolution is a finding on its interval, which is then degraded; a phase is marked alone. So
    is every phase of a run of an earlier version, which recorded no resolution.
    """
    # times are of the fabric, where time may pass slower than by the clock
    lag_s = {load.interval: load.lag_p99_ms / 1e3 / load.dilation for load in run.loads}
    for row in run.measurements:
        if row.ratio is None or row.unit != "s":
            if row.not_compared:
                yield row, []
            continue
        name, found = row.phase or "the whole", list[Finding]()
        late = lag_s.get(row.interval, 0.0) / row.value if row.value else math.inf
        if row.frames is not None:  # what its links' shapers could pass at once was recorded
            share = max(row.credit_share, late)
            text = f"idle credit or a late thread may change {name} by {percent(share)}"
            found.append(Finding(row.interval, RESOLUTION, share, text, phase=row.phase))
            if row.explained_least and row.credit_share < 1:
                fast = max(0.0, 1 - row.ratio / row.explained_least / (1 - row.credit_share))
                text = f"{name} took {digits(row.ratio, 4)} of its prediction, which its links do not allow"
                found.append(Finding(row.interval, TOO_FAST, fast, text, phase=row.phase))
        if row.explained_least and not _is_not_compared(row):
            most, is_coarse = row.explained_most, any(f.verdict != "ok" for f in found)
            # below resolution it may be as much slower as threads are late; how fast it may be was judged above
            ratio, least = (row.ratio / (1 + late), 0.0) if is_coarse else (row.ratio, row.explained_least)
            off = unexplained(ratio, least, most)
            beyond = f" beyond {digits(most, 4)}" if 1.005 < most < math.inf else ""
            text = f"{name} took {digits(row.ratio, 4)} of its prediction, unexplained{beyond}"
            found.append(Finding(row.interval, UNEXPLAINED, off, text, phase=row.phase))
        yield row, found


def _counts(row: Measurement, finding: Finding) -> bool:
    """Return whether a finding on a time is one on its interval too. A prediction that judges no time degrades none."""
    if finding.limit is RESOLUTION:
        return not row.phase and row.explained_least > 0
    return not row.phase or row.frames is not None


def _of_time(row: Measurement, found: Iterable[Finding]) -> Verdict:
    """Return a time's own verdict: invalid, then its deviation's, then below resolution, then not compared."""
    verdicts = {f.limit: f.verdict for f in found}
    if verdicts.get(TOO_FAST, "ok") != "ok":
        return "invalid"
    if verdicts.get(UNEXPLAINED, "ok") != "ok":
        return "degraded"
    if verdicts.get(RESOLUTION, "ok") != "ok":
        return "below resolution"
    return "not compared" if _is_not_compared(row) else "ok"


def _is_not_compared(row: Measurement) -> bool:
    """Return whether a time has a reason not to be set against its prediction; earlier versions recorded only one."""
    return bool(row.not_compared or row.shares_links_with)


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


def _lost(lost: LostRails) -> Finding:
    limit, effect = (RAILS_MISSING, "in operations that count") if lost.kept else (RAILS_REMEASURED, "measured anew")
    return Finding(lost.interval, limit, 1.0, f"{', '.join(lost.rails)} lost while nothing was cut, {effect}")


def _of_event(event: Event) -> Iterator[Finding]:
    where = IntervalId.of(event.detail)
    if event.source == PROCESS and event.what != BACKGROUND_SENT:
        yield Finding(where, PROCESS_MISSING, 1.0, str(event.detail["text"]))
    elif (event.source, event.what) == (RUN, INJECTED_LATE):
        yield Finding(where, FAULT_LATE, float(event.detail["seconds"]), str(event.detail["text"]))
    elif event.source == PROCESS:
        sent, requested = event.detail["sent"], event.detail["requested"]
        missing = max(0.0, 1 - sent / requested) if requested else 0.0
        yield Finding(where, BACKGROUND, missing, f"{size(sent)} of background sent of {size(requested)}")


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
    dilations = {load.interval: load.dilation for load in run.loads}
    of_links = grouped([f for f in findings if f.interval == IntervalId(f.fabric)], "fabric", "dilation")
    own = grouped([f for f in findings if f.interval != IntervalId(f.fabric)], "interval")
    verdicts: dict[IntervalId, Verdict] = {}
    interrupted = [f for f in findings if f.limit is PROCESS_MISSING and f.interval != IntervalId(f.fabric)]
    unwatched, uncalibrated = _unwatched(run), _uncalibrated(run)
    for key in dict.fromkeys((*(x.interval for x in (*run.loads, *run.bytes, *interrupted)), *unwatched)):
        # a step of a GPU replacement has a fabric of its own, with spares
        links = [] if key.script and key.part else of_links.get((key.fabric, dilations.get(key, 1.0)), [])
        gap: Verdict = "degraded" if key in unwatched or key.fabric in uncalibrated else "ok"
        verdicts[key] = worst_verdict((gap, *(f.verdict for f in (*own.get(key, ()), *links))))
    for key in dict.fromkeys(m.interval for m in run.measurements):
        if key not in verdicts and (watched := verdicts.get(watched_interval(key))):
            verdicts[key] = watched
    return verdicts


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
