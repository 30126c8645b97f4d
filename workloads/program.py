"""Putting a schedule together: each GPU's program grows at its end, so that collectives compose like calls.

A step of a GPU waits for what that GPU did last. Nothing else orders the GPUs: what a step sends, the receiver's next
step waits for, as with blocking collectives in a real job.
"""

from collections.abc import Iterable

from railyard.workloads.schedule import Compute, Iteration, Phase, Schedule, Task, Transfer

Grid = tuple[tuple[int, ...], ...]
"""GPU numbers, a row for each HB domain and a column for each rail: y rows of x GPUs (Rail-only Table I)."""


class Program:
    """The tasks so far of `domains` HB domains with `rails` GPUs each."""

    def __init__(self, domains: int, rails: int) -> None:
        self.domains, self.rails = domains, rails
        self._phases: list[Phase] = []
        self._tasks: list[Task] = []
        self._last: dict[int, tuple[int, ...]] = {}

    @property
    def grid(self) -> Grid:
        """Every GPU."""
        return tuple(tuple(range(d * self.rails, (d + 1) * self.rails)) for d in range(self.domains))

    def phase(self, phase: Phase) -> int:
        """Start one run of a collective (or of any other named step); returns the phase's number."""
        self._phases.append(phase)
        return len(self._phases) - 1

    def last(self, gpu: int) -> tuple[int, ...]:
        """The tasks that the GPU's next step waits for."""
        return self._last.get(gpu, ())

    def wait_for(self, gpu: int, tasks: Iterable[int]) -> None:
        """Let the GPU's next step wait for these tasks, which must end at it and cover what it waited for before."""
        self._last[gpu] = tuple(dict.fromkeys(tasks))

    def send(self, src: int, dst: int, size: int, phase: int, after: Iterable[int], stripe: int = 0) -> int:
        """Append a transfer of `size` bytes; returns its task number. The caller says what follows it."""
        self._tasks.append(Transfer(src, dst, size, phase, tuple(dict.fromkeys(after)), stripe))
        return len(self._tasks) - 1

    def compute(self, gpu: int, seconds: float, phase: int) -> None:
        """The GPU computes, and its next step waits for that. No time, no task."""
        if seconds > 0:
            self._tasks.append(Compute(gpu, seconds, phase, self.last(gpu)))
            self.wait_for(gpu, [len(self._tasks) - 1])

    def schedule(self, name: str, iteration: Iteration | None = None) -> Schedule:
        """The finished schedule, checked."""
        done = Schedule(name, self.domains * self.rails, self.rails, tuple(self._phases), tuple(self._tasks), iteration)
        done.check()
        return done
