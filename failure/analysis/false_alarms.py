"""Heartbeats' false alarms: what was told as silent, and gone round, though no fault explains it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from railyard.failure.analysis.detours import Told
from railyard.failure.analysis.signals import SILENCE, rail_of, tells
from railyard.failure.scenario.kinds import Fault
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.plan import Plan

MENDED_NS: Final = 1_000_000_000
"""So long after its repair a fault explains silence still: a switch starts, and some are heard sooner than others."""
_Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Stood:
    """A fault, from when it struck until its repair began (monotonic ns)."""

    fault: Fault
    since_ns: int
    until_ns: int


def false_alarms(events: Iterable[Told], faults: Sequence[Stood], plan: Plan) -> int:
    """How many links, rails and HB domains were told as silent that no fault explains: none that stood then, or had
    been mended a second before at most.

    A silent GPU isn't counted besides its links. Nor is a link of what was silent as a whole until then: it is told
    because others of it are heard again.
    """
    found, whole = 0, set[_Name]()
    for at_ns, what, detail in sorted(events, key=lambda event: event[0]):
        if what == "controller-crashed":
            whole.clear()  # what is heard until its return, nobody tells
        if what not in ("silent", "heard"):
            continue
        name = next((key, str(detail[key])) for key in SILENCE if key in detail)
        if what == "heard":
            whole.discard(name)
            continue
        there = [each.fault for each in faults if each.since_ns <= at_ns <= each.until_ns + MENDED_NS]
        is_news = name[0] != "gpu" and _circle_of(plan, name) not in whole
        found += is_news and not any(_explains(fault, plan, name) for fault in there)
        if name[0] in ("rail", "hb-domain"):
            whole.add(name)
    return found


def _explains(fault: Fault, plan: Plan, name: _Name) -> bool:
    """A dead rail switch may be told by some of its links before it is told as a whole."""
    kind, called = _circle_of(plan, name) if fault.kind.startswith("rail-switch") else name
    return tells(fault, plan, "silent", {kind: called})


def _circle_of(plan: Plan, name: _Name) -> _Name:
    """The rail or HB domain of a link; of anything else, itself."""
    kind, called = name
    if kind == "link":
        return "rail", rail_of(plan, gpu_of_name(called))
    return ("hb-domain", f"hb{gpu_of_name(called).domain}") if kind == "hb-link" else name
