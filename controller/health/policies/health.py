"""dr or rd, by h-ratio (health routing, part 1)."""

from railyard.controller.health.policy import Context, Scores, health_policy, near_path, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@health_policy("health", order=4)
def health_ratio(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """dr or rd, by h-ratio (health routing, part 1)."""
    return single(near_path(src, dst, scores))
