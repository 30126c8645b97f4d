"""MRIB: weights by the rates that data sheets state, not by what rails move. Source: Nezha section 2.2.1."""

from collections.abc import Sequence

from railyard.workloads.allreduce.balancing.costs import Cost, Rail
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, FixedWeights, Planner


@ALLREDUCE_POLICIES.register("mrib")
class Mrib(AllreducePolicy):
    """Shares in proportion to nominal rates."""

    equation = "Eq. 5, shares by nominal rate"
    colour = "blue"

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a planner that weighs rails by their nominal rates."""
        return FixedWeights(costs, [rail.nominal or rail.rate for rail in rails])
