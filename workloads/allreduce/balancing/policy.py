"""Allreduce policies: which rail sends which part of a buffer.

A policy is one module of `policies/`, or a plugin (docs/examples/carried_policy.py):

    class Equal(AllreducePolicy):
        equation = "Eq. 5, even shares"

        def planner(self, rails, costs, argument):
            return FixedWeights(costs, [1.0] * len(rails))

    ALLREDUCE_POLICIES.add("equal", Equal())

An experiment names it, with an argument after a colon where it takes one: `equal`, `single:tcp0`, `weights:99:1`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import ClassVar, Final, Protocol

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.registry import Registry
from railyard.workloads.allreduce.balancing.predict import Cost, allreduce_cost, fastest_rail
from railyard.workloads.allreduce.balancing.rails import Rail
from railyard.workloads.allreduce.engine.segments import Segment, partition

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
