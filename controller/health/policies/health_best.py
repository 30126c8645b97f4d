"""The path of the best score; pairs spread over rails that are as good (not in the papers)."""

from railyard.controller.health.decision import best_path
from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@HEALTH_POLICIES.register("health-best")
class HealthBest(HealthPolicy):
    """The path of the best score; pairs spread over rails that are as good (not in the papers)."""

    order, is_rate_aware = 7, True

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return the best path."""
        return single(best_path(src, dst, scores, context.delta, context.spine))
