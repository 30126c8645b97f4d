"""Who gets what: nezha, mrib, slicing, single and equal behind one protocol.

Source: Nezha sections 2.2.1 (MRIB, MPTCP), 4.3 and 5.2. `single` is a rail of your choice or the best by its nominal
cost; `equal`, `mrib` and `weights:99:1` have fixed weights, of which MRIB's are nominal bandwidths: what NICs are
called, not what rails move; `slicing` is MPTCP's way at the application: slices, each an operation of its own, go to
whichever rail is free first, which all nodes have to see alike, so it is the rail that would be by the slices' measured
mean times; `nezha` is the load balancer.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.allreduce.balancing.balancer import LEARNING_WINDOW, LONG_WINDOW, Balancer, size_class
from railyard.workloads.allreduce.balancing.predict import Cost, allreduce_cost, fastest_rail
from railyard.workloads.allreduce.balancing.rails import Rail
from railyard.workloads.allreduce.engine.segments import Segment, partition, split_evenly
from railyard.workloads.allreduce.engine.tasks import MIN_PIECE_BYTES

QUARTERS: Final = 4
MAX_SLICE_BYTES: Final = 256 * 1024
"""As sent, as MIN_PIECE_BYTES is."""


class Policy(Protocol):
    """Plans operations. Fed the same windows and the same deaths, it plans the same on every node."""

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        """Segments that cover `length` elements once, in order; one, empty, for an empty buffer."""
        ...

    def window(self, size: int) -> int:
        """Over how many operations of `size` bytes `learn` wants medians; 0: it never learns."""
        ...

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """Median seconds of each rail over a window; 0 for one that had nothing to do."""
        ...

    def down(self, rail: int) -> None: ...

    def up(self, rail: int) -> None: ...

    def best(self, size: int, among: Collection[int]) -> int:
        """The rail that should take `size` bytes over from a dead one."""
        ...


class _Weights:
    """Fixed weights over the live rails."""

    def __init__(self, costs: Sequence[Cost], weights: Sequence[float]) -> None:
        self._costs, self._weights = tuple(costs), tuple(weights)
        self._alive = set(range(len(costs)))

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        weights = [weight if rail in self._alive else 0.0 for rail, weight in enumerate(self._weights)]
        if not any(weights):
            weights[self.best(length * itemsize, self._alive)] = 1.0
        return partition(length, weights)

    def window(self, size: int) -> int:
        return 0

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        raise ValueError("fixed weights don't learn")

    def down(self, rail: int) -> None:
        if not self._alive - {rail}:
            raise ValueError(f"rail {rail}: the last one can't be taken away")
        self._alive.discard(rail)

    def up(self, rail: int) -> None:
        self._alive.add(rail)

    def best(self, size: int, among: Collection[int]) -> int:
        return fastest_rail(self._costs, size, sorted(among))


def slice_count(size: int) -> int:
    """Slices of a buffer of `size` bytes: quarters, or more where those are too long, or fewer where too short."""
    return max(1, min(QUARTERS, size // MIN_PIECE_BYTES), -(-size // MAX_SLICE_BYTES))


class _Slicing(_Weights):
    """Slices to the rail that is free first.

    What a slice takes on a rail is nominal until measured, and measured by the slice's size class: of a small one it is
    mostly set-up, which says nothing about a large one.
    """

    def __init__(self, costs: Sequence[Cost]) -> None:
        super().__init__(costs, [1.0] * len(costs))
        self._s_per_byte: dict[tuple[int, int], float] = {}  # (class, rail): seconds per byte

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        slice_rails = self._slice_rails(length * itemsize)
        spans = split_evenly(0, length, len(slice_rails))
        return tuple(Segment(rail, start, end - start) for rail, (start, end) in zip(slice_rails, spans, strict=True))

    def window(self, size: int) -> int:
        if slice_count(size) == 1:
            return 0  # nothing is shared out
        kind = size_class(_slice_bytes(size))
        known = all((kind, rail) in self._s_per_byte for rail in self._alive)
        return LONG_WINDOW if known else LEARNING_WINDOW

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        slice_bytes = _slice_bytes(size)
        for rail, count in Counter(self._slice_rails(size)).items():
            if seconds[rail] > 0:
                key, s_per_byte = (size_class(slice_bytes), rail), seconds[rail] / (count * slice_bytes)
                self._s_per_byte[key] = (self._s_per_byte.get(key, s_per_byte) + s_per_byte) / 2

    def best(self, size: int, among: Collection[int]) -> int:
        return min(sorted(among), key=lambda rail: self._seconds(rail, _slice_bytes(size)))

    def _slice_rails(self, size: int) -> list[int]:
        """The rail of each slice. It follows from the bytes alone, so that `learn` finds what `plan` gave to whom."""
        cost = {rail: self._seconds(rail, _slice_bytes(size)) for rail in sorted(self._alive)}
        free_at = dict.fromkeys(cost, 0.0)
        slice_rails = []
        for _ in range(slice_count(size)):
            rail = min(cost, key=lambda rail: free_at[rail] + cost[rail])
            free_at[rail] += cost[rail]
            slice_rails.append(rail)
        return slice_rails

    def _seconds(self, rail: int, size: int) -> float:
        """Of a slice of so many bytes."""
        s_per_byte = self._s_per_byte.get((size_class(size), rail))
        return self._costs[rail].seconds(size) if s_per_byte is None else size * s_per_byte


def _slice_bytes(size: int) -> int:
    return -(-size // slice_count(size))


class _Nezha:
    """The load balancer's table, in elements."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        self.balancer = Balancer(costs)
        self._plans: dict[tuple[int, int], tuple[Segment, ...]] = {}  # until the table changes: a small operation
        self._windows: dict[int, int] = {}  # takes so little that to look it up anew would be seen

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        found = self._plans.get((length, itemsize))
        if found is None:
            found = self._plans[length, itemsize] = partition(length, self.balancer.shares(length * itemsize))
        return found

    def window(self, size: int) -> int:
        found = self._windows.get(size)
        if found is None:
            found = self._windows[size] = self.balancer.window(size)
        return found

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        self.balancer.learn(size, seconds)
        self._forget()

    def down(self, rail: int) -> None:
        self.balancer.down(rail)
        self._forget()

    def up(self, rail: int) -> None:
        self.balancer.up(rail)
        self._forget()

    def best(self, size: int, among: Collection[int]) -> int:
        return self.balancer.best(size, among)

    def _forget(self) -> None:
        self._plans.clear()
        self._windows.clear()


