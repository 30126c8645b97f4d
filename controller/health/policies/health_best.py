"""The path of the best score; pairs spread over rails that are as good (not in the papers)."""

from railyard.controller.health.policy import Context, Scores, best_path, health_policy, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@health_policy("health-best", order=7, is_rate_aware=True)
def best(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """The path of the best score; pairs spread over rails that are as good (not in the papers)."""
    return single(best_path(src, dst, scores, context))
