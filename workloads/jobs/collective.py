"""A schedule of one plain collective on a whole fabric."""

from collections.abc import Callable
from typing import Final

from railyard.workloads.collectives import algorithms
from railyard.workloads.collectives.algorithms import IN_FLIGHT, columns, whole_bytes
from railyard.workloads.program import Grid, Program
from railyard.workloads.schedule import Collective, Phase, Schedule

ALL_TO_ALLS: Final[dict[Collective, Callable[[Program, Grid, int, int, int], None]]] = {
    "all-to-all": algorithms.all_to_all_direct,
    "all-to-all-in-rail": algorithms.all_to_all_in_rail,
    "all-to-all-two-phase": algorithms.all_to_all_two_phase,
}
CHUNKED: Final[dict[Collective, Callable[[Program, Grid, int, int], None]]] = {
    "all-gather-ring": algorithms.all_gather,
    "all-gather-hierarchical": algorithms.all_gather,
    "reduce-scatter-ring": algorithms.reduce_scatter,
    "reduce-scatter-hierarchical": algorithms.reduce_scatter,
    "all-reduce-ring": algorithms.all_reduce,
    "all-reduce-hierarchical": algorithms.all_reduce,
}


def collective_schedule(
    collective: Collective, domains: int, rails: int, data_bytes: float, in_flight: int = IN_FLIGHT
) -> Schedule:
    """One collective among all GPUs. The rings, and the in-rail all-to-all, run on each rail by itself, all at once.

    `data_bytes` is the D of `Phase`; what doesn't divide evenly is rounded up, and the phase says to what.
    """
    program = Program(domains, rails)
    if collective in ALL_TO_ALLS:
        pair = whole_bytes(data_bytes)
        x = 1 if collective == "all-to-all-in-rail" else rails
        number = program.phase(Phase(collective, "collective", collective, x, domains, pair))
        ALL_TO_ALLS[collective](program, program.grid, pair, number, in_flight)
        return program.schedule(collective)
    if collective not in CHUNKED:
        raise ValueError(f"{collective} is not a collective that stands by itself")
    rings = collective.endswith("-ring")
    grids = [tuple((gpu,) for gpu in rail) for rail in columns(program.grid)] if rings else [program.grid]
    x = len(grids[0][0])
    chunk = whole_bytes(data_bytes / (x * domains))
    number = program.phase(Phase(collective, "collective", collective, x, domains, chunk * x * domains))
    for grid in grids:
        CHUNKED[collective](program, grid, chunk, number)
    return program.schedule(collective)
