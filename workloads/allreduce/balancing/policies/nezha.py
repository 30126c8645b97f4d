"""Nezha's load balancer: shares that it learns by size class. Source: Nezha section 4.3; balancer.py."""

from collections.abc import Collection, Sequence

from railyard.workloads.allreduce.balancing.balancer import Balancer
from railyard.workloads.allreduce.balancing.costs import Cost, Rail, equal_finish_s, fastest_rail
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, Planner
from railyard.workloads.allreduce.engine.tasks import Segment, partition


class BalancedPlanner:
    """Planner that asks a balancer. It caches plans until the table changes: small operations are too short to look
    them up anew.
    """

    def __init__(self, costs: Sequence[Cost]) -> None:
        self.balancer = Balancer(costs)
        self._plans: dict[tuple[int, int], tuple[Segment, ...]] = {}
        self._windows: dict[int, int] = {}

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
        self._clear()

    def down(self, rail: int) -> None:
        self.balancer.down(rail)
        self._clear()

    def up(self, rail: int) -> None:
        self.balancer.up(rail)
        self._clear()

    def best(self, size: int, among: Collection[int]) -> int:
        return self.balancer.best(size, among)

    def _clear(self) -> None:
        self._plans.clear()
        self._windows.clear()


class Nezha(AllreducePolicy):
    """Shares with which all rails end together, or the fastest rail alone where that takes less time."""

    equation = "Eq. 4 or 5, the lesser"
    learns = True
    relearns = True
    colour = "vermilion"

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        return BalancedPlanner(costs)

    def seconds(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str, size: int) -> float:
        """Predict what the balancer converges to: the lesser of Eq. 4 and 5."""
        return min(costs[fastest_rail(costs, size)].seconds(size), equal_finish_s(costs, size))


ALLREDUCE_POLICIES.add("nezha", Nezha())
