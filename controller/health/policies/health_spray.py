"""The rails within delta of m, evenly, where health-drd takes one (health routing, part 2)."""

from railyard.controller.health.decision import spray_paths
from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Share, Shares


@HEALTH_POLICIES.register("health-spray")
class HealthSpray(HealthPolicy):
    """The rails within delta of m, evenly, where health-drd takes one (health routing, part 2)."""

    order = 6

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return the paths of spraying with equal weights."""
        return tuple(map(Share, spray_paths(src, dst, scores, context.delta)))
