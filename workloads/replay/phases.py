"""When a phase of a replay is over: its last transfer has arrived, whichever workers received its parts."""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from railyard.workloads.schedule import Schedule, Task, Transfer


class PhaseEnd(NamedTuple):
    """A worker has received all that comes to its GPUs in a phase: so many transfers, the last at `ended_ns`."""

    phase: int
    transfers: int
    ended_ns: int


class PhaseEndCallback(Protocol):
    """Called once, in a thread, with the monotonic ns of a phase's last receipt."""

    def __call__(self, ended_ns: int, /) -> None: ...


NO_CALLBACKS: Final[Mapping[int, PhaseEndCallback]] = {}


def first_phases(schedule: Schedule) -> dict[str, int]:
    """The number of the first phase of each name in which something is sent."""
    found: dict[str, int] = {}
    for phase in sorted({transfer.phase for _, transfer in schedule.transfers}):
        found.setdefault(schedule.phases[phase].name, phase)
    return found


def transfers_per_phase(tasks: Iterable[Task], watched: Collection[int], local_gpus: Collection[int]) -> Counter[int]:
    """How many transfers of each watched phase come to these GPUs."""
    return Counter(t.phase for t in tasks if isinstance(t, Transfer) and t.phase in watched and t.dst in local_gpus)


class PhaseTracker:
    """Adds up what workers tell, from their threads, and calls who waits for a phase when all of it has arrived."""

    def __init__(self, schedule: Schedule, watched: Mapping[int, PhaseEndCallback]) -> None:
        self._remaining = transfers_per_phase(schedule.tasks, watched, range(schedule.gpus))
        self._watched, self._lock = watched, threading.Lock()
        self._ended_ns = dict.fromkeys(watched, 0)

    def receive(self, end: PhaseEnd) -> None:
        """A worker's part is there."""
        with self._lock:
            self._remaining[end.phase] -= end.transfers
            self._ended_ns[end.phase] = max(self._ended_ns[end.phase], end.ended_ns)
            done = self._remaining[end.phase] == 0
        if done:
            self._watched[end.phase](self._ended_ns[end.phase])
