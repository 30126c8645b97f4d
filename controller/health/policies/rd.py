"""Always rd: the own rail first, then the destination's HB domain."""

from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores, direct_path, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares, path_of


@HEALTH_POLICIES.register("rd")
class RailFirst(HealthPolicy):
    """Always rd: the own rail first, then the destination's HB domain."""

    order, uses_scores = 1, False

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return rd, or the direct path."""
        return single(direct_path(src, dst) or path_of("rd", src.rank))
