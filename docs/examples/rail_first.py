"""Collective algorithm `all-to-all` by `rail-first`: the two phases of Rail-only Eq. 3 the other way round.

First G(d, g) sends G(e, g), on its own rail, the data for all x GPUs of domain e. Then G(e, g) hands each GPU of its
domain the data that the y GPUs of its rail have for that GPU. Every byte takes one rail hop and one HB hop, as with
HB domains first, so the closed form is the same; the order matters where one of the two networks is busy.

    sudo script/run run collectives --plugin docs/examples/rail_first.py -o 'workloads=[{kind: collective,
        collective: all-to-all, algorithm: rail-first}]'
"""

from railyard.workloads.collectives.algorithm import ALGORITHMS, Algorithm, Exchange, Stages, columns, shifts
from railyard.workloads.collectives.all_to_all_two_phase import all_to_all_two_phase_s
from railyard.workloads.schedule import Grid, Phase


@ALGORITHMS.register("all-to-all-rail-first")
class RailFirstAllToAll(Algorithm):
    """`phase.data_bytes` for every pair of the grid, by way of the receiver's domain."""

    collective, algorithm, equation = "all-to-all", "rail-first", "Eq. 3, rails first"
    formula = "y·(x−1)·D/C_F + x·(y−1)·D/C_S"  # shown by reports, with the values of the run

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Yield the transports of each stage; their tasks and the predicted time follow from them."""
        y, x = len(grid), len(grid[0])
        yield [Exchange(shifts(rail), phase.data_bytes * x) for rail in columns(grid)]
        yield [Exchange(shifts(domain), phase.data_bytes * y) for domain in grid]

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
        """Return the paper's time in s: `predict` names the equation if the bottleneck-link bound equals it."""
        return all_to_all_two_phase_s(phase.data_bytes, phase.x, phase.y, hb_bytes_per_s, rail_bytes_per_s)
