"""dr or rd by h-ratio; drd by best fit where a third rail is routable (health routing, part 2)."""

from railyard.controller.health.decision import choose_path
from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@HEALTH_POLICIES.register("health-drd")
class HealthBestFit(HealthPolicy):
    """dr or rd by h-ratio; drd by best fit where a third rail is routable (health routing, part 2)."""

    order = 5

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return the path by best fit."""
        return single(choose_path(src, dst, scores))
