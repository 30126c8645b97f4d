"""The fabric's own path: over the spine layer where there is one, else dr. To compare fabrics, each by its own path."""

from railyard.controller.health.policy import Context, Scores, direct_path, health_policy, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares, path_of


@health_policy("base", order=90, uses_scores=False, is_default=False)
def own_path(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """The fabric's own path: over the spine layer where there is one, else dr."""
    direct = direct_path(src, dst)
    if direct:
        return single(direct)
    if context.spine:
        return single(path_of("spine", src.rank))
    return single(path_of("dr", dst.rank))
