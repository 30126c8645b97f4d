"""Uneven experts: how many tokens each gets, and what that makes of an all-to-all's bytes.

Popularity follows a Zipf law, a choice of ours: the n-th in popularity gets tokens in proportion to 1/n^skew, and the
seed decides which GPU's expert is the n-th. Skew 0 is even. Routers with a capacity factor drop or pass on what exceeds
an expert's share; nothing is capped here.
"""

import random

from railyard.workloads.collectives.algorithms import whole_bytes
from railyard.workloads.schedule import Phase


def zipf_shares(experts: int, skew: float, seed: int) -> tuple[float, ...]:
    """The part of all tokens that each expert gets; they add up to 1."""
    weights = [1 / n**skew for n in range(1, experts + 1)]
    random.Random(seed).shuffle(weights)
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def uneven_sizes(phase: Phase) -> dict[tuple[int, int], int]:
    """Whole bytes for each pair (source, destination) of an uneven all-to-all among all GPUs of the grid, in order.

    Every GPU has as many tokens, and `data_bytes` times the number of GPUs of them. Dispatch sends each expert its
    share; combine brings as many bytes back.
    """
    n = len(phase.shares)
    part = [whole_bytes(n * phase.data_bytes * share) for share in phase.shares]
    experts_receive = phase.collective == "all-to-all-dispatch"
    return {(a, b): part[b if experts_receive else a] for a in range(n) for b in range(n) if a != b}
