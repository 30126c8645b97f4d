"""Always dr: the own HB domain first, then the destination's rail (Rail-only IV-B)."""

from railyard.controller.health.policy import Context, Scores, direct_path, health_policy, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares, path_of


@health_policy("dr", order=0, uses_scores=False)
def direct_route(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Always dr: the own HB domain first, then the destination's rail (Rail-only IV-B)."""
    return single(direct_path(src, dst) or path_of("dr", dst.rank))
