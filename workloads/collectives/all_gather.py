"""AllGather: rings on the rails, then in the HB domains; Rail-only section III-B, Eq. 1."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from railyard.workloads.collectives.algorithm import ALGORITHMS, Algorithm, Ring, Stages, columns
from railyard.workloads.schedule import Grid, Phase

N = TypeVar("N", float, NDArray[np.float64])  # a number, or an array of them; all arguments of a call alike


def all_gather_s(data_bytes: N, x: N, y: N, hb_bytes_per_s: float, rail_bytes_per_s: float) -> N:
    """Rail-only Eq. 1: hierarchical AllGather of `data_bytes` (the whole gathered data), or ReduceScatter."""
    # with x = 1 this is a ring on a rail, with y = 1 a ring in an HB domain
    on_rails = (y - 1) * data_bytes / (x * y * rail_bytes_per_s)
    in_domains = (x - 1) * data_bytes / (x * hb_bytes_per_s)
    return on_rails + in_domains


@ALGORITHMS.register("all-gather-hierarchical")
class AllGather(Algorithm):
    """Every GPU contributes D / (x y) bytes, and ends with D."""

    collective = "all-gather"
    algorithm = "hierarchical"
    equation = "Eq. 1"
    is_divided = True
    formula = "(y−1)·D/(x·y·C_S) + (x−1)·D/(x·C_F)"

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Send each GPU's chunk round its rail, then what each rail has gathered round the HB domain."""
        chunk = phase.data_bytes / (phase.x * phase.y)
        yield [Ring(rail, len(rail) - 1, chunk) for rail in columns(grid)]
        yield [Ring(domain, len(domain) - 1, chunk * len(grid)) for domain in grid]

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
        return all_gather_s(phase.data_bytes, phase.x, phase.y, hb_bytes_per_s, rail_bytes_per_s)


@ALGORITHMS.register("all-gather-ring")
class RingAllGather(AllGather):
    """The same in one ring: a grid of one column, or of one row."""

    algorithm = "ring"
    equation = "Eq. 1, one row or column"
    per_rail = True
