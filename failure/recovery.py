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
    logs: Iterable[ProbeLog], fault_ns: int, repair_ns: int, begins_by_ns: int | None = None
) -> float | None:
    """When packets flowed again between the last of the pairs; None if one stayed cut off until the repair.

    For each pair that is the first arrival after its outage: the run of lost probes that began with the fault. A pair
    that lost nothing was never cut off (0 ms). What begins after `begins_by_ns` is another fault's outage.
    """
    worst = 0.0
    for log in logs:
        end = _outage_end(log, fault_ns, repair_ns, repair_ns if begins_by_ns is None else begins_by_ns)
        if end is None:
            return None
        worst = max(worst, end)
    return worst


def _outage_end(log: ProbeLog, fault_ns: int, repair_ns: int, begins_by_ns: int) -> float | None:
    # a probe that was on its way when the fault came may be lost too
    since_ns = fault_ns - IN_FLIGHT_NS
    lost = sorted(log.lost(since_ns, repair_ns) + log.held_up(since_ns, repair_ns))
    first = lost[0] if lost else NEVER
    for last, following in pairwise([*lost, NEVER]):
        if following - last <= SAME_OUTAGE:
            continue
        if log.sent_ns[first] >= begins_by_ns:
            break
        back = next((at for at in log.arrived_ns[last + 1 :] if at >= 0), repair_ns)
        if back >= repair_ns:
            return None
        if back >= fault_ns:
            return (back - fault_ns) / 1e6
        first = following
    return 0.0


def goodput(arrivals: Sequence[tuple[int, int]], start_ns: int, end_ns: int) -> Trace:
    """Bit/s in bins of `BIN_MS` from (time in ns, bytes) of each receipt.

    A stream sends once in a bin's time what has come together since (`failure/worker.py`). So a receipt counts for the
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


def smooth(trace: Trace) -> Trace:
    """Mean of each bin and the `STEADY_BINS - 1` after it, so that one late bin is neither an outage nor a recovery.

    The last ones, with fewer after them, are as the last that has them all.
    """
    width = min(STEADY_BINS, len(trace))
    whole = np.convolve(trace, np.ones(width) / width, mode="valid")
    return np.pad(whole, (0, width - 1), mode="edge")


def restored_ms(trace: Trace, start_ns: int, since_ns: int, until_ns: int, before_bps: float) -> float | None:
    """From `since` until goodput, smoothed, is first back at `RESTORED` of what it was before.

    0 if it never fell below that; None if it fell and was not back by `until`.
    """
    first, last = (int((at - start_ns) / (BIN_MS * 1e6)) for at in (since_ns, until_ns))
    low = smooth(trace)[first:last] < RESTORED * before_bps
    if not low.any():
        return 0.0
    dip = int(np.argmax(low))
    if low[dip:].all():
        return None
    return float((dip + int(np.argmin(low[dip:]))) * BIN_MS)


def step_ms(events: Iterable[tuple[int, str]], wanted: Collection[str], fault_ns: int, until_ns: int) -> float | None:
    """ms from the fault to the first event of one of these names before `until`; None if there was none."""
    times = [at for at, what in events if what in wanted and fault_ns <= at < until_ns]
    return (min(times) - fault_ns) / 1e6 if times else None
