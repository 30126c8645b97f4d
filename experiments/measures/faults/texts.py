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
    if state is FirstPacket.RETURNED:
        return milliseconds(recovery.first_packet_ms)
    return state


def goodput_text(recovery: Recovery, step: str) -> str:
    """Return a time of goodput, or why there is none; "never" if it was not back."""
    ms: float | None = getattr(recovery, step)
    state = goodput(recovery, ms)
    if state in (Goodput.DID_NOT_FALL, Goodput.NO_STREAM):
        return state
    return milliseconds(ms)


def row_goodput_text(row: RecoveryRow, step: str, show: Callable[[Figure], str] = median_p95_ms) -> str:
    """Return the statistics, by `show`, of the repeats in which goodput fell; else why there are none."""
    states = [goodput(repeat, getattr(repeat, step)) for repeat in row.repeats]
    if step in row.steps and set(states) != {Goodput.NO_STREAM}:
        return show(row.steps[step])
    return states[0]


def missing_first_packet(row: RecoveryRow) -> FirstPacket | None:
    """Return why the repeats of a fault have no first packet; None if some repeat has, or they differ."""
    if row.unprobed:
        return FirstPacket.NOT_PROBED
    if row.unaffected:
        return FirstPacket.NONE_LOST
    states = set(map(first_packet, row.repeats))
    if len(states) > 1 or FirstPacket.RETURNED in states:
        return None
    return states.pop()


def first_packets_text(recoveries: Sequence[Recovery]) -> str:
    """Return the outcome of several faults in a few words: the slowest first packet, and how many had none.

    Examples: `first packet after 5.1 ms`, `first packet: not probed`, `first packet after 30 ms, of 2 faults never`.
    """
    counts = Counter(map(first_packet, recoveries))
    parts: list[str] = []
    for state in FirstPacket:
        count = counts[state]
        if not count or state is FirstPacket.RETURNED:
            continue
        if len(recoveries) > 1:
            parts.append(f"of {count} fault{'s' * (count > 1)} {state}")
        else:
            parts.append(state)
    if counts[FirstPacket.RETURNED]:
        slowest_ms = max(recovery.first_packet_ms or 0.0 for recovery in recoveries)
        return ", ".join([f"first packet after {milliseconds(slowest_ms)}", *parts])
    if not parts:
        return ""
    return f"first packet: {', '.join(parts)}"
