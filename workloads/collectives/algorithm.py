"""The registry of collective algorithms, and what a definition of one has.

An algorithm is one file: the collective that it implements, its stages, from which both its tasks and its predicted
time follow, and its closed form in the papers. Sources: Rail-only section III-B and Eq. 1 (AllGather: rails first, then
HB domains; ReduceScatter the other way round), section IV-B and Eq. 2-3 (all-to-all).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar, Final

from railyard.core.registry import Registry
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.stages import IN_FLIGHT, Stages, columns, whole_bytes
from railyard.workloads.schedule import Grid, Phase, Program, Schedule


class Algorithm(ABC):
    """A way to run a collective on a grid of y HB domains by x ranks."""

    collective: ClassVar[str] = ""
    """The collective that it implements, such as all-gather; empty if it can't stand by itself as a workload."""
    algorithm: ClassVar[str] = ""  # its name among the algorithms of its collective, such as ring
    equation: ClassVar[str] = ""  # the closed form, as tables name it: "Eq. 3"; empty if there is none.
    per_rail: ClassVar[bool] = False
    """Whether, as a workload of its own, it runs on each rail by itself, all rails at once."""
    is_divided: ClassVar[bool] = False
    """Whether D (`Phase.data_bytes`) is divided evenly over the GPUs of a group; else it is the bytes of each pair."""

    uneven: ClassVar[tuple[str, ...]] = ()
    """Of an all-to-all: the algorithms that dispatch and combine uneven bytes in the same way; empty if none do."""
    part_of: ClassVar[str] = ""  # the collective that it is a form of, although it can't stand by itself as a workload

    @abstractmethod
    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Yield what runs one after the other on a grid of `phase.y` by `phase.x` GPUs."""

    def closed_form_s(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float | None:
        """Return the time of one run by the papers' equation, in s; None if there is none.

        Predictions come from the bottleneck link of the stages; this names the equation that it equals.
        """
        return None

    def is_default(self, fabric: FabricSpec) -> bool:
        """Return whether `algorithm: auto` means this algorithm on a fabric: by default the hierarchical one."""
        return self.algorithm == "hierarchical"

    def emit(self, program: Program, phase: Phase, number: int, grid: Grid, in_flight: int = IN_FLIGHT) -> None:
        """Append the tasks of one run on a grid, of phase number `number`."""
        for stage in self.stages(phase, grid):
            for transport in stage:
                transport.emit(program, number, in_flight)


def _problems(name: str, definition: Algorithm) -> Iterator[str]:
    if bool(definition.collective) != bool(definition.algorithm):
        yield "collective and algorithm must be given together"
    if definition.equation and type(definition).closed_form_s is Algorithm.closed_form_s:
        yield f"names {definition.equation}, but closed_form_s is missing"


ALGORITHMS: Final = Registry[Algorithm](
    "collective algorithm", "railyard.workloads.collectives", Algorithm, check=_problems
)
"""Every algorithm by its full name, such as all-gather-ring: `Phase.collective`."""


def collectives() -> tuple[str, ...]:
    """Return the collectives that can stand by themselves as a workload."""
    return tuple(sorted({a.collective for _, a in ALGORITHMS.items() if a.collective}))


def algorithms_of(collective: str, on_grid: bool = False) -> dict[str, str]:
    """Return the full name of each algorithm of a collective by its short name.

    `on_grid`: only those that connect all GPUs of a grid, and not each rail by itself.
    """
    return {
        a.algorithm: name
        for name, a in sorted(ALGORITHMS.items())
        if collective and a.collective == collective and not (on_grid and a.per_rail)
    }


def check_algorithm(collective: str, algorithm: str, on_grid: bool = False) -> str:
    """Return the name of an algorithm, as YAML has it, if it is auto or one of the collective's; else ValueError."""
    known = algorithms_of(collective, on_grid)
    if algorithm != "auto" and algorithm not in known:
        raise ValueError(f"is not for {collective}: allowed are auto, {', '.join(known)}")
    return algorithm


def chosen_algorithm(collective: str, algorithm: str, fabric: FabricSpec) -> str:
    """Return the full name of an algorithm; `auto` is the fabric's default, or the first one if none is a default."""
    names = algorithms_of(collective)
    if algorithm != "auto":
        return names[algorithm]
    defaults = (name for name in names.values() if ALGORITHMS[name].is_default(fabric))
    return next(defaults, next(iter(names.values())))


def sizing_algorithm(collective: str) -> str:
    """Return the full name of the algorithm by which a duration becomes bytes: the default of rail-only."""
    return chosen_algorithm(collective, "auto", FabricSpec.model_construct(kind="rail-only"))


def operation_of(phase: Phase) -> str:
    """Return the collective that a phase is a run of, such as all-to-all; "" for transfers of its own."""
    algorithm = ALGORITHMS[phase.collective] if phase.collective else None
    return algorithm.collective or algorithm.part_of if algorithm else ""


def whole_phase(
    name: str, kind: str, collective: str, x: int, y: int, data_bytes: float, shares: tuple[float, ...] = ()
) -> Phase:
    """Return a phase whose D is rounded up to whole bytes, of each pair or of each GPU of a group."""
    n = x * y if ALGORITHMS[collective].is_divided else 1
    return Phase(name, kind, collective, x, y, n * whole_bytes(data_bytes / n), shares=shares)


def run(program: Program, phase: Phase, *grids: Grid, compute_s: float = 0.0, in_flight: int = IN_FLIGHT) -> None:
    """Append one run of a phase's collective on grids, after `compute_s` of computing on each of their GPUs."""
    number = program.phase(phase)
    for grid in grids:
        for gpu in chain.from_iterable(grid):
            program.compute(gpu, compute_s, number)
        ALGORITHMS[phase.collective].emit(program, phase, number, grid, in_flight)


def collective_schedule(name: str, domains: int, rails: int, data_bytes: float, in_flight: int = IN_FLIGHT) -> Schedule:
    """Build the schedule of one collective among all GPUs, by the full name of its algorithm.

    `data_bytes` is the D of `Phase`; what doesn't divide evenly is rounded up, and the phase has the rounded value.
    ValueError for an algorithm that can't stand by itself.
    """
    algorithm, program = ALGORITHMS[name], Program(domains, rails)
    if not algorithm.collective:
        raise ValueError(f"{name} is not a collective that stands by itself")
    grids = [tuple((gpu,) for gpu in rail) for rail in columns(program.grid)] if algorithm.per_rail else [program.grid]
    phase = whole_phase(name, "collective", name, len(grids[0][0]), domains, data_bytes)
    run(program, phase, *grids, in_flight=in_flight)
    return program.schedule(name)
