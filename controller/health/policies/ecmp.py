"""All paths with the fewest hops, flows hashed over them: dr and rd, or the spine where one joins rails."""

from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores, direct_path, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Share, Shares, path_of


@HEALTH_POLICIES.register("ecmp")
class EqualCost(HealthPolicy):
    """All paths with the fewest hops, flows hashed over them: dr and rd, or the spine where one joins rails."""

    order, uses_scores = 2, False

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return dr and rd with equal weights, or the direct path."""
        direct = direct_path(src, dst)
        if direct or context.spine:
            return single(direct or path_of("spine", src.rank))  # spine switches hash by themselves
        return Share(path_of("dr", dst.rank)), Share(path_of("rd", src.rank))
