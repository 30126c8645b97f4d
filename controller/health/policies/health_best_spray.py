"""Each pair evenly over all rails of the best score (not in the papers)."""

from railyard.controller.health.policy import Context, Scores, best_paths, health_policy
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Share, Shares


@health_policy("health-best-spray", order=8, is_rate_aware=True)
def best_spray(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Each pair evenly over all rails of the best score (not in the papers)."""
    return tuple(map(Share, best_paths(src, dst, scores, context)))
