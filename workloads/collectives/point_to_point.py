"""A transfer between two GPUs: of one rail (x = 1, y = 2), or of one HB domain (x = 2, y = 1)."""

import numpy as np

from railyard.workloads.collectives.algorithm import ALGORITHMS, Algorithm, Exchange, Stages
from railyard.workloads.schedule import Grid, Phase


@ALGORITHMS.register("point-to-point")
class PointToPoint(Algorithm):
    """D bytes from the first GPU of the grid to the second."""

    equation = "bytes over rate"
    formula = "(y−1)·D/C_S + (x−1)·D/C_F"

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Send."""
        yield [Exchange([np.array(grid, dtype=np.int64).reshape(1, 2)], phase.data_bytes)]

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
        return phase.data_bytes / (rail_bytes_per_s if phase.y > 1 else hb_bytes_per_s)
