"""Allreduce policies: which rail sends which part of a buffer.

A policy is one module of `policies/`, or a plugin (docs/examples/carried_policy.py). An experiment names it, with an
argument after a colon where it takes one: `equal`, `single:tcp0`, `weights:99:1`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from statistics import median
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.registry import Registry
from railyard.workloads.allreduce.balancing.costs import Cost, Rail, allreduce_cost, fastest_rail, size_class
from railyard.workloads.allreduce.tasks import Segment, partition

# operations of a window: a hundred would fill a slow rail's control lane
_MAX_REPORTED: Final = 10
ITEM_BYTES: Final = 4  # of an element of a predicted allreduce: float32


class Planner:
    """Plan of one group's operations. With the same windows and dead rails, it plans the same on every node."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        self._costs = tuple(costs)
        self._alive = set(range(len(costs)))

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        """Return segments that cover `length` elements once, in order; one, empty, for an empty buffer."""
        raise NotImplementedError

    def window(self, size: int) -> int:
        """Return over how many operations of `size` bytes `learn` wants medians; 0: it never learns."""
        return 0

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """Take the median seconds of each rail over a window; 0 for a rail without a part."""
        raise ValueError(f"{type(self).__name__} doesn't learn")

    def down(self, rail: int) -> None:
        """Plan without a rail from now on. ValueError if it is the last one."""
        if not self._alive - {rail}:
            raise ValueError(f"rail {rail}: the last one can't be taken away")
        self._alive.discard(rail)

    def up(self, rail: int) -> None:
        """Plan with a rail again."""
        self._alive.add(rail)

    def best(self, size: int, among: Collection[int]) -> int:
        """Return the rail that takes over `size` bytes of a dead one: by default that of the lowest cost."""
        return fastest_rail(self._costs, size, sorted(among))


class FixedWeights(Planner):
    """Planner with fixed weights over the live rails; the fastest rail takes all where their weights are 0."""

    def __init__(self, costs: Sequence[Cost], weights: Sequence[float]) -> None:
        super().__init__(costs)
        self._weights = weights

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        """Return a segment for each live rail with a weight."""
        weights = [0.0] * len(self._weights)
        for rail in self._alive:
            weights[rail] = self._weights[rail]
        if not any(weights):
            weights[self.best(length * itemsize, self._alive)] = 1.0
        return partition(length, weights)


