"""Always rd: the own rail first, then the destination's HB domain."""

from railyard.controller.health.policy import Context, Scores, direct_path, health_policy, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares, path_of


@health_policy("rd", order=1, uses_scores=False)
def rail_first(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Always rd: the own rail first, then the destination's HB domain."""
    return single(direct_path(src, dst) or path_of("rd", src.rank))
