"""Each pair evenly over all rails of the best score (not in the papers)."""

from railyard.controller.health.decision import best_paths
from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Share, Shares


@HEALTH_POLICIES.register("health-best-spray")
class HealthBestSpray(HealthPolicy):
    """Each pair evenly over all rails of the best score (not in the papers)."""

    order, is_rate_aware = 8, True

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return the best paths with equal weights."""
        return tuple(map(Share, best_paths(src, dst, scores, context.delta, context.spine)))
