"""Always dr: the own HB domain first, then the destination's rail (Rail-only IV-B)."""

from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores, direct_path, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares, path_of


@HEALTH_POLICIES.register("dr")
class DirectRoute(HealthPolicy):
    """Always dr: the own HB domain first, then the destination's rail (Rail-only IV-B)."""

    order, uses_scores = 0, False

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return dr, or the direct path."""
        return single(direct_path(src, dst) or path_of("dr", dst.rank))
