"""Load balancer: the share of a buffer that each rail gets, in a table by size class, as measured times move it.

Source: Nezha section 4.3. The states of a size class, and how it goes from one to another, are in states.py.
Every node gets the same states from the same windows.
"""

from collections.abc import Collection, Sequence

from railyard.workloads.allreduce.balancing.costs import Cost, fastest_rail, size_class
from railyard.workloads.allreduce.balancing.policy import Planner
from railyard.workloads.allreduce.balancing.states import Measurement, Memory, Rails, SingleRail, State
from railyard.workloads.allreduce.tasks import Segment, partition


class Balancer(Planner):
    """Nezha's planner: shares by size class, which each window of measured times may change."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        super().__init__(costs)
        self.rails = Rails(costs, self._alive)
        self._table: dict[int, State] = {}
        # cached until the table changes: small operations are too short to look them up anew
        self._plans: dict[tuple[int, int], tuple[Segment, ...]] = {}
        self._windows: dict[int, int] = {}

    def shares(self, size: int) -> tuple[float, ...]:
        """Return the shares by rail; they sum to one, and a dead rail's is 0."""
        return self.state(size).shares

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        """Return the segments of a buffer."""
        segments = self._plans.get((length, itemsize))
        if segments is None:
            segments = partition(length, self.shares(length * itemsize))
            self._plans[length, itemsize] = segments
        return segments

    def window(self, size: int) -> int:
        """Return over how many operations of this size the next `learn` wants medians."""
        window = self._windows.get(size)
        if window is None:
            window = self.state(size).window
            self._windows[size] = window
        return window

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """Take a window's medians: `size` in bytes, and by rail the seconds that its share took (0 without one)."""
        state = self.state(size)
        times = {rail: seconds[rail] for rail in sorted(self.rails.alive) if state.shares[rail] > 0}
        for rail, time in times.items():
            self.rails.estimators[rail].measured(state.shares[rail] * size, time)
        measured = Measurement(max(times.values()), size, state.shares)
        self._table[size_class(size)] = state.on_window(measured, times)
        self._clear_caches()

    def down(self, rail: int) -> None:
        """Give a dead rail's share to the others, in proportion to theirs. ValueError if it was the last."""
        super().down(rail)
        table: dict[int, State] = {}
        for key, state in self._table.items():
            new_state = state.on_rail_down(rail)
            if new_state is not None:
                table[key] = new_state
        self._table = table
        self._clear_caches()

    def up(self, rail: int) -> None:
        """Use a rail again, from a cold start: its cost is nominal again, and every class starts anew."""
        super().up(rail)
        self.rails.forget(rail)
        self._table.clear()
        self._clear_caches()

    def best(self, size: int, among: Collection[int]) -> int:
        """Return which of these rails takes the least time for all (Eq. 4), by what was measured."""
        return fastest_rail(self.rails.at(size), size, sorted(among))

    def _clear_caches(self) -> None:
        self._plans.clear()
        self._windows.clear()

    def state(self, size: int) -> State:
        """Return the state of a size's class."""
        state = self._table.get(size_class(size))
        if state is None:
            best = self.best(size, self._alive)
            state = SingleRail(Memory(self.rails), self.rails.evenly([best]))
            self._table[size_class(size)] = state
        return state
