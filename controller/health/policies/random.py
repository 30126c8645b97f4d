"""A rail drawn for each pair, from the seed and the pair alone."""

from hashlib import blake2b

from railyard.controller.health.policy import Context, Scores, direct_path, health_policy, over_rail, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@health_policy("random", order=3, uses_scores=False)
def random_rail(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """A rail drawn for each pair, from the seed and the pair alone."""
    if src.domain == dst.domain:
        return single(direct_path(src, dst))
    number = int.from_bytes(blake2b(repr((context.seed, *src, *dst)).encode(), digest_size=8).digest(), "big")
    return single(over_rail(number % len(scores.rails), src, dst))
