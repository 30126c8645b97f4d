"""Allreduce policies: which rail sends which part of a buffer.

A policy is one module of `policies/`, or a plugin (docs/examples/carried_policy.py):

    class Equal(AllreducePolicy):
        equation = "Eq. 5, even shares"

        def planner(self, rails, costs, argument):
            return FixedWeights(costs, [1.0] * len(rails))

    ALLREDUCE_POLICIES.add("equal", Equal())

An experiment names it, with an argument after a colon where it takes one: `equal`, `single:tcp0`, `weights:99:1`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, Final, Protocol

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.registry import Registry
from railyard.workloads.allreduce.balancing.costs import Cost, Rail, allreduce_cost, fastest_rail, size_class
from railyard.workloads.allreduce.engine.tasks import Segment, partition

_MAX_REPORTED: Final = 10  # operations of a window: a hundred would fill a slow rail's control lane
Times = tuple[float, ...]
ITEM_BYTES: Final = 4
"""Of an element of a predicted allreduce: float32."""


class Planner(Protocol):
    """Plans the operations of one group. With the same windows and dead rails, it plans the same on every node."""

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        """Return segments that cover `length` elements once, in order; one, empty, for an empty buffer."""
        ...

    def window(self, size: int) -> int:
        """Return over how many operations of `size` bytes `learn` wants medians; 0: it never learns."""
        ...

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """Take the median seconds of each rail over a window; 0 for a rail without a part."""
        ...

    def down(self, rail: int) -> None:
        """Plan without a rail from now on. ValueError if it is the last one."""
        ...

    def up(self, rail: int) -> None:
        """Plan with a rail again."""
        ...

    def best(self, size: int, among: Collection[int]) -> int:
        """Return the rail that takes over `size` bytes of a dead one."""
        ...


class FixedWeights:
    """Planner with fixed weights over the live rails; the fastest rail takes all where their weights are 0."""

    def __init__(self, costs: Sequence[Cost], weights: Sequence[float]) -> None:
        self._costs, self._weights = tuple(costs), tuple(weights)
        self._alive = set(range(len(costs)))

    def plan(self, length: int, itemsize: int) -> tuple[Segment, ...]:
        """Return a segment for each live rail with a weight."""
        weights = [weight if rail in self._alive else 0.0 for rail, weight in enumerate(self._weights)]
        if not any(weights):
            weights[self.best(length * itemsize, self._alive)] = 1.0
        return partition(length, weights)

    def window(self, size: int) -> int:
        """Return 0: it never learns."""
        return 0

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """Raise ValueError."""
        raise ValueError("fixed weights don't learn")

    def down(self, rail: int) -> None:
        """Plan without a rail from now on."""
        if not self._alive - {rail}:
            raise ValueError(f"rail {rail}: the last one can't be taken away")
        self._alive.discard(rail)

    def up(self, rail: int) -> None:
        """Plan with a rail again."""
        self._alive.add(rail)

    def best(self, size: int, among: Collection[int]) -> int:
        """Return the rail with the lowest cost."""
        return fastest_rail(self._costs, size, sorted(among))


class AllreducePolicy:
    """Definition of a policy. `equation`: what its prediction follows, as `predict` shows it.

    `learns`: it gets the experiment's `learning` operations before those that count. `relearns`: it forgets what it
    learned of all sizes when a rail returns. `usages`: how it is written after its name, "" for the name alone.
    `colour`: of its line in figures, a name of results/plots/style.py.
    """

    equation: ClassVar[str] = ""
    learns: ClassVar[bool] = False
    relearns: ClassVar[bool] = False
    usages: ClassVar[tuple[str, ...]] = ("",)
    colour: ClassVar[str] = ""

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a planner. `costs`: seconds of an allreduce on each rail alone; `argument`: what follows the colon."""
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


def _problems(name: str, policy: object) -> Iterator[str]:
    if not isinstance(policy, AllreducePolicy):
        yield "must be an instance of a subclass of AllreducePolicy"
        return
    if type(policy).planner is AllreducePolicy.planner:
        yield "the method planner(rails, costs, argument) is missing"
    if not policy.equation:
        yield "`equation` is missing"
    if ":" in name:
        yield "its name must not contain a colon"


ALLREDUCE_POLICIES: Final = Registry[AllreducePolicy](
    "allreduce policy", "railyard.workloads.allreduce.balancing.policies", check=_problems
)


def policy_usages() -> list[str]:
    """Return how each policy can be written: `equal`, `single`, `single:RAIL`."""
    return [name + usage for name, policy in ALLREDUCE_POLICIES.items() for usage in policy.usages]


def find_policy(
    policy: str, rails: Sequence[str], field: str = "policy", others: Iterable[str] = ()
) -> tuple[AllreducePolicy, str]:
    """Return the definition and the argument of `NAME` or `NAME:ARGUMENT`, on rails of these names.

    BadInput, for `field`, for what is not known (`others`: names that are allowed too) or has a wrong argument.
    """
    name, colon, argument = policy.partition(":")
    if name not in ALLREDUCE_POLICIES or (colon and ALLREDUCE_POLICIES[name].usages == ("",)):
        raise BadInput(field, policy, unknown_name_hint(policy, [*policy_usages(), *others]))
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


