"""Findings on the fidelity of a run: each recorded quantity of an interval, set against its limit."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from railyard.core.host_load import STEP_S
from railyard.core.records import IntervalId, Record
from railyard.results.analysis.aggregate import grouped, unexplained
from railyard.results.analysis.limits import (
    BYTES,
    CLOCKS,
    CPU_BUSY,
    CPU_FOREIGN,
    CPU_RESOLUTION,
    CPU_STOLEN,
    CPU_THROTTLED,
    DROPS,
    FAULT_LATE,
    FOREIGN_BURST,
    LAG,
    LINK_RATE,
    NEEDLESS,
    PAUSE,
    PAUSED,
    PORT_BYTES,
    PROCESS_MISSING,
    RESOLUTION,
    RETRANSMITS,
    TOO_FAST,
    UNDERLAY,
    UNDERLAY_FLOOR_BYTES,
    UNEXPLAINED,
    Limit,
)
from railyard.results.format import digits, percent, rate, size
from railyard.results.runs.records import (
    INJECTED_LATE,
    INTERRUPTIONS,
    PROCESS,
    RUN,
    ByteCheck,
    Event,
    LinkCheck,
    Load,
    Measurement,
    Run,
    Verdict,
)

SATURATED: Final = 0.98
"""Share of all cores in a window of 100 ms from which nothing was left for more traffic."""


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
        if self.value > self.limit.invalid:
            return "invalid"
        if self.value > self.limit.degraded:
            return "degraded"
        return "ok"

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


def link_findings(links: Sequence[LinkCheck]) -> Iterator[Finding]:
    """Yield the link of each class that is furthest off: a collective takes as long as its slowest link."""

    def error(link: LinkCheck) -> float:
        if not link.expected_bps:
            return 1.0
        return abs(link.measured_bps / link.expected_bps - 1)

    for (fabric, name, dilation), sample in grouped(links, "fabric", "link_class", "dilation").items():
        worst = max(sample, key=error)
        text = f"{name} link {worst.link} carries {rate(worst.measured_bps)}, expected {rate(worst.expected_bps)}"
        yield Finding(IntervalId(fabric), LINK_RATE, error(worst), text, dilation)


def _limit_of_share(limit: Limit, load: Load) -> Limit:
    """Return the limit of a share of the cores in an interval.

    An interval so short that a tick is much of it is degraded for that, and invalid only if no rounding explains it.
    """
    if load.cpu_resolution <= CPU_RESOLUTION.degraded:
        return limit
    return replace(limit, invalid=limit.invalid + load.cpu_resolution)


def load_findings(load: Load) -> Iterator[Finding]:
    """Yield what the machine's load says of one interval."""
    where = load.interval
    text = f"{percent(load.cpu_busy)} of all cores busy"
    yield Finding(where, _limit_of_share(CPU_BUSY, load), load.cpu_busy, text)
    text = f"{percent(load.cpu_foreign)} of all cores used by other programs"
    yield Finding(where, _limit_of_share(CPU_FOREIGN, load), load.cpu_foreign, text)
    text = f"a thread that slept 1 ms woke {load.lag_p99_ms:.1f} ms late (99th percentile)"
    lag = replace(LAG, degraded=load.late_ms, invalid=max(LAG.invalid, load.late_ms))
    yield Finding(where, lag, load.lag_p99_ms, text)
    text = f"{percent(load.cpu_stolen)} of all cores had by other guests of the host"
    yield Finding(where, _limit_of_share(CPU_STOLEN, load), load.cpu_stolen, text)
    text = f"stopped by a CPU quota for {percent(load.cpu_throttled)} of the time"
    yield Finding(where, CPU_THROTTLED, load.cpu_throttled, text)
    # runs of an earlier version did not record it
    if load.cpu_resolution:
        text = f"the kernel's ticks may change shares of the cores by {percent(load.cpu_resolution)}"
        yield Finding(where, CPU_RESOLUTION, load.cpu_resolution, text)
    text = f"{percent(load.paused)} of the time in pauses of over {digits(load.late_ms, 2)} ms"
    yield Finding(where, PAUSED, load.paused, text)
    text = f"{percent(load.foreign_100ms)} of all cores used by other programs for 100 ms"
    yield Finding(where, FOREIGN_BURST, load.foreign_100ms, text)
    if load.transfers_faulted:
        yield Finding(where, PAUSE, load.pause_ms, f"the machine paused for {load.pause_ms:.0f} ms")
        # links were cut on purpose: what that loses is the result, and not a fault of the emulation
        return
    segments = max(1, load.segments)
    if not load.rerouted:
        retransmitted = load.retransmits / segments
        text = f"{load.retransmits:,} of {load.segments:,} segments retransmitted ({percent(retransmitted, 2)})"
        yield Finding(where, RETRANSMITS, retransmitted, text)
        again = load.needless_retransmits / segments
        text = f"TCP sent {load.needless_retransmits:,} of {load.segments:,} segments again, which had arrived"
        yield Finding(where, NEEDLESS, again, f"{text} ({percent(again)})")
    dropped = load.drops / segments
    text = f"{load.drops:,} packets dropped for {load.segments:,} segments sent ({percent(dropped, 2)})"
    if load.drops_node:
        text += f", most at {load.drops_node}, port {load.drops_interface} ({load.drops_most:,})"
    yield Finding(where, DROPS, dropped, text)


