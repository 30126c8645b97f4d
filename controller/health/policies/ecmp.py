"""All paths with the fewest hops, flows hashed over them: dr and rd, or the spine where one joins rails."""

from railyard.controller.health.policy import Context, Scores, direct_path, health_policy, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Share, Shares, path_of


@health_policy("ecmp", order=2, uses_scores=False)
def equal_cost(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """All paths with the fewest hops, flows hashed over them: dr and rd, or the spine where one joins rails."""
    direct = direct_path(src, dst)
    if direct or context.spine:
        # spine switches hash by themselves
        return single(direct or path_of("spine", src.rank))
    return Share(path_of("dr", dst.rank)), Share(path_of("rd", src.rank))