def rail_seconds(starts: Sequence[float], ends: Sequence[Times]) -> Times:
    """Return by rail the seconds of an operation: from the last node's start to the rail's last end, at least 0.

    `starts` and `ends` have an entry a node; a rail with nothing to do ended when the node began. A node that begins
    early only waits, and on a ring the node that begins late is not the one that ends late, so no single node sees how
    long its rail took. (All nodes share this machine's CLOCK_MONOTONIC; a cluster needs a clock that PTP keeps.)
    """
    begun = max(starts)
    return tuple(max(0.0, max(rail) - begun) for rail in zip(*ends, strict=True))


@dataclass(frozen=True, slots=True)
class Window:
    """Some operations of a size class on one node: their median bytes, its starts, and the ends of each rail."""

    size: int
    starts: Times
    ends: tuple[Times, ...]


def median_rail_seconds(windows: Sequence[Window]) -> Times:
    """Return by rail the median seconds of a window, which has an entry a node.

    The paper has means (Nezha sections 3.5 and 4.2), but an operation during which the machine stood still says nothing
    about the rails, and among five it would be most of a mean.
    """
    starts = zip(*(window.starts for window in windows), strict=True)
    ends = zip(*(window.ends for window in windows), strict=True)
    rows = [rail_seconds(*operation) for operation in zip(starts, ends, strict=True)]
    return tuple(median(column) for column in zip(*rows, strict=True))


class Timer:
    """Collector of operations by size class; `add` returns a window when one is full."""

    def __init__(self) -> None:
        self._classes: dict[int, list[tuple[int, float, Times]]] = {}

    def add(self, size: int, start: float, ends: Sequence[float], window: Callable[[int], int]) -> Window | None:
        """Add an operation. `ends`: by rail, `start` if it had no work; `window(size)`: operations, 0 for never."""
        length = window(size)
        if not length:
            return None
        samples = self._classes.setdefault(size_class(size), [])
        samples.append((size, start, tuple(ends)))
        if len(samples) < length:
            return None
        del self._classes[size_class(size)]
        # an odd step, since programs repeat themselves in twos and tens
        sizes, starts, all_ends = zip(*samples[:: -(-len(samples) // _MAX_REPORTED) | 1], strict=True)
        return Window(int(median(sizes)), starts, all_ends)

    def clear(self) -> None:
        """Forget everything: the rails have changed."""
        self._classes.clear()


class Learning:
    """Learning of one planner: a window goes to rank 0 by `send_control`, and its table of medians comes back to all.

    No operation may be planned unless it is `up_to_date`: other nodes may have learned more.
    """

    def __init__(self, planner: Planner, send_control: Callable[[dict[str, Any]], None]) -> None:
        self.planner, self._send_control = planner, send_control
        self._timer = Timer()
        self._table: dict[str, Any] | None = None
        self._awaited_op: int | None = None

    def ended(self, op: int, size: int, start: float, ends: Sequence[float]) -> None:
        """Take an operation of `size` bytes: when it began here, and when each rail ended."""
        window = self._timer.add(size, start, ends, self.planner.window)
        if window is not None:
            self._awaited_op, self._table = op, None
            starts = [round(start, 6) for start in window.starts]  # control messages have little room
            ends_by_op = [[round(end, 6) for end in row] for row in window.ends]
            self._send_control({"type": "times", "op": op, "size": window.size, "starts": starts, "ends": ends_by_op})

    def received(self, table: dict[str, Any]) -> None:
        """Take a table of medians, if it is of the window that is awaited."""
        if table["op"] == self._awaited_op:
            self._table = table

    def up_to_date(self) -> bool:
        """Learn from the awaited table if it has come; return whether none is awaited."""
        if self._table is not None:
            table, self._table, self._awaited_op = self._table, None, None
            self.planner.learn(table["size"], table["seconds"])
        return self._awaited_op is None

    def rails_changed(self) -> None:
        """Forget what was measured with other rails, and what is on its way."""
        self._timer.clear()
        self._awaited_op = self._table = None


class PlannerSet:
    """Planners that a group has used, one of which plans now. One that was used before keeps what it has learned."""

    def __init__(self, planner: Planner, send_control: Callable[[dict[str, Any]], None]) -> None:
        self._send_control = send_control
        self._dead: set[int] = set()
        self._used: list[Learning] = []
        self.use(planner)

    @property
    def current(self) -> Planner:
        """Planner of the next operation."""
        return self._current.planner

    def use(self, planner: Planner) -> None:
        """Plan with another planner from now on."""
        found = next((learning for learning in self._used if learning.planner is planner), None)
        if found is None:
            for rail in self._dead:
                planner.down(rail)
            found = Learning(planner, self._send_control)
            self._used.append(found)
        self._current = found

    def best(self, size: int, among: Collection[int]) -> int:
        """Return the rail that takes over `size` bytes of a dead one."""
        return self.current.best(size, among)

    def ended(self, op: int, size: int, start: float, ends: Sequence[float]) -> None:
        """Take an operation's times, as `Learning.ended`."""
        self._current.ended(op, size, start, ends)

    def up_to_date(self) -> bool:
        """Return whether the current planner has learned all that the nodes measured."""
        return self._current.up_to_date()

    def received(self, table: dict[str, Any]) -> None:
        """Take a table of medians, of whichever planner."""
        for learning in self._used:
            learning.received(table)

    def rails_changed(self, dead: Collection[int], restored: Collection[int]) -> None:
        """Plan without dead rails, and with restored ones again."""
        self._dead = (self._dead - set(restored)) | set(dead)
        for learning in self._used:
            for rail in restored:
                learning.planner.up(rail)
            for rail in dead:
                learning.planner.down(rail)
            learning.rails_changed()
