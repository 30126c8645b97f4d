"""Direct all-to-all: every GPU sends straight to every other one; Rail-only section IV-B, Eq. 2."""

from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, Algorithm, Exchange, Stages, grid_shifts
from railyard.workloads.schedule import Grid, Phase


def all_to_all_direct_s(pair_bytes: float, x: int, y: int, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
    """Rail-only Eq. 2: uniform all-to-all on rail-optimized, each GPU straight to all others at full bisection."""
    in_domain = (x - 1) * pair_bytes / hb_bytes_per_s
    on_rails = x * (y - 1) * pair_bytes / rail_bytes_per_s
    return max(in_domain, on_rails)


@ALGORITHMS.register("all-to-all")
class DirectAllToAll(Algorithm):
    """D bytes for every pair of the grid, in one stage; the fabric forwards what crosses rails."""

    collective = "all-to-all"
    algorithm = "direct"
    equation = "Eq. 2"
    formula = "max((x−1)·D/C_F, x·(y−1)·D/C_S)"
    uneven = ("all-to-all-dispatch", "all-to-all-combine")

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Exchange in rounds that stay in the HB domains, or leave them, for all GPUs alike."""
        yield [Exchange(grid_shifts(grid), phase.data_bytes)]

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
        return all_to_all_direct_s(phase.data_bytes, phase.x, phase.y, hb_bytes_per_s, rail_bytes_per_s)

    def is_default(self, fabric: FabricSpec) -> bool:
        """Return whether a fabric joins its rails by other switches than the HB domains'."""
        return fabric.definition.joins_rails