class AllreducePolicy:
    """Definition of a policy. `equation`: what its prediction follows, as `predict` shows it.

    `learns`: it gets the experiment's `learning` operations before those that count.
    `relearns`: it forgets what it learned of all sizes when a rail returns.
    `usages`: how it is written after its name, "" for the name alone.
    `colour`: colour of its line in figures, a name from results/plots/style.py.
    """

    equation: ClassVar[str] = ""
    learns: ClassVar[bool] = False
    relearns: ClassVar[bool] = False
    usages: ClassVar[tuple[str, ...]] = ("",)
    colour: ClassVar[str] = ""

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a planner.

        `costs`: seconds of an allreduce on each rail alone.
        `argument`: what follows the colon.
        """
        raise NotImplementedError

    def problem(self, argument: str, rails: Sequence[str]) -> str | None:
        """Return what is wrong with an argument on these rails (names), as `allowed` of BadInput; None if nothing."""
        return None

    def seconds(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str, size: int) -> float:
        """Predict the seconds of an allreduce of `size` bytes: Eq. 5 of the parts that the planner gives first."""
        times = [0.0] * len(rails)
        for part in self.planner(rails, costs, argument).plan(size // ITEM_BYTES, ITEM_BYTES):
            times[part.rail] += costs[part.rail].seconds(part.length * ITEM_BYTES)
        return max(times)


def _problems(name: str, policy: AllreducePolicy) -> Iterator[str]:
    if ":" in name:
        yield "its name must not contain a colon"


ALLREDUCE_POLICIES: Final = Registry[AllreducePolicy](
    "allreduce policy",
    "railyard.workloads.allreduce.balancing.policies",
    AllreducePolicy,
    ["planner(rails, costs, argument)", "equation"],
    _problems,
)


def policy_usages() -> list[str]:
    """Return how each policy can be written: `equal`, `single`, `single:RAIL`."""
    usages: list[str] = []
    for name, policy in ALLREDUCE_POLICIES.items():
        usages += [name + usage for usage in policy.usages]
    return usages


def find_policy(
    policy: str, rails: Sequence[str], field: str = "policy", other_names: Iterable[str] = ()
) -> tuple[AllreducePolicy, str]:
    """Return the definition and the argument of `NAME` or `NAME:ARGUMENT`, on rails of these names.

    BadInput, for `field`, for what is not known (`other_names`: names that are allowed too) or has a wrong argument.
    """
    name, colon, argument = policy.partition(":")
    if name not in ALLREDUCE_POLICIES or (colon and ALLREDUCE_POLICIES[name].usages == ("",)):
        raise BadInput(field, policy, unknown_name_hint(policy, [*policy_usages(), *other_names]))
    definition = ALLREDUCE_POLICIES[name]
    if (colon or "" not in definition.usages) and (problem := definition.problem(argument, rails)):
        raise BadInput(field, policy, problem)
    return definition, argument


def make_planner(policy: str, rails: Sequence[Rail], nodes: int) -> Planner:
    """Return a planner of a policy for these rails. BadInput for a policy that is not known, or for no rail."""
    if not rails:
        raise BadInput("rails", [], "must have one rail or more")
    definition, argument = find_policy(policy, [rail.name for rail in rails])
    return definition.planner(rails, [allreduce_cost(rail, max(2, nodes)) for rail in rails], argument)


def rail_seconds(starts: Any, ends: Any) -> NDArray[np.float64]:
    """Return by operation and rail the seconds from the last node's start to the rail's last end, at least 0.

    `starts` by node and operation, `ends` by node, operation and rail (of one with nothing to do: the start), in
    seconds of CLOCK_MONOTONIC, which all nodes share; a cluster needs a clock that PTP keeps.
    """
    # no node alone sees how long its rail took: one that begins early only waits
    seconds: NDArray[np.float64] = np.max(ends, axis=0) - np.max(starts, axis=0)[..., np.newaxis]
    return np.maximum(0.0, seconds)


class Learning:
    """Learning of one planner: a window goes to rank 0 by `send_control`, and its table of medians comes back to all.

    No operation may be planned unless it is `up_to_date`: other nodes may have learned more.
    """

    def __init__(self, planner: Planner, send_control: Callable[[dict[str, Any]], None]) -> None:
        self.planner = planner
        self._send_control = send_control
        # by size class: size, start, ends
        self._samples: dict[int, list[tuple[int, float, Sequence[float]]]] = {}
        self._table: dict[str, Any] | None = None
        self._awaited_op: int | None = None

    def ended(self, op: int, size: int, start: float, ends: Sequence[float]) -> None:
        """Take an operation of `size` bytes; send the window of its class if it is full.

        `start`: when it began here.
        `ends`: by rail, `start` if it had no work.
        """
        if not (length := self.planner.window(size)):
            return
        samples = self._samples.setdefault(size_class(size), [])
        samples.append((size, start, ends))
        if len(samples) < length:
            return
        del self._samples[size_class(size)]
        self._awaited_op = op
        self._table = None
        # an odd step, since programs repeat themselves in twos and tens
        step = -(-len(samples) // _MAX_REPORTED) | 1
        sizes, starts, all_ends = zip(*samples[::step], strict=True)
        # microseconds: messages are to be short
        times = {"starts": np.round(starts, 6).tolist(), "ends": np.round(all_ends, 6).tolist()}
        self._send_control({"type": "times", "op": op, "size": int(median(sizes)), **times})

    def received(self, table: dict[str, Any]) -> None:
        """Take a table of medians, if it is of the window that is awaited."""
        if table["op"] == self._awaited_op:
            self._table = table

    def up_to_date(self) -> bool:
        """Learn from the awaited table if it has come; return whether none is awaited."""
        if self._table is not None:
            table = self._table
            self._table = None
            self._awaited_op = None
            self.planner.learn(table["size"], table["seconds"])
        return self._awaited_op is None

    def rails_changed(self, dead: Iterable[int], restored: Iterable[int]) -> None:
        """Plan with other rails; forget what was measured before, and what is on its way."""
        for rail in restored:
            self.planner.up(rail)
        for rail in dead:
            self.planner.down(rail)
        self._samples.clear()
        self._awaited_op = self._table = None


class PlannerSet:
    """Planners that a group has used, of which `current` plans now. One that was used before keeps what it learned."""

    current: Learning

    def __init__(
        self, rails: Sequence[Rail], nodes: int, policy: str, send_control: Callable[[dict[str, Any]], None]
    ) -> None:
        self._rails = rails
        self._nodes = nodes
        self._send_control = send_control
        self._dead: set[int] = set()
        self._used: dict[str, Learning] = {}
        self.use(policy)

    def use(self, policy: str) -> None:
        """Plan by another policy from now on. BadInput for one that is not known."""
        if policy not in self._used:
            learning = Learning(make_planner(policy, self._rails, self._nodes), self._send_control)
            learning.rails_changed(self._dead, ())
            self._used[policy] = learning
        self.current = self._used[policy]

    def received(self, table: dict[str, Any]) -> None:
        """Take a table of medians, of any planner."""
        for learning in self._used.values():
            learning.received(table)

    def rails_changed(self, dead: Collection[int], restored: Collection[int]) -> None:
        """Plan without dead rails, and with restored ones again."""
        self._dead = (self._dead - set(restored)) | set(dead)
        for learning in self._used.values():
            learning.rails_changed(dead, restored)
