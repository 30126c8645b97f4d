"""Outcomes of a recovery that are no time: packets that never came or were never looked for, goodput that never fell.

A time of 0 or None in a record can mean several things. Views and files name which one by the states of this module.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Final

from railyard.core.records import Recovery
from railyard.failure.faults import definition_of
from railyard.results.analysis.recovery import Figure, RecoveryRow, median_p95_ms
from railyard.results.format import milliseconds
from railyard.results.runs.record_files import to_plain


class FirstPacket(StrEnum):
    """Outcome of the probes of a fault: column `first_packet` of recovery.csv."""

    NOT_PROBED = "not probed"
    NONE_LOST = "no probe lost"
    RETURNED = "returned"
    NEVER_AS_EXPECTED = "never, as expected without rerouting"
    NEVER = "never"


class Goodput(StrEnum):
    """Outcome of the streams of a fault: columns `goodput` and `goodput_after_repair` of recovery.csv.

    After a repair `did not fall` also means that goodput was back before it.
    """

    DID_NOT_FALL = "did not fall"
    RETURNED = "returned"
    NOT_BACK = "not back"
    NO_STREAM = "nothing streamed"


_GOODPUT_TIMES: Final = {"goodput": "goodput_ms", "goodput_after_repair": "goodput_after_repair_ms"}


def first_packet(recovery: Recovery) -> FirstPacket:
    """Return the outcome of the probes; without rerouting, "never" is expected of faults that it helps against."""
    if not recovery.is_probed:
        return FirstPacket.NOT_PROBED
    if recovery.first_packet_ms is None:
        is_expected = recovery.reroute == "off" and definition_of(recovery.fault).is_rerouted
        return FirstPacket.NEVER_AS_EXPECTED if is_expected else FirstPacket.NEVER
    return FirstPacket.NONE_LOST if recovery.is_unaffected else FirstPacket.RETURNED


def goodput(recovery: Recovery, ms: float | None) -> Goodput:
    """Return the outcome that one of a recovery's times of goodput stands for."""
    if ms is None:
        return Goodput.NOT_BACK if recovery.has_streams else Goodput.NO_STREAM
    return Goodput.RETURNED if ms else Goodput.DID_NOT_FALL


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


def csv_row(recovery: Recovery) -> SimpleNamespace:
    """Return a row of recovery.csv: the record with its states, and no time where goodput never fell."""
    plain: dict[str, Any] = to_plain(recovery)
    plain["first_packet"] = first_packet(recovery)
    for column, time_column in _GOODPUT_TIMES.items():
        plain[column] = goodput(recovery, plain[time_column])
        plain[time_column] = plain[time_column] or None
    return SimpleNamespace(**plain)


def read_csv_row(row: dict[str, Any]) -> None:
    """Give a row that was read from recovery.csv the values of the record, in place; older files have no states."""
    for column, time_column in _GOODPUT_TIMES.items():
        if row.get(column) == Goodput.DID_NOT_FALL:
            row[time_column] = 0.0
    row["has_streams"] = row.get("goodput") != Goodput.NO_STREAM
