"""The paths that oracle.py assigned from full knowledge of the load; dr for a pair without a flow."""

from railyard.controller.health.policies.dr import DirectRoute
from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@HEALTH_POLICIES.register("oracle")
class Oracle(HealthPolicy):
    """The paths that oracle.py assigned from full knowledge of the load; dr for a pair without a flow."""

    order, uses_scores, is_damped, knows_load = 9, False, False, True

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return the assigned paths, or dr."""
        return context.assigned.get((src, dst)) or DirectRoute.choose(src, dst, scores, context)
