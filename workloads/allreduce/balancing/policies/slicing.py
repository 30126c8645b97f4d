"""Slices, each an operation of its own, on the rail that is free first: MPTCP's method in the application.

Source: Nezha sections 2.2.1 and 5.2. All nodes choose alike: a rail is free when its slices' mean times have passed.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from railyard.workloads.allreduce.balancing.costs import Cost, Rail, size_class
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, Planner
from railyard.workloads.allreduce.balancing.states import LEARNING_WINDOW, LONG_WINDOW
from railyard.workloads.allreduce.tasks import MIN_PIECE_BYTES, Segment, split_evenly

QUARTERS: Final = 4
MAX_SLICE_BYTES: Final = 256 * 1024  # as sent, as MIN_PIECE_BYTES is


def slice_count(size: int) -> int:
    """Slices of a buffer of `size` bytes: 4, more where they would be too long, fewer where too short."""
    return max(1, min(QUARTERS, size // MIN_PIECE_BYTES), -(-size // MAX_SLICE_BYTES))


def _slice_bytes(size: int) -> int:
    return -(-size // slice_count(size))


class SlicePlanner(Planner):
    """Planner of slices, whose times on a rail are nominal until measured, by the slice's size class."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        super().__init__(costs)
        # (class, rail): seconds per byte
        self._s_per_byte: dict[tuple[int, int], float] = {}

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        """Return a segment for each slice."""
        slice_rails = self._slice_rails(length * itemsize)
        spans = split_evenly(0, length, len(slice_rails))
        return tuple(Segment(rail, start, end - start) for rail, (start, end) in zip(slice_rails, spans, strict=True))

    def window(self, size: int) -> int:
        """Return a short window until all live rails are measured at this size."""
        if slice_count(size) == 1:
            # one slice: no choice depends on times
            return 0
        kind = size_class(_slice_bytes(size))
        is_measured = all((kind, rail) in self._s_per_byte for rail in self._alive)
        return LONG_WINDOW if is_measured else LEARNING_WINDOW

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """Average the time per byte of each rail with that of the slices."""
        slice_bytes = _slice_bytes(size)
        for rail, count in Counter(self._slice_rails(size)).items():
            if seconds[rail] > 0:
                key = (size_class(slice_bytes), rail)
                s_per_byte = seconds[rail] / (count * slice_bytes)
                self._s_per_byte[key] = (self._s_per_byte.get(key, s_per_byte) + s_per_byte) / 2

    def best(self, size: int, among: Collection[int]) -> int:
        """Return the rail with the shortest time for a slice."""
        return min(sorted(among), key=lambda rail: self._seconds(rail, _slice_bytes(size)))

    def _slice_rails(self, size: int) -> list[int]:
        """The rail of each slice. It depends on the bytes alone, so that `learn` finds the rails that `plan` chose."""
        cost = {rail: self._seconds(rail, _slice_bytes(size)) for rail in sorted(self._alive)}
        free_at = dict.fromkeys(cost, 0.0)
        slice_rails = []
        for _ in range(slice_count(size)):
            rail = min(cost, key=lambda rail: free_at[rail] + cost[rail])
            free_at[rail] += cost[rail]
            slice_rails.append(rail)
        return slice_rails

    def _seconds(self, rail: int, size: int) -> float:
        s_per_byte = self._s_per_byte.get((size_class(size), rail))
        return self._costs[rail].seconds(size) if s_per_byte is None else size * s_per_byte


@ALLREDUCE_POLICIES.register("slicing")
class Slicing(AllreducePolicy):
    """Slices in turn on the rails."""

    equation = "Eq. 5, slices in turn"
    learns = True
    colour = "orange"

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a planner of slices."""
        return SlicePlanner(costs)
