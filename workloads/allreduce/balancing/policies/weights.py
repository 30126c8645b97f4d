"""Fixed weights that the experiment gives: `weights:99:1`, a whole number for each rail."""

import re
from collections.abc import Sequence

from railyard.workloads.allreduce.balancing.costs import Cost, Rail
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, FixedWeights, Planner


@ALLREDUCE_POLICIES.register("weights")
class Weights(AllreducePolicy):
    """Shares in proportion to the numbers of the argument."""

    equation = "Eq. 5, fixed shares"
    usages = (":99:1",)

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a planner of the weights in the argument."""
        return FixedWeights(costs, [float(weight) for weight in argument.split(":")])

    def problem(self, argument: str, rails: Sequence[str]) -> str | None:
        """Return the form of the argument, if it has another."""
        numbers = re.fullmatch(r"\d{1,6}(:\d{1,6}){" + str(len(rails) - 1) + "}", argument)
        if numbers and any(map(int, argument.split(":"))):
            return None
        example = ":".join(["weights", "99", *["1"] * (len(rails) - 1)])
        return f"must have a whole number a rail, not all 0: {example}"
