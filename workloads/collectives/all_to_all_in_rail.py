"""All-to-all among the GPUs of each rail; Rail-only Eq. 3, second term."""

from railyard.workloads.collectives.algorithm import ALGORITHMS, Algorithm, Exchange, Stages, columns, shifts
from railyard.workloads.schedule import Grid, Phase


@ALGORITHMS.register("all-to-all-in-rail")
class InRailAllToAll(Algorithm):
    """D bytes between every two GPUs of a rail, all rails at once."""

    collective = "all-to-all"
    algorithm = "in-rail"
    equation = "Eq. 3, second term"
    per_rail = True
    formula = "(y−1)·D/C_S"

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Exchange on every rail."""
        yield [Exchange(shifts(rail), phase.data_bytes) for rail in columns(grid)]

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
        return (phase.y - 1) * phase.data_bytes / rail_bytes_per_s
