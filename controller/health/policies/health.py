"""dr or rd, by h-ratio (health routing, part 1)."""

from railyard.controller.health.decision import near_path
from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@HEALTH_POLICIES.register("health")
class HealthRatio(HealthPolicy):
    """dr or rd, by h-ratio (health routing, part 1)."""

    order = 4

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return the near path."""
        return single(near_path(src, dst, scores))
