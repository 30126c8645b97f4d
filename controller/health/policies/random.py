"""A rail drawn for each pair, from the seed and the pair alone."""

from hashlib import blake2b

from railyard.controller.health.decision import over_rail
from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores, direct_path, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@HEALTH_POLICIES.register("random")
class RandomRail(HealthPolicy):
    """A rail drawn for each pair, from the seed and the pair alone."""

    order, uses_scores = 3, False

    @staticmethod
    def choose(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
        """Return the path over the drawn rail."""
        if src.domain == dst.domain:
            return single(direct_path(src, dst))
        number = int.from_bytes(blake2b(repr((context.seed, *src, *dst)).encode(), digest_size=8).digest(), "big")
        return single(over_rail(number % len(scores.rails), src, dst))
