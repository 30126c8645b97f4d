"""Load balancer: the share of a buffer that each rail gets, in a table by size class.

Source: Nezha section 4.3. How a class moves from state to state: states.py.
"""

from collections.abc import Collection, Sequence

from railyard.workloads.allreduce.balancing.cost_estimator import CostEstimators
from railyard.workloads.allreduce.balancing.predict import Cost
from railyard.workloads.allreduce.balancing.states import Measurement, Memory, Rails, SingleRail, State, StateName


def size_class(size: int) -> int:
    """Return 0 for empty; k + 1 for sizes from 2^(k-1) + 1 to 2^k bytes."""
    return 0 if size <= 0 else (size - 1).bit_length() + 1


class Balancer:
    """`shares(size)` before an operation, `learn(...)` with each full window's medians, `down` and `up` for rails."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        if not costs:
            raise ValueError("costs: a balancer needs at least one rail")
        self._rails = Rails(CostEstimators(costs), set(range(len(costs))))
        self._table: dict[int, State] = {}

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The rails' costs as estimated now."""
        return self._rails.estimators.known

    def shares(self, size: int) -> tuple[float, ...]:
        """Return the shares by rail; they sum to one, and a dead rail's is 0."""
        return self._state(size).shares

    def state(self, size: int) -> StateName:
        """Return the name of the state of a size's class."""
        return self._state(size).name

    def best(self, size: int, among: Collection[int]) -> int:
        """Return which of these rails takes the least time for all."""
        return self._rails.estimators.best(size, among)

    def window(self, size: int) -> int:
        """Return over how many operations of this size the next `learn` wants medians."""
        return self._state(size).window

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """Take a window's medians: `size` in bytes, and by rail the seconds that its share took (0 without one)."""
        state = self._state(size)
        times = {rail: seconds[rail] for rail in sorted(self._rails.alive) if state.shares[rail] > 0}
        for rail, time in times.items():
            self._rails.estimators.measured(rail, state.shares[rail] * size, time)
        measured = Measurement(max(times.values()), size, state.shares)
        self._table[size_class(size)] = state.on_window(measured, times)

    def down(self, rail: int) -> None:
        """Give a dead rail's share to the others, in proportion to theirs. ValueError if it was the last."""
        if not self._rails.alive - {rail}:
            raise ValueError(f"rail {rail}: the last one can't be taken away")
        self._rails.alive.discard(rail)
        states = {key: state.on_rail_down(rail) for key, state in self._table.items()}
        self._table = {key: state for key, state in states.items() if state is not None}

    def up(self, rail: int) -> None:
        """Use a rail again, from a cold start: its cost is nominal again, and every class starts anew."""
        self._rails.alive.add(rail)
        self._rails.estimators.forget(rail)
        self._table.clear()

    def _state(self, size: int) -> State:
        found = self._table.get(size_class(size))
        if found is None:
            best = self._rails.estimators.best(size, self._rails.alive)
            found = self._table[size_class(size)] = SingleRail(Memory(self._rails), self._rails.evenly([best]))
        return found
