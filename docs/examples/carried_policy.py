"""Allreduce policy `carried`: each rail gets a share in proportion to the bytes per second that it carries.

MRIB weighs rails by the rates on their data sheets. This policy weighs them by the time that a byte of an allreduce
takes on each: the slower of link and CPU, times the part of the buffer that passes it (all of it on a tree, 2(N-1)/N on
a ring). Set-up latency is left out, so small buffers are split too.

    sudo script/run run multirail-quick --plugin docs/examples/carried_policy.py -o 'policies=[carried, mrib, single]'
"""

from collections.abc import Sequence

from railyard.workloads.allreduce.balancing.costs import Cost, Rail
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, FixedWeights, Planner


@ALLREDUCE_POLICIES.register("carried")
class Carried(AllreducePolicy):
    """Shares in proportion to 1 / (seconds per byte)."""

    equation = "Eq. 5, shares by what rails carry"  # what `predict` shows; the time follows from the planner
    colour = "pink"

    def planner(self, rails: Sequence[Rail], costs: Sequence[Cost], argument: str) -> Planner:
        """Return a planner for these rails. All nodes must plan alike, so it depends on its arguments alone."""
        return FixedWeights(costs, [1 / cost.s_per_byte for cost in costs])
