"""Outcomes of a recovery that are no time: packets that never came or were never looked for, goodput that never fell.

A time of 0 or None in a record can mean several things. Views and files name which one by the states of this module.
"""

from enum import StrEnum
from typing import Any, Final

from railyard.core.records import Recovery
from railyard.failure.faults import definition_of
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
        if is_expected:
            return FirstPacket.NEVER_AS_EXPECTED
        return FirstPacket.NEVER
    if recovery.is_unaffected:
        return FirstPacket.NONE_LOST
    return FirstPacket.RETURNED


def goodput(recovery: Recovery, ms: float | None) -> Goodput:
    """Return the outcome that one of a recovery's times of goodput stands for."""
    if ms is None:
        if recovery.has_streams:
            return Goodput.NOT_BACK
        return Goodput.NO_STREAM
    if ms == 0:
        return Goodput.DID_NOT_FALL
    return Goodput.RETURNED


def csv_row(recovery: Recovery) -> dict[str, Any]:
    """Return a row of recovery.csv: the record with its states, and no time where goodput never fell."""
    plain: dict[str, Any] = to_plain(recovery)
    plain["first_packet"] = first_packet(recovery)
    for column, time_column in _GOODPUT_TIMES.items():
        plain[column] = goodput(recovery, plain[time_column])
        plain[time_column] = plain[time_column] or None
    return plain


def read_csv_row(row: dict[str, Any]) -> None:
    """Give a row that was read from recovery.csv the values of the record, in place; older files have no states."""
    for column, time_column in _GOODPUT_TIMES.items():
        if row.get(column) == Goodput.DID_NOT_FALL:
            row[time_column] = 0.0
    row["has_streams"] = row.get("goodput") != Goodput.NO_STREAM
