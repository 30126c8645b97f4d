"""ReduceScatter: AllGather backwards, rings in the HB domains, then on the rails; Rail-only section III-B, Eq. 1."""

from railyard.workloads.collectives.algorithm import ALGORITHMS, Ring, Stages, columns
from railyard.workloads.collectives.all_gather import AllGather
from railyard.workloads.schedule import Grid, Phase


@ALGORITHMS.register("reduce-scatter-hierarchical")
class ReduceScatter(AllGather):
    """Every GPU has D bytes, and ends with the sum of D / (x y) of them."""

    collective = "reduce-scatter"

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Reduce in the HB domains to one share for each rail, then on the rails to one chunk for each GPU."""
        chunk = phase.data_bytes / (phase.x * phase.y)
        yield [Ring(domain, len(domain) - 1, chunk * len(grid)) for domain in grid]
        yield [Ring(rail, len(rail) - 1, chunk) for rail in columns(grid)]


@ALGORITHMS.register("reduce-scatter-ring")
class RingReduceScatter(ReduceScatter):
    """The same in one ring: a grid of one column, or of one row."""

    algorithm = "ring"
    equation = "Eq. 1, one row or column"
    per_rail = True
