"""How long each step of a recovery took: pure functions on what probes, streams and the controller saw.

All times are monotonic ns going in and ms after the fault coming out.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

BIN_MS: Final = 20.0
STEADY_BINS: Final = 10  # so long is goodput averaged over: with three streams a send more or less is then 3% of it
SMEARED: Final = 3  # bins that count together: what a late turn of a stream takes from one it gives to the next
LEAST_BINS: Final = 3  # of the last ones before the end of what is asked for, so many say that goodput is back
CATCH_UP: Final = 1.05  # of the rate before: more, which makes an outage good, doesn't make it undone
CARRIES: Final = 0.8  # of the rate before: with less, a bin is still of the outage, whatever comes after it
LATE_NS: Final = 200_000_000
RESTORED: Final = 0.95
SAME_OUTAGE: Final = 20  # probes: losses closer than this belong to one outage
IN_FLIGHT_NS: Final = 20_000_000
NEVER: Final = 1 << 62

Trace = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ProbeLog:
    """One probed pair: when each probe was sent, and when it arrived (-1: never), in ns."""

    sent_ns: tuple[int, ...]
    arrived_ns: tuple[int, ...]

    def lost(self, start_ns: int, end_ns: int) -> list[int]:
        """Numbers of the probes sent in this stretch that never arrived."""
        return [i for i, at in enumerate(self.sent_ns) if start_ns <= at < end_ns and self.arrived_ns[i] < 0]

    def held_up(self, start_ns: int, until_ns: int) -> list[int]:
        """Numbers of those sent from `start_ns` on that came only after `until_ns`, without being sent just before.

        What hangs keeps packets, and hands them on when it goes on.
        """
        sent = enumerate(self.sent_ns)
        return [i for i, at in sent if start_ns <= at < until_ns - IN_FLIGHT_NS and self.arrived_ns[i] >= until_ns]


def first_packet_ms(
    logs: Iterable[ProbeLog],
    fault_ns: int,
    repair_ns: int,
    begins_by_ns: int | None = None,
    strikes_again: bool = False,
) -> float | None:
    """When packets flowed again between the last of the pairs, for good; None if one stayed cut off until the repair.

    For each pair that is the first arrival after its last run of lost probes; what begins after `begins_by_ns` is
    another fault's outage. Of what `strikes_again` and again (it flaps, or loses at random) it is the first run. A pair
    that lost nothing was never cut off (0 ms).
    """
    worst = 0.0
    for log in logs:
        by_ns = repair_ns if begins_by_ns is None else min(begins_by_ns, repair_ns)
        end = _outage_end(log, fault_ns, repair_ns, by_ns, strikes_again)
        if end is None:
            return None
        worst = max(worst, end)
    return worst


def _outage_end(log: ProbeLog, fault_ns: int, repair_ns: int, begins_by_ns: int, strikes_again: bool) -> float | None:
    # a probe that was on its way when the fault came may be lost too
    since_ns = fault_ns - IN_FLIGHT_NS
    lost = sorted(log.lost(since_ns, repair_ns) + log.held_up(since_ns, repair_ns))
    end, first = 0.0, lost[0] if lost else NEVER
    for last, following in pairwise([*lost, NEVER]):
        if following - last <= SAME_OUTAGE:
            continue
        if log.sent_ns[first] >= begins_by_ns:
            break
        back = next((at for at in log.arrived_ns[last + 1 :] if at >= 0), repair_ns)
        if back >= repair_ns:
            return None
        if back >= fault_ns:
            end = (back - fault_ns) / 1e6
            if strikes_again:
                break
        first = following
    return end


def lost_late(logs: Iterable[ProbeLog], repair_ns: int, strikes_again: bool = False) -> int:
    """How many probes were lost in the last `LATE_NS` before a repair: a recovery has none.

    Of what `strikes_again` and again only those of pairs count of which nothing arrived in that time.
    """
    found = 0
    for log in logs:
        since_ns = repair_ns - LATE_NS
        lost = len(log.lost(since_ns, repair_ns - IN_FLIGHT_NS)) + len(log.held_up(since_ns, repair_ns))
        sent = sum(since_ns <= at < repair_ns - IN_FLIGHT_NS for at in log.sent_ns)
        found += 0 if strikes_again and lost < sent else lost
    return found


def goodput(arrivals: Sequence[tuple[int, int]], start_ns: int, end_ns: int) -> Trace:
    """Bit/s in bins of `BIN_MS` from (time in ns, bytes) of each receipt.

    A stream sends once in a bin's time what has come together since (`failure/probes/traffic_worker.py`). So a receipt
    counts for the
    `BIN_MS` before it, in two bins: else whether three or four sends of a few streams fall into a window would be noise
    of several per cent.
    """
    count = max(1, int((end_ns - start_ns) / (BIN_MS * 1e6)))
    if not arrivals:
        return np.zeros(count)
    data = np.asarray(arrivals, dtype=np.float64)
    place = (data[:, 0] - start_ns) / (BIN_MS * 1e6)
    bins = np.floor(place).astype(np.int64)
    own = data[:, 1] * (place - bins)
    totals = np.zeros(count)
    for into, amounts in ((bins, own), (bins - 1, data[:, 1] - own)):
        inside = (into >= 0) & (into < count)
        totals += np.bincount(into[inside], weights=amounts[inside], minlength=count)
    return totals * 8 / (BIN_MS / 1e3)


def ahead(trace: Trace, width: int) -> Trace:
    """Mean of each bin and the `width - 1` after it; at the end, of as many as are left."""
    sums = np.concatenate([[0.0], np.cumsum(trace)])
    begins = np.arange(len(trace))
    ends = np.minimum(begins + width, len(trace))
    means: Trace = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def restored_ms(trace: Trace, start_ns: int, since_ns: int, until_ns: int, before_bps: float) -> float | None:
    """From `since` until goodput is first back at `RESTORED` of what it was before, after it fell below.

    0 if it never fell below that; None if it fell and was not back by `until`, or if there is nothing to look at.

    It fell where a twentieth of a window of `STEADY_BINS` is missing, and is back where a window has it again (of the
    last ones, of what is left; `LEAST_BINS` at least) and its first bin carries too. Each bin counts as the mean of
    `SMEARED` and for `CATCH_UP` of the rate before at most. So what comes a bin late is neither an outage nor a
    recovery, and a burst that makes good what an outage held up doesn't hide it.
    """
    first, last = (int((at - start_ns) / (BIN_MS * 1e6)) for at in (since_ns, until_ns))
    own = trace[first:last]
    if not len(own):
        return None
    begin = max(0, first - SMEARED + 1)  # what is missing from here shows in the bins before
    lead = first - begin
    level = np.minimum(ahead(trace[begin:last], SMEARED), CATCH_UP * before_bps)
    missing = np.concatenate([before_bps - level, np.zeros(STEADY_BINS)])
    low = ahead(missing, STEADY_BINS)[: len(level)] > (1 - RESTORED) * before_bps
    if not low.any():
        return 0.0
    fell = max(0, int(np.argmax(low)) - lead)
    carries = own >= CARRIES * before_bps
    fell += int(np.argmin(carries[fell : fell + STEADY_BINS]))  # the window may begin before the bins that make it low
    back = (ahead(level, STEADY_BINS)[lead:] >= RESTORED * before_bps) & carries
    back[:fell] = False
    back[max(0, len(own) - LEAST_BINS + 1) :] = False
    return float(np.argmax(back) * BIN_MS) if back.any() else None


def step_ms(events: Iterable[tuple[int, str]], wanted: Collection[str], fault_ns: int, until_ns: int) -> float | None:
    """ms from the fault to the first event of one of these names before `until`; None if there was none."""
    times = [at for at, what in events if what in wanted and fault_ns <= at < until_ns]
    return (min(times) - fault_ns) / 1e6 if times else None
