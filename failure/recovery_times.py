"""Durations of the steps of a recovery: pure functions on probes, streams and controller events.

All times are monotonic ns going in and ms after the fault coming out.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from railyard.core.records import IN_FLIGHT_NS, RESTORED, ProbeLog

BIN_MS: Final = 20.0
# goodput is averaged over so long: with three streams, a send more or less is then 3% of it
STEADY_BINS: Final = 10
# bins that count together: what a late turn of a stream takes from one bin it gives to the next
SMOOTHING_BINS: Final = 3
# so many of the last bins before the end must say that goodput is back
MIN_BINS: Final = 3
# share of the rate before: more than this makes good for an outage, and doesn't undo it
CATCH_UP_LIMIT: Final = 1.05
# share of the rate before: a bin with less is still of the outage, whatever comes after it
MIN_BIN_SHARE: Final = 0.8
LATE_NS: Final = 200_000_000
OBSERVE_S: Final = 5.0
"""After an injection without a set repair: packets that don't flow by then are taken to flow only after the repair.

Failure scripts need no such limit: they evaluate a fault after its repair.
"""
# probes: losses closer than this belong to one outage
SAME_OUTAGE: Final = 20
NEVER: Final = 1 << 62

Trace = npt.NDArray[np.float64]


def first_packet_ms(
    logs: Iterable[ProbeLog],
    fault_ns: int,
    repair_ns: int,
    latest_start_ns: int | None = None,
    is_intermittent: bool = False,
) -> float | None:
    """Return when packets flowed again between the slowest pair, for good; None if one stayed cut off until the repair.

    For each pair, this is the first arrival after its last run of lost probes. A pair that lost nothing was never cut
    off (0 ms).

    `latest_start_ns`: a run of lost probes that begins later is another fault's outage, and is ignored.
    `is_intermittent`: the fault flaps, or loses packets at random; the first run of lost probes counts then.
    """
    limit_ns = repair_ns if latest_start_ns is None else min(latest_start_ns, repair_ns)
    slowest_ms = 0.0
    for log in logs:
        end_ms = _outage_end_ms(log, fault_ns, repair_ns, limit_ns, is_intermittent)
        if end_ms is None:
            return None
        slowest_ms = max(slowest_ms, end_ms)
    return slowest_ms


def _outage_end_ms(
    log: ProbeLog, fault_ns: int, repair_ns: int, latest_start_ns: int, is_intermittent: bool
) -> float | None:
    """Return when packets of one pair flowed again, ms after the fault; None if not before the repair."""
    # a probe that was on its way when the fault came may be lost too
    since_ns = fault_ns - IN_FLIGHT_NS
    lost = sorted(log.lost(since_ns, repair_ns) + log.delayed(since_ns, repair_ns))
    end_ms = 0.0
    first = lost[0] if lost else NEVER
    for last, following in pairwise([*lost, NEVER]):
        if following - last <= SAME_OUTAGE:
            continue
        if log.sent_ns[first] >= latest_start_ns:
            break
        recovered = next((at for at in log.arrived_ns[last + 1 :] if at >= 0), repair_ns)
        if recovered >= repair_ns:
            return None
        if recovered >= fault_ns:
            end_ms = (recovered - fault_ns) / 1e6
            if is_intermittent:
                break
        first = following
    return end_ms


def late_losses(logs: Iterable[ProbeLog], repair_ns: int, is_intermittent: bool = False) -> int:
    """Count the probes lost in the last `LATE_NS` before a repair: a recovery has none.

    For intermittent faults, count only pairs that received nothing during that time.
    """
    since_ns = repair_ns - LATE_NS
    count = 0
    for log in logs:
        lost = len(log.lost(since_ns, repair_ns - IN_FLIGHT_NS)) + len(log.delayed(since_ns, repair_ns))
        sent = sum(since_ns <= at_ns < repair_ns - IN_FLIGHT_NS for at_ns in log.sent_ns)
        # a pair that received something meanwhile loses packets by chance, as the fault makes it
        if lost >= sent or not is_intermittent:
            count += lost
    return count


def goodput(arrivals: Sequence[tuple[int, int]], start_ns: int, end_ns: int) -> Trace:
    """Return bit/s in bins of `BIN_MS`. `arrivals`: (time in ns, bytes), each for the `BIN_MS` before it."""
    count = max(1, int((end_ns - start_ns) / (BIN_MS * 1e6)))
    if not arrivals:
        return np.zeros(count)
    data = np.asarray(arrivals, dtype=np.float64)
    position = (data[:, 0] - start_ns) / (BIN_MS * 1e6)
    bins = np.floor(position).astype(np.int64)
    # A stream sends once in a bin's time what has come together since (failure/probes/traffic.py). A receipt is split
    # over the two bins of that time: else whether three or four sends of a few streams fall into a window would be
    # noise of several per cent.
    bytes_in_bin = data[:, 1] * (position - bins)
    bytes_in_bin_before = data[:, 1] - bytes_in_bin
    totals = np.zeros(count)
    for target_bins, amounts in ((bins, bytes_in_bin), (bins - 1, bytes_in_bin_before)):
        in_range = (target_bins >= 0) & (target_bins < count)
        totals += np.bincount(target_bins[in_range], weights=amounts[in_range], minlength=count)
    return totals * 8 / (BIN_MS / 1e3)


def forward_mean(trace: Trace, width: int) -> Trace:
    """Return the mean of each bin and the `width - 1` after it; at the end, of as many as are left."""
    sums = np.concatenate([[0.0], np.cumsum(trace)])
    begins = np.arange(len(trace))
    ends = np.minimum(begins + width, len(trace))
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def restored_ms(trace: Trace, start_ns: int, since_ns: int, until_ns: int, before_bps: float) -> float | None:
    """Return the ms from `since` until goodput is back at `RESTORED` of what it was before, after it fell below.

    `before_bps`: what it was before, or less where the fabric can't carry that.

    0 if it never fell below that; None if it fell and was not back by `until`, or if there is nothing to look at.

    It fell where a twentieth of a window of `STEADY_BINS` is missing, and is back where a window has it again (of the
    last ones, of what is left; `MIN_BINS` at least) and its first bin carries too.
    """
    first = int((since_ns - start_ns) / (BIN_MS * 1e6))
    last = int((until_ns - start_ns) / (BIN_MS * 1e6))
    window = trace[first:last]
    if not len(window):
        return None
    # what is missing from here shows in the bins before
    begin = max(0, first - SMOOTHING_BINS + 1)
    lead_bins = first - begin
    # The mean of a few bins, since what comes a bin late is neither an outage nor a recovery. Limited, since a burst
    # that makes good what an outage held up must not hide it.
    level = np.minimum(forward_mean(trace[begin:last], SMOOTHING_BINS), CATCH_UP_LIMIT * before_bps)
    missing = np.concatenate([before_bps - level, np.zeros(STEADY_BINS)])
    low = forward_mean(missing, STEADY_BINS)[: len(level)] > (1 - RESTORED) * before_bps
    if not low.any():
        return 0.0
    drop = max(0, int(np.argmax(low)) - lead_bins)
    carrying = window >= MIN_BIN_SHARE * before_bps
    # the window may begin before the bins that make it low
    drop += int(np.argmin(carrying[drop : drop + STEADY_BINS]))
    recovered = (forward_mean(level, STEADY_BINS)[lead_bins:] >= RESTORED * before_bps) & carrying
    recovered[:drop] = False
    recovered[max(0, len(window) - MIN_BINS + 1) :] = False
    return float(np.argmax(recovered) * BIN_MS) if recovered.any() else None


def step_ms(events_ns: Iterable[int], fault_ns: int, until_ns: int) -> float | None:
    """Return the ms from the fault to the first of these events before `until`; None if there was none."""
    in_time = [at_ns for at_ns in events_ns if fault_ns <= at_ns < until_ns]
    if not in_time:
        return None
    return (min(in_time) - fault_ns) / 1e6
