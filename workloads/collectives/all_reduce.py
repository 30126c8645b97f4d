"""AllReduce: ReduceScatter, then AllGather; Rail-only Eq. 11. A ring allreduce, also hierarchical over a grid."""

from railyard.workloads.collectives.algorithm import ALGORITHMS, Algorithm, Ring, Stages, columns
from railyard.workloads.collectives.all_gather import N, all_gather_s
from railyard.workloads.schedule import Grid, Phase


def all_reduce_s(data_bytes: N, x: N, y: N, hb_bytes_per_s: float, rail_bytes_per_s: float) -> N:
    """Rail-only Eq. 11: AllReduce as ReduceScatter and AllGather, twice Eq. 1."""
    return 2 * all_gather_s(data_bytes, x, y, hb_bytes_per_s, rail_bytes_per_s)


@ALGORITHMS.register("all-reduce-hierarchical")
class AllReduce(Algorithm):
    """Every GPU has D bytes, and ends with the sum of all D."""

    collective = "all-reduce"
    algorithm = "hierarchical"
    equation = "twice Eq. 1"
    is_divided = True
    formula = "2·((y−1)·D/(x·y·C_S) + (x−1)·D/(x·C_F))"

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Reduce in the HB domains, sum over the rails, and gather in the HB domains."""
        # ReduceScatter ends and AllGather begins on the rails, so both run there as one ring of 2 (y - 1) steps
        chunk = phase.data_bytes / (phase.x * phase.y)
        in_domains = [Ring(domain, len(domain) - 1, chunk * len(grid)) for domain in grid]
        yield in_domains
        yield [Ring(rail, 2 * (len(rail) - 1), chunk) for rail in columns(grid)]
        yield in_domains

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
        return all_reduce_s(phase.data_bytes, phase.x, phase.y, hb_bytes_per_s, rail_bytes_per_s)


@ALGORITHMS.register("all-reduce-ring")
class RingAllReduce(AllReduce):
    """The same in one ring: a grid of one column, or of one row."""

    algorithm = "ring"
    equation = "twice Eq. 1, one row or column"
    per_rail = True
