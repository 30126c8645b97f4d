"""Equal parts on all rails."""

from collections.abc import Sequence

from railyard.workloads.allreduce.balancing.costs import Cost, Rail
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, FixedWeights, Planner


@ALLREDUCE_POLICIES.register("equal")
class Equal(AllreducePolicy):
    """The same share for each rail."""

    equation = "Eq. 5, even shares"
    colour = "pink"

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a planner of equal weights."""
        return FixedWeights(costs, [1.0] * len(rails))
