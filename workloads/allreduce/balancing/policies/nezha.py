"""Nezha's load balancer: shares that it learns by size class. Source: Nezha section 4.3; balancer.py."""

from collections.abc import Sequence

from railyard.workloads.allreduce.balancing.balancer import Balancer
from railyard.workloads.allreduce.balancing.costs import Cost, Rail, equal_finish_s, fastest_rail, rails_within_tau
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, Planner


@ALLREDUCE_POLICIES.register("nezha")
class Nezha(AllreducePolicy):
    """Shares with which all rails end together, or the fastest rail alone where that takes less time."""

    equation = "Eq. 4 or 5, the lesser"
    learns = True
    relearns = True
    colour = "vermilion"

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a balancer."""
        return Balancer(costs)

    def seconds(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str, size: int) -> float:
        """Predict what the balancer converges to: the lesser of Eq. 4 and 5, the latter without rails beyond tau."""
        split_costs = [costs[rail] for rail in rails_within_tau(costs, size)]
        return min(costs[fastest_rail(costs, size)].seconds(size), equal_finish_s(split_costs, size))
