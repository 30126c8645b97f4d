"""Outcomes of a recovery in words: times of first packets and goodput, or why there are none."""

from collections import Counter
from collections.abc import Callable, Sequence

from railyard.core.records import Recovery
from railyard.experiments.measures.faults.analysis import RecoveryRow
from railyard.experiments.measures.faults.states import FirstPacket, Goodput, first_packet, goodput
from railyard.results.analysis.repeats import Figure, median_p95_ms
from railyard.results.format import milliseconds


def first_packet_text(recovery: Recovery) -> str:
    """Return the time of the first packet, or why there is none."""
    state = first_packet(recovery)
    return milliseconds(recovery.first_packet_ms) if state is FirstPacket.RETURNED else state


def goodput_text(recovery: Recovery, step: str) -> str:
    """Return a time of goodput, or why there is none; "never" if it was not back."""
    ms: float | None = getattr(recovery, step)
    state = goodput(recovery, ms)
    return state if state in (Goodput.DID_NOT_FALL, Goodput.NO_STREAM) else milliseconds(ms)


def row_goodput_text(row: RecoveryRow, step: str, show: Callable[[Figure], str] = median_p95_ms) -> str:
    """Return the statistics, by `show`, of the repeats in which goodput fell; else why there are none."""
    if step in row.steps and not all(goodput(r, getattr(r, step)) is Goodput.NO_STREAM for r in row.repeats):
        return show(row.steps[step])
    return goodput(row.repeats[0], getattr(row.repeats[0], step))


def missing_first_packet(row: RecoveryRow) -> FirstPacket | None:
    """Return why the repeats of a fault have no first packet; None if some repeat has, or they differ."""
    states = {first_packet(r) for r in row.repeats}
    if row.unprobed:
        return FirstPacket.NOT_PROBED
    if row.unaffected:
        return FirstPacket.NONE_LOST
    return states.pop() if len(states) == 1 and FirstPacket.RETURNED not in states else None


def first_packets_text(recoveries: Sequence[Recovery]) -> str:
    """Return the outcome of several faults in a few words: the slowest first packet, and how many had none.

    Examples: `first packet after 5.1 ms`, `first packet: not probed`, `first packet after 30 ms, of 2 faults never`.
    """
    counts = Counter(first_packet(r) for r in recoveries)
    slowest_ms = max((r.first_packet_ms or 0.0 for r in recoveries), default=0.0)
    parts = []
    for state in FirstPacket:
        count = counts.pop(state, 0)
        if not count or state is FirstPacket.RETURNED:
            continue
        number = f"of {count} fault{'s' * (count > 1)} " if len(recoveries) > 1 else ""
        parts.append(f"{number}{state}")
    if any(first_packet(r) is FirstPacket.RETURNED for r in recoveries):
        return ", ".join([f"first packet after {milliseconds(slowest_ms)}", *parts])
    return f"first packet: {', '.join(parts)}" if parts else ""
