"""ReduceScatter: AllGather backwards, rings in the HB domains, then on the rails; Rail-only section III-B, Eq. 1."""

from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, Algorithm
from railyard.workloads.collectives.all_gather import all_gather_s
from railyard.workloads.collectives.stages import Ring, Stages, columns
from railyard.workloads.schedule import Grid, Phase


class ReduceScatter(Algorithm):
    """Every GPU has D bytes, and ends with the sum of D / (x y) of them."""

    collective, algorithm, equation, is_divided = "reduce-scatter", "hierarchical", "Eq. 1", True

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Reduce in the HB domains to one share for each rail, then on the rails to one chunk for each GPU."""
        chunk = phase.data_bytes / (phase.x * phase.y)
        yield [Ring(domain, len(domain) - 1, chunk * len(grid)) for domain in grid]
        yield [Ring(rail, len(rail) - 1, chunk) for rail in columns(grid)]

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
        return all_gather_s(phase.data_bytes, phase.x, phase.y, hb_bytes_per_s, rail_bytes_per_s)

    def is_default(self, fabric: FabricSpec) -> bool:
        return not self.per_rail


class RingReduceScatter(ReduceScatter):
    """The same in one ring: a grid of one column, or of one row."""

    algorithm, equation, per_rail = "ring", "Eq. 1, one row or column", True


ALGORITHMS.add("reduce-scatter-ring", RingReduceScatter())
ALGORITHMS.add("reduce-scatter-hierarchical", ReduceScatter())
