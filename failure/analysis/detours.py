"""Count active detours from the controller's events, and find when the last of a fault was withdrawn. Pure."""

from collections.abc import Sequence
from typing import Final

from railyard.failure.faults.definition import ControllerEvent

SIMULTANEOUS_NS: Final = 50_000_000
"""Actions closer than this are simultaneous."""


def active_detours(events: Sequence[ControllerEvent], at_ns: int | None = None) -> int:
    """Return the number of detours at a moment, or now; 0 before the first reroute."""
    counts = [count for event_ns, count in _counts(events) if at_ns is None or event_ns <= at_ns]
    return counts[-1] if counts else 0


def home_ms(events: Sequence[ControllerEvent], repair_ns: int, until_ns: int | None, max_detours: int) -> float | None:
    """Return the ms from a repair until at most `max_detours` are left, for good; None if not before `until_ns`.

    0 if there were no more at the repair, and none came after it.
    """
    later = [(at, n) for at, n in _counts(events) if at > repair_ns and (until_ns is None or at < until_ns)]
    reverted_ms = 0.0 if active_detours(events, repair_ns) <= max_detours else None
    for at, count in later:
        if count > max_detours:
            reverted_ms = None
        elif reverted_ms is None:
            reverted_ms = (at - repair_ns) / 1e6
    return reverted_ms


def _counts(events: Sequence[ControllerEvent]) -> list[tuple[int, int]]:
    return sorted((at, int(detail["detours"])) for at, event_kind, detail in events if event_kind == "rerouted")


def same_other_faults(number: int, injected: Sequence[int], repair_started: Sequence[int], min_gap_ns: int) -> bool:
    """Whether the same other faults were active just before a fault and right after its repair.

    `injected`, `repair_started`: times of each fault, ns, by number. False also if another action came within
    `min_gap_ns` before one of the two: its detours may have changed since.
    """
    begin, end = injected[number], repair_started[number]
    times = {n: times for n, times in enumerate(zip(injected, repair_started, strict=True)) if n != number}
    first_ns, last_ns = begin - SIMULTANEOUS_NS, end + SIMULTANEOUS_NS
    before = {n for n, (since, until) in times.items() if since < first_ns <= until}
    after = {n for n, (since, until) in times.items() if since <= last_ns < until}
    done = [at for both in times.values() for at in both]
    recent = any(action - min_gap_ns < at < action - SIMULTANEOUS_NS for at in done for action in (begin, end))
    return before == after and not recent
