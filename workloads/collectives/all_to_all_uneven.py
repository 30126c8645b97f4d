"""The two uneven all-to-alls of a mixture of experts: dispatch of tokens to the experts, and combine of their results.

Every GPU has as many tokens, and D times the number of GPUs of their bytes. Dispatch sends each expert its share
(`Phase.shares`); combine returns as many bytes. No equation of the papers applies, so the bottleneck link decides.
"""

from itertools import chain, permutations

from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.schedule import Grid, Phase


@algorithms.ALGORITHMS.register("all-to-all-dispatch")
class Dispatch(algorithms.Algorithm):
    """Every pair directly, with the destination's share of the bytes."""

    part_of = "all-to-all"
    experts_receive = True

    def pair_sizes(self, phase: Phase, grid: Grid) -> dict[tuple[int, int], int]:
        """Return the whole bytes of each pair (source, destination), in the order of GPU numbers."""
        gpus = list(chain.from_iterable(grid))
        sizes = [algorithms.whole_bytes(len(gpus) * phase.data_bytes * share) for share in phase.shares]
        size_of_experts = dict(zip(gpus, sizes, strict=True))
        pair_sizes: dict[tuple[int, int], int] = {}
        for src, dst in permutations(gpus, 2):
            expert = dst if self.experts_receive else src
            pair_sizes[src, dst] = size_of_experts[expert]
        return pair_sizes

    def stages(self, phase: Phase, grid: Grid) -> algorithms.Stages:
        """Exchange in the rounds of a direct all-to-all."""
        yield [algorithms.UnevenExchange(algorithms.grid_shifts(grid), self.pair_sizes(phase, grid))]


@algorithms.ALGORITHMS.register("all-to-all-combine")
class Combine(Dispatch):
    """The same bytes back: every pair directly, with the source's share of the bytes."""

    experts_receive = False