def _single(rails: Sequence[Rail], costs: Sequence[Cost]) -> Policy:
    return _Weights(costs, [0.0] * len(rails))


_FACTORIES: Final[Mapping[str, Callable[[Sequence[Rail], Sequence[Cost]], Policy]]] = {
    "nezha": lambda _, costs: _Nezha(costs),
    "mrib": lambda rails, costs: _Weights(costs, [rail.nominal or rail.rate for rail in rails]),
    "slicing": lambda _, costs: _Slicing(costs),
    "single": _single,
    "equal": lambda rails, costs: _Weights(costs, [1.0] * len(rails)),
}


def weights_of(policy: str, rails: int) -> tuple[float, ...]:
    """Those of `weights:99:1`, a number a rail. BadInput for anything else."""
    found = re.fullmatch(r"weights((?::\d{1,6}){" + str(rails) + "})", policy)
    weights = tuple(map(float, found[1].split(":")[1:])) if found else ()
    if not any(weights):
        example = ":".join(["weights", "99", *["1"] * (rails - 1)])
        raise BadInput("policy", policy, f"must have a whole number a rail, not all 0: {example}")
    return weights


def make_policy(name: str, rails: Sequence[Rail], nodes: int) -> Policy:
    """`name`; `single:RAIL` for one rail by its name; `weights:99:1`. BadInput for what isn't known, or for no rail."""
    if not rails:
        raise BadInput("rails", [], "must have one rail or more")
    costs = [allreduce_cost(rail, max(2, nodes)) for rail in rails]
    kind, _, rail_name = name.partition(":")
    if kind == "single" and rail_name:
        names = [rail.name for rail in rails]
        if rail_name not in names:
            raise BadInput("policy", name, unknown_name_hint(rail_name, names))
        return _Weights(costs, [float(rail == rail_name) for rail in names])
    if kind == "weights":
        return _Weights(costs, weights_of(name, len(rails)))
    if name not in _FACTORIES:
        raise BadInput("policy", name, unknown_name_hint(name, [*_FACTORIES, "single:RAIL", "weights:99:1"]))
    return _FACTORIES[name](rails, costs)
