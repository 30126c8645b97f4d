"""One rail alone: `single:RAIL`, or `single` for the one of least predicted time. Source: Nezha Eq. 1, 2 and 4."""

from collections.abc import Sequence

from railyard.core.errors import unknown_name_hint
from railyard.workloads.allreduce.balancing.costs import Cost, Rail
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, FixedWeights, Planner


@ALLREDUCE_POLICIES.register("single")
class Single(AllreducePolicy):
    """The whole buffer on one rail."""

    equation = "Eq. 1 and 2"
    usages = ("", ":RAIL")

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a planner that uses the rail that the argument names."""
        return FixedWeights(costs, [float(rail.name == argument) for rail in rails])

    def problem(self, argument: str, rails: Sequence[str]) -> str | None:
        """Return the rails that can be named, if the argument is none."""
        return None if argument in rails else unknown_name_hint(argument, rails)
