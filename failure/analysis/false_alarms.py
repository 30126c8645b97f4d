"""Count false alarms of heartbeats: parts reported as silent, and rerouted, that no fault explains. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from railyard.failure.faults import Fault
from railyard.failure.faults.definition import ControllerEvent
from railyard.failure.faults.support.signals import SILENCE_KEYS, dead_rails, rail_of
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.plan import Plan

REPAIR_GRACE_NS: Final = 1_000_000_000
"""Time after its repair in which a fault still explains silence: a switch takes time to start."""
_Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FaultInterval:
    """A fault, from its injection until its repair began (monotonic ns)."""

    fault: Fault
    since_ns: int
    until_ns: int


def false_alarms(events: Iterable[ControllerEvent], faults: Sequence[FaultInterval], plan: Plan) -> int:
    """Count the links, rails and HB domains that were reported as silent without a fault that is active, or was
    repaired less than a second before.

    A silent GPU isn't counted besides its links. Neither is a link of a rail or domain that was silent as a whole: it
    is reported because others of it have recovered.
    """
    found, silent_groups = 0, set[_Name]()
    for at_ns, event_kind, detail in sorted(events, key=lambda event: event[0]):
        if event_kind == "controller-crashed":
            silent_groups.clear()  # until its return, no recovery is reported
        if event_kind not in ("silent", "heard"):
            continue
        name = next((key, str(detail[key])) for key in SILENCE_KEYS if key in detail)
        if event_kind == "heard":
            silent_groups.discard(name)
            continue
        active = [each.fault for each in faults if each.since_ns <= at_ns <= each.until_ns + REPAIR_GRACE_NS]
        is_new = name[0] != "gpu" and _probe_group_of(plan, name) not in silent_groups
        found += is_new and not any(_explains(fault, plan, name) for fault in active)
        if name[0] in ("rail", "hb-domain"):
            silent_groups.add(name)
    return found


def _explains(fault: Fault, plan: Plan, name: _Name) -> bool:
    """Whether a fault explains a silent name; some links of a dead rail switch may be reported before the switch."""
    key, label = _probe_group_of(plan, name) if dead_rails(fault.impact(plan), plan) else name
    return fault.is_signal(plan, "silent", {key: label})


def _probe_group_of(plan: Plan, name: _Name) -> _Name:
    """Return the rail or HB domain of a link; for anything else, itself."""
    kind, label = name
    if kind == "link":
        return "rail", rail_of(plan, gpu_of_name(label))
    return ("hb-domain", f"hb{gpu_of_name(label).domain}") if kind == "hb-link" else name
