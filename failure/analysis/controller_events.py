"""Detours and false alarms of heartbeats, counted in the controller's events. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from railyard.failure.faults import Fault
from railyard.failure.faults.definition import ControllerEvent
from railyard.failure.faults.support.impact import SILENCE_KEYS, dead_rails, rail_of
from railyard.topologies.addresses import gpu_of_name, link_of_name
from railyard.topologies.plan import Plan

SIMULTANEOUS_NS: Final = 50_000_000  # actions closer than this are simultaneous


def _counts(events: Sequence[ControllerEvent]) -> list[tuple[int, int]]:
    return sorted((at, int(detail["detours"])) for at, event_kind, detail in events if event_kind == "rerouted")


def active_detours(events: Sequence[ControllerEvent], at_ns: int | None = None) -> int:
    """Return the number of detours at a moment, or now; 0 before the first reroute."""
    counts = [count for event_ns, count in _counts(events) if at_ns is None or event_ns <= at_ns]
    return counts[-1] if counts else 0


def primary_path_ms(
    events: Sequence[ControllerEvent], repair_ns: int, until_ns: int | None, max_detours: int
) -> float | None:
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


def same_other_faults(number: int, injected: Sequence[int], repair_started: Sequence[int], min_gap_ns: int) -> bool:
    """Return whether the same other faults were active just before a fault and right after its repair.

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


REPAIR_GRACE_NS: Final = 1_000_000_000
"""Time after its repair in which a fault still explains silence: a switch takes time to start."""


def false_alarms(events: Iterable[ControllerEvent], faults: Sequence[tuple[Fault, int, int]], plan: Plan) -> int:
    """Count the links, rails and HB domains that were reported as silent without a fault that is active, or was
    repaired less than a second before. `faults`: each with the times of its injection and of its repair's begin, ns.

    A silent GPU isn't counted besides its links. Neither is a link of a rail or domain that was silent as a whole: it
    is reported because others of it have recovered.
    """
    found, silent_groups = 0, set[tuple[str, str]]()
    for at_ns, event_kind, detail in sorted(events, key=lambda event: event[0]):
        if event_kind == "controller-crashed":
            silent_groups.clear()  # until its return, no recovery is reported
        if event_kind not in ("silent", "resumed"):
            continue
        name = next((key, str(detail[key])) for key in SILENCE_KEYS if key in detail)
        if event_kind == "resumed":
            silent_groups.discard(name)
            continue
        group = _probe_group_of(plan, name)
        active = [fault for fault, since_ns, until_ns in faults if since_ns <= at_ns <= until_ns + REPAIR_GRACE_NS]
        # some links of a dead rail switch may be reported before the switch
        reported = [(fault, group if dead_rails(fault.impact(plan), plan) else name) for fault in active]
        is_explained = any(fault.is_signal(plan, "silent", {key: label}) for fault, (key, label) in reported)
        found += name[0] != "gpu" and group not in silent_groups and not is_explained
        if name[0] in ("rail", "hb-domain"):
            silent_groups.add(name)
    return found


def _probe_group_of(plan: Plan, name: tuple[str, str]) -> tuple[str, str]:
    """Return the rail or HB domain of a link; for anything else, itself."""
    kind, label = name
    if kind == "link":
        return "rail", rail_of(plan, *link_of_name(label))
    return ("hb-domain", f"hb{gpu_of_name(label).domain}") if kind == "hb-link" else name