def clock_finding(row: Measurement) -> Finding:
    """Return how far the clocks of a fabric's machines may be apart."""
    text = f"clocks of its machines known to {digits(row.value * 1e6, 3)} us"
    return Finding(row.interval, CLOCKS, row.value, text)


def underlay_finding(row: Measurement, predicted: float) -> Finding:
    """Return how far the bytes between machines are off those that the cables of the fabric explain."""
    off = abs(row.value - predicted) / max(predicted, UNDERLAY_FLOOR_BYTES)
    text = f"interfaces between the machines sent {size(row.value)}, expected {size(predicted)} ({percent(off)} off)"
    return Finding(row.interval, UNDERLAY, off, text)


def byte_findings(check: ByteCheck, is_port_traffic_known: bool) -> Iterator[Finding]:
    """Yield the bytes delivered, and those of the rails' ports.

    `is_port_traffic_known`: False where policies ran in turn; nothing that is expected of ports then means not known.
    """
    wrong = abs(check.delivered_bytes - check.asked_bytes)
    text = f"{size(check.delivered_bytes)} delivered of {size(check.asked_bytes)}, {check.pairs_wrong} GPU pairs differ"
    yield Finding(check.interval, BYTES, float(max(wrong, check.pairs_wrong)), text)
    counted = check.rail_port_bytes
    expected = check.rail_expected_bytes
    if is_port_traffic_known or expected > 0:
        # a workload that stays in its HB domains expects nothing on the rails: set what is there against what was sent
        off = abs(counted - expected) / (expected or check.asked_bytes or 1)
        text = f"rail ports counted {size(counted)}, expected {size(expected)} with headers ({percent(off)} off)"
        yield Finding(check.interval, PORT_BYTES, off, text)


def time_findings(run: Run) -> Iterator[tuple[Measurement, list[Finding]]]:
    """Yield each time that has a prediction, with what makes it more or less than that.

    A whole that is below resolution is a finding on its interval, which is then degraded; a phase is marked alone. So
    is every phase of a run of an earlier version, which recorded no resolution.
    """
    # times are of the fabric, where time may pass slower than by the clock
    lag_s = {load.interval: load.lag_p99_ms / 1e3 / load.dilation for load in run.loads}
    pause_s = {load.interval: load.pause_ms / 1e3 / load.dilation for load in run.loads}
    saturated_s = _saturated_seconds(run)
    for row in run.measurements:
        if row.ratio is None or row.unit != "s":
            if row.not_compared:
                yield row, []
            continue
        late_share = math.inf
        if row.value:
            late_share = lag_s.get(row.interval, 0.0) / row.value
        deviations: list[Finding] = []
        # runs of an earlier version did not record what their links' shapers could pass at once
        if row.frames is not None:
            deviations += _resolution_findings(row, row.ratio, late_share)
        if row.explained_least and not is_not_compared(row):
            is_coarse = any(finding.verdict != "ok" for finding in deviations)
            late_s = 0.0
            if is_coarse:
                # one pause may fall into a time as short as that, and the 99th percentile leaves it out
                late_s = max(lag_s.get(row.interval, 0.0), pause_s.get(row.interval, 0.0))
            finding = _unexplained_finding(row, row.ratio, late_s, is_coarse)
            if row.ratio > 1 and row.interval in saturated_s:
                finding = replace(finding, text=f"{finding.text}; {saturated_s[row.interval]}")
            deviations.append(finding)
        yield row, deviations


