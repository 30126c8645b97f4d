"""dr or rd by h-ratio; drd by best fit where a third rail is routable (health routing, part 2)."""

from railyard.controller.health.policy import Context, Scores, choose_path, health_policy, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@health_policy("health-drd", order=5)
def best_fit(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """dr or rd by h-ratio; drd by best fit where a third rail is routable (health routing, part 2)."""
    return single(choose_path(src, dst, scores))
