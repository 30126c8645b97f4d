"""Who gets what: nezha, mrib, slicing, single and equal behind one protocol.

Source: Nezha sections 2.2.1 (MRIB, MPTCP), 4.3 and 5.2. `single` is a rail of your choice or the best by its nominal
cost; `equal`, `mrib` and `weights:99:1` have fixed weights, of which MRIB's are nominal bandwidths: what NICs are
called, not what rails move; `slicing` is MPTCP's way at the application: slices, each an operation of its own, go to
whichever rail is free first, which all nodes have to see alike, so it is the rail that would be by the slices' measured
mean times; `nezha` is the load balancer.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from topologies.errors import BadInput, near_miss
from workloads.multirail.balancer import LEARNING_WINDOW, SETTLED_WINDOW, Balancer
from workloads.multirail.predict import Cost, allreduce_cost, cold_rail
from workloads.multirail.rails import Rail
from workloads.multirail.segments import Segment, partition, pieces

SLICE_BYTES: Final = 256 * 1024


class Policy(Protocol):
    """Plans operations. Fed the same windows and the same deaths, it plans the same on every node."""

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        """Segments that cover `length` elements once, in order; one, empty, for an empty buffer."""
        ...

    def window(self, size: int) -> int:
        """Over how many operations of `size` bytes `learn` wants its means; 0: it never learns."""
        ...

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """Mean seconds of each rail over a window; 0 for one that had nothing to do."""
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
        return cold_rail(self._costs, size, sorted(among))


class _Slicing(_Weights):
    """Slices to the rail that is free first. A rail's slice time is nominal until measured."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        super().__init__(costs, [1.0] * len(costs))
        self._paces = [cost.seconds(SLICE_BYTES) / SLICE_BYTES for cost in costs]
        self._known: set[int] = set()

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        free_at = dict.fromkeys(sorted(self._alive), 0.0)
        slices = []
        for start, end in pieces(0, length, max(1, SLICE_BYTES // itemsize)):
            cost = {rail: (end - start) * itemsize * self._paces[rail] for rail in free_at}
            rail = min(free_at, key=lambda rail: free_at[rail] + cost[rail])
            free_at[rail] += cost[rail]
            slices.append(Segment(rail, start, end - start))
        return tuple(slices)

    def window(self, size: int) -> int:
        if size < SLICE_BYTES:  # what a part of a slice takes is mostly set-up
            return 0
        return SETTLED_WINDOW if self._known >= self._alive else LEARNING_WINDOW

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        carried = [0] * len(self._paces)
        for part in self.plan(size, 1):
            carried[part.rail] += part.length
        for rail, (time, count) in enumerate(zip(seconds, carried, strict=True)):
            if time > 0 and count > 0:
                self._paces[rail] = (self._paces[rail] + time / count) / 2
                self._known.add(rail)

    def best(self, size: int, among: Collection[int]) -> int:
        return min(sorted(among), key=lambda rail: self._paces[rail])


class _Nezha:
    """The load balancer's table, in elements."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        self.balancer = Balancer(costs)

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        return partition(length, self.balancer.shares(length * itemsize))

    def window(self, size: int) -> int:
        return self.balancer.window(size)

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        self.balancer.learn(size, seconds)

    def down(self, rail: int) -> None:
        self.balancer.down(rail)

    def up(self, rail: int) -> None:
        self.balancer.up(rail)

    def best(self, size: int, among: Collection[int]) -> int:
        return cold_rail(self.balancer.costs, size, sorted(among))


def _single(rails: Sequence[Rail], costs: Sequence[Cost]) -> Policy:
    return _Weights(costs, [0.0] * len(rails))


_MAKERS: Final[Mapping[str, Callable[[Sequence[Rail], Sequence[Cost]], Policy]]] = {
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
    kind, _, wanted = name.partition(":")
    if kind == "single" and wanted:
        names = [rail.name for rail in rails]
        if wanted not in names:
            raise BadInput("policy", name, near_miss(wanted, names))
        return _Weights(costs, [float(rail == wanted) for rail in names])
    if kind == "weights":
        return _Weights(costs, weights_of(name, len(rails)))
    if name not in _MAKERS:
        raise BadInput("policy", name, near_miss(name, [*_MAKERS, "single:RAIL", "weights:99:1"]))
    return _MAKERS[name](rails, costs)
