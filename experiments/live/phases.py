"""Phases of a workload that are under way, as its replay goes through them."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from railyard.workloads.replay.job import PhaseEndCallback
from railyard.workloads.schedule import Schedule

PHASE: Final = "phase"  # the event, with the names of the phases that are under way
MAX_NAMED: Final = 4

OnPhases = Callable[[int, list[str]], None]  # called with when (monotonic ns), and the phases that are under way


class PhaseProgress:
    """Phases of a schedule. One is under way from the end of all phases that it waits for, until its own end."""

    def __init__(
        self, schedule: Schedule, on_change: OnPhases, also: Mapping[int, PhaseEndCallback] = MappingProxyType({})
    ) -> None:
        """`also`: callbacks of others for the ends of phases."""
        self._schedule = schedule
        self._on_change = on_change
        self._also = also
        self._waits = phase_order(schedule)
        self._ended = set[int]()
        self.watched: dict[int, PhaseEndCallback] = {number: self._ending(number) for number in self._waits}
        """Callbacks for a replay, by the number of the phase."""

    def started(self, start_ns: int) -> None:
        """Take in that the replay has begun."""
        self._on_change(start_ns, self.under_way)

    def _ending(self, number: int) -> PhaseEndCallback:
        def end(ended_ns: int) -> None:
            if number in self._also:
                self._also[number](ended_ns)
            self._ended.add(number)
            self._on_change(ended_ns, self.under_way)

        return end

    @property
    def under_way(self) -> list[str]:
        """Kind and name of each phase that is under way, once; of many the first ones and how many more."""
        # a dictionary has each label once, in the order of the phases
        labels: dict[str, None] = {}
        for number, waits in self._waits.items():
            if number not in self._ended and self._ended.issuperset(waits):
                phase = self._schedule.phases[number]
                labels[_label(phase.kind, phase.name)] = None
        names = list(labels)
        if len(names) > MAX_NAMED:
            names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more"]
        return names


def _label(kind: str, name: str) -> str:
    if kind.lower() in name.lower():
        return name
    return f"{kind} {name}"


def phase_order(schedule: Schedule) -> dict[int, Collection[int]]:
    """Return the phases in which something is sent, and for each those of them that it waits for.

    Computations have no end that is reported: what waits for one waits for what that waits for.
    """
    columns = schedule.columns
    counts = np.diff(columns.after_end, prepend=0)
    pairs = np.column_stack((np.repeat(columns.phase, counts), columns.phase[columns.after]))
    waits: dict[int, set[int]] = {int(number): set() for number in np.unique(columns.phase)}
    for phase, earlier in np.unique(pairs, axis=0).tolist():
        if phase != earlier:
            waits[phase].add(earlier)
    sent = set(np.unique(columns.phase[~columns.is_compute]).tolist())

    def sent_before(number: int, visited: set[int]) -> set[int]:
        senders = set[int]()
        for earlier in waits[number] - visited:
            visited.add(earlier)
            if earlier in sent:
                senders.add(earlier)
            else:
                senders |= sent_before(earlier, visited)
        return senders

    return {number: sent_before(number, {number}) for number in sorted(sent)}