def _saturated_seconds(run: Run) -> dict[IntervalId, str]:
    """Return for how long all cores were busy in each interval where they were, as text.

    The mean over an interval doesn't show it: a step may compute, which is a pause here, for most of its time.
    """
    windows = Counter(sample.interval for sample in run.machine if sample.busy >= SATURATED)
    texts: dict[IntervalId, str] = {}
    for interval, number in windows.items():
        # one window of 100 ms may be that of connecting
        if number > 1:
            texts[interval] = f"all cores were busy for {digits(2 * number * STEP_S, 2)} s of the interval"
    return texts


def _resolution_findings(row: Measurement, ratio: float, late_share: float) -> Iterator[Finding]:
    """Yield by how much idle credit and late threads may change a time, and how much faster than its links it is.

    `ratio`: measured over predicted. `late_share`: of the time, by which a thread may wake late.
    """
    name = row.phase or "the whole"
    share = max(row.credit_share, late_share)
    text = f"idle credit or a late thread may change {name} by {percent(share)}"
    yield Finding(row.interval, RESOLUTION, share, text, phase=row.phase)
    if row.explained_least and row.credit_share < 1:
        too_fast = max(0.0, 1 - ratio / row.explained_least / (1 - row.credit_share))
        text = f"{name} took {digits(ratio, 4)} of its prediction, which its links do not allow"
        yield Finding(row.interval, TOO_FAST, too_fast, text, phase=row.phase)


def _unexplained_finding(row: Measurement, ratio: float, late_s: float, is_coarse: bool) -> Finding:
    """Return by how much a time is off the ratios to its prediction that the theory explains.

    `is_coarse`: the time is below resolution. `late_s`: the time by which threads may have prolonged it, s.
    """
    name = row.phase or "the whole"
    most = row.explained_most
    if is_coarse:
        # it may be as much slower as threads are late; how fast it may be is judged by TOO_FAST
        late_share = min(1.0, late_s / row.value) if row.value else 1.0
        off = unexplained(ratio * (1 - late_share), 0.0, most)
    else:
        off = unexplained(ratio, row.explained_least, most)
    text = f"{name} took {digits(ratio, 4)} of its prediction, unexplained"
    if 1.005 < most < math.inf:
        text += f" beyond {digits(most, 4)}"
    return Finding(row.interval, UNEXPLAINED, off, text, phase=row.phase)


def counts_for_interval(row: Measurement, finding: Finding) -> bool:
    """Return whether a finding on a time is one on its interval too. A prediction that judges no time degrades none."""
    if finding.limit is RESOLUTION:
        return not row.phase and row.explained_least > 0
    return not row.phase or row.frames is not None


def verdict_of_time(row: Measurement, deviations: Iterable[Finding]) -> Verdict:
    """Return a time's own verdict: invalid, then its deviation's, then below resolution, then not compared."""
    verdicts = {finding.limit: finding.verdict for finding in deviations}
    if verdicts.get(TOO_FAST, "ok") != "ok":
        return "invalid"
    if verdicts.get(UNEXPLAINED, "ok") != "ok":
        return "degraded"
    if verdicts.get(RESOLUTION, "ok") != "ok":
        return "below resolution"
    if is_not_compared(row):
        return "not compared"
    return "ok"


def is_not_compared(row: Measurement) -> bool:
    """Return whether a time has a reason not to be set against its prediction; earlier versions recorded only one."""
    return bool(row.not_compared or row.shares_links_with)


def event_findings(event: Event) -> Iterator[Finding]:
    """Yield an interrupted process, or a fault that was injected late."""
    where = IntervalId.of(event.detail)
    if event.source == PROCESS and event.what in INTERRUPTIONS:
        yield Finding(where, PROCESS_MISSING, 1.0, str(event.detail["text"]))
    elif (event.source, event.what) == (RUN, INJECTED_LATE):
        limit = FAULT_LATE
        if event.detail.get("missed"):
            # the interval has not what it is to measure
            limit = replace(FAULT_LATE, degraded=0.0, invalid=0.0)
        yield Finding(where, limit, float(event.detail["seconds"]), str(event.detail["text"]))
