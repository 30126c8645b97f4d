"""The registry of collective algorithms, what a definition of one has, and the exchanges and rings that it consists of.

An algorithm is one file: its collective, its closed form in the papers, and its stages, from which both its tasks and
its predicted time follow. A stage is a number of transports at the same time, on GPUs of their own. Sources: Rail-only
section III-B and Eq. 1 (AllGather: rails first, then HB domains; ReduceScatter the other way round), section IV-B and
Eq. 2-3 (all-to-all).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from math import ceil
from typing import Annotated, ClassVar, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from railyard.core.registry import Registry
from railyard.topologies.prediction import Stated
from railyard.topologies.spec import FabricSpec
from railyard.workloads.schedule import Grid, Phase, Program, Schedule
from railyard.workloads.tasks import EXCHANGE_SLICE_BYTES

# rounds of an exchange that a GPU has under way at most, unless the workload gives another number
MAX_IN_FLIGHT: Final = 16
# rounds of an exchange whose bytes a GPU has yet to send: one is being sent, and the next one is ready
SENDS_WAITING: Final = 2
# A ring sends a chunk in two slices if each has this many bytes or more: the next GPU forwards the first slice while
# the second one is still being sent, so the latency of a step (0.2 to 1 ms here) leaves no gap. NCCL does the same.
SLICE_BYTES: Final = 64_000
MAX_SLICES: Final = 32
FEW_TRANSFERS: Final = 32

Numbers = NDArray[np.int64]
Round = Numbers
"""Source and destination of each transfer, (n, 2): every GPU that takes part is once a source, once a destination."""


class Sizes(NamedTuple):
    """Bytes of pairs of GPU numbers: three arrays of one length."""

    src: Numbers
    dst: Numbers
    bytes: NDArray[np.float64]

    @classmethod
    def of(cls, by_pair: Mapping[tuple[int, int], float]) -> "Sizes":
        """Return the bytes by (source, destination) as arrays."""
        pairs = np.array(list(by_pair), dtype=np.int64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1], np.array(list(by_pair.values()), dtype=np.float64))


def columns(grid: Grid) -> Grid:
    """Return the rails of a grid: GPUs of one rank, domain by domain."""
    return tuple(zip(*grid, strict=True))


def whole_bytes(size: float) -> int:
    """Round a size up to the bytes that a transfer can carry, at least one. Rounding errors below 0.001 don't count."""
    return max(1, ceil(round(size, 3)))


def shifts(group: Sequence[int]) -> list[Round]:
    """Return rounds with every pair of a group: in round r its i-th GPU sends to the (i + r)-th."""
    gpus = np.asarray(group, dtype=np.int64)
    return [np.column_stack((gpus, np.roll(gpus, -r))) for r in range(1, len(gpus))]


def grid_shifts(grid: Grid) -> list[Round]:
    """Return rounds with every pair of a grid: G(d, g) sends to G(d + a, g + b), one round for each (a, b)."""
    # A round stays in the HB domains for all GPUs, or on the rails, or crosses rails, and the three sorts alternate
    # evenly: so HB links, rails and uplinks are all loaded at all times. Rounds by GPU number (i to i + r) mix the
    # sorts, which leaves rails idle: on a 4x4 grid they take a quarter longer.
    y = len(grid)
    x = len(grid[0])
    in_domain = [(0, b) for b in range(1, x)]
    in_rail = [(a, 0) for a in range(1, y)]
    cross_rail = [(a, b) for b, a in product(range(1, x), range(1, y))]
    # each sort is spread evenly over the time from 0 to 1
    placed: list[tuple[float, tuple[int, int]]] = []
    for shifts_of_sort in (in_domain, in_rail, cross_rail):
        for number, shift in enumerate(shifts_of_sort):
            placed.append(((number + 0.5) / len(shifts_of_sort), shift))
    gpus = np.asarray(grid, dtype=np.int64)
    rounds: list[Round] = []
    for _, (a, b) in sorted(placed):
        destinations = np.roll(gpus, (-a, -b), axis=(0, 1))
        rounds.append(np.column_stack((gpus.ravel(), destinations.ravel())))
    return rounds


def rounds_in_flight(rounds: int, in_flight: int | None) -> int:
    """Return how many rounds a GPU has under way: if not given, one with each partner and one more, up to a maximum."""
    # With fewer, links are idle while a GPU waits for a late partner. More let some pairs run ahead: the others finish
    # alone at the end, while other links are idle.
    return in_flight or min(rounds + 1, MAX_IN_FLIGHT)


def sliced(size: int) -> list[int]:
    """Split a pair's bytes into equal slices of EXCHANGE_SLICE_BYTES or more, at most MAX_SLICES."""
    count = max(1, min(MAX_SLICES, size // EXCHANGE_SLICE_BYTES))
    shortest, longer_slices = divmod(size, count)
    return [shortest + 1] * longer_slices + [shortest] * (count - longer_slices)


class Transport(Protocol):
    """Transfers among some GPUs, of which no other transport of the same stage uses any."""

    def emit(self, program: Program, phase: int, in_flight: int | None) -> None:
        """Append the tasks, of phase number `phase`. `in_flight`: as of `rounds_in_flight`."""

    def sizes(self) -> Sizes:
        """Return the bytes of each pair; not rounded to whole bytes."""

    def sequential_steps(self) -> int:
        """Return how many messages follow one another, each sent when the one before has arrived."""


Stages = Iterable[Sequence[Transport]]
"""What an algorithm does, one stage after the other: a GPU begins a stage when its part of the one before has ended."""


@dataclass(frozen=True)
class Exchange:
    """`size` bytes for each pair of each round, in which i sends to i + r: so no receiver has several senders for long.

    Round n waits until round n - SENDS_WAITING has left the GPU, and until round n - `in_flight` was received. All
    rounds run with the first slice of every pair, then with the second, and so on.
    """

    rounds: Sequence[Round]
    size: float

    def sizes(self) -> Sizes:
        pairs = np.concatenate([np.empty((0, 2), dtype=np.int64), *self.rounds])
        return Sizes(pairs[:, 0], pairs[:, 1], np.full(len(pairs), self.size, dtype=np.float64))

    def sequential_steps(self) -> int:
        """Return 1: with several rounds under way, links are busy while a message travels."""
        return 1

    def count(self) -> int:
        """Return the number of transfers."""
        return len(sliced(whole_bytes(self.size))) * sum(map(len, self.rounds))

    def emit(self, program: Program, phase: int, in_flight: int | None = None) -> None:
        if not self.rounds:
            return
        in_flight = rounds_in_flight(len(self.rounds), in_flight)
        # slice after slice: pairs that share a link advance together, and none finishes alone while links are idle
        parts = sliced(whole_bytes(self.size))
        gpus = np.unique(self.rounds[0])
        # of each GPU, by its place among `gpus`: where in each round it sends, and where it receives
        all_rounds = np.stack(self.rounds)
        sends = np.argsort(all_rounds[:, :, 0], axis=1)
        receives = np.argsort(all_rounds[:, :, 1], axis=1)
        rounds, n = sends.shape
        turns = len(parts) * rounds
        slots = np.arange(turns)[:, None] * n + program.count
        sent = slots + np.tile(sends, (len(parts), 1))
        received = slots + np.tile(receives, (len(parts), 1))
        ends = np.tile(np.concatenate(self.rounds), (len(parts), 1))
        # Rounds leave one after the other, as fast as the link allows, and all GPUs are in about the same one; what was
        # received keeps fast GPUs from running ahead.
        lag = min(SENDS_WAITING, in_flight)
        first = [program.last(src) for src in ends[: min(lag, turns) * n, 0].tolist()]
        places = np.searchsorted(gpus, ends[:, 0])
        first += [(number,) for number in _before(sent, lag, lag, in_flight, places).tolist()]
        before_sending = _before(sent, lag, in_flight, turns, places)
        before_receiving = _before(received, in_flight, in_flight, turns, places)
        later = np.column_stack((before_sending, before_receiving))
        program.send_all(ends, np.repeat(parts, rounds * n), phase, first, later)
        for place, gpu in enumerate(gpus.tolist()):
            program.wait_for(gpu, [*sent[-in_flight:, place].tolist(), *received[-in_flight:, place].tolist()])


def _before(numbers: Numbers, lag: int, start: int, stop: int, places: Numbers) -> Numbers:
    """Of each transfer in turns `start` to `stop`: the number, by turn and place, `lag` turns before, at its sender."""
    turns = np.arange(start, min(stop, len(numbers)))
    n = numbers.shape[1]
    return numbers[np.repeat(turns - lag, n), places.reshape(-1, n)[turns].ravel()]


@dataclass(frozen=True)
class UnevenExchange:
    """Each pair of the rounds has its own bytes; a pair without any sends nothing.

    A slot is a round with one slice. What a GPU did in a slot, or waited for if it sent nothing then, is what it waits
    for `in_flight` slots later; and for what it sent SENDS_WAITING sends before.
    """

    rounds: Sequence[Round]
    pair_sizes: Mapping[tuple[int, int], int]

    def sizes(self) -> Sizes:
        return Sizes.of(self.pair_sizes)

    def sequential_steps(self) -> int:
        """Return 1, as for an even exchange."""
        return 1

    def count(self) -> int:
        """Return the number of transfers."""
        return sum(len(sliced(size)) for size in self.pair_sizes.values())

    def emit(self, program: Program, phase: int, in_flight: int | None = None) -> None:
        in_flight = rounds_in_flight(len(self.rounds), in_flight)
        slices = {pair: sliced(size) for pair, size in self.pair_sizes.items()}
        max_slices = max(map(len, slices.values()), default=0)
        rounds = [pairs.tolist() for pairs in self.rounds]
        slots: dict[int, _SlotsOfGpu] = {}
        for gpu in chain.from_iterable(chain.from_iterable(rounds)):
            if gpu not in slots:
                slots[gpu] = _SlotsOfGpu(in_flight)
        for part in range(max_slices):
            for pairs in rounds:
                sizes: dict[tuple[int, int], int] = {}
                for src, dst in pairs:
                    parts = slices.get((src, dst), ())
                    if part < len(parts):
                        sizes[src, dst] = parts[part]
                _emit_slot(program, phase, slots, sizes)
        for gpu, gpu_slots in slots.items():
            program.wait_for(gpu, gpu_slots.last_tasks() or program.last(gpu))


class _SlotsOfGpu:
    """The slots of one GPU so far.

    `done`: in each slot the tasks that it did, or waited for if it sent nothing.
    """

    def __init__(self, in_flight: int) -> None:
        self.done: list[tuple[int, ...]] = []
        self.sends: list[int] = []
        self._in_flight = in_flight
        self._max_waiting = min(SENDS_WAITING, in_flight)

    def before(self, program: Program, gpu: int) -> tuple[int, ...]:
        """Return the tasks that a slot waits for."""
        if len(self.done) < self._in_flight:
            return program.last(gpu)
        return self.done[-self._in_flight]

    def last_tasks(self) -> list[int]:
        """Return the tasks of the slots that are still in flight."""
        return list(chain.from_iterable(self.done[-self._in_flight :]))

    def earlier_send(self) -> tuple[int, ...]:
        """Return the send that must have left before the next one; none while few are waiting."""
        if len(self.sends) < self._max_waiting:
            return ()
        return (self.sends[-self._max_waiting],)


def _emit_slot(
    program: Program, phase: int, slots: Mapping[int, _SlotsOfGpu], sizes: Mapping[tuple[int, int], int]
) -> None:
    """Emit one slice of one round. `sizes`: the bytes of each pair that sends in it."""
    before = {gpu: gpu_slots.before(program, gpu) for gpu, gpu_slots in slots.items()}
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    for (src, dst), size in sizes.items():
        after = (*before[src], *slots[src].earlier_send())
        task = program.send(src, dst, size, phase, after)
        sent[src] = task
        received[dst] = task
        slots[src].sends.append(task)
    for gpu, gpu_slots in slots.items():
        tasks = [sent[gpu]] if gpu in sent else list(before[gpu])
        if gpu in received:
            tasks.append(received[gpu])
        gpu_slots.done.append(tuple(dict.fromkeys(tasks)))


@dataclass(frozen=True)
class Ring:
    """`steps` steps in which each GPU sends `chunk` bytes to the next one: first its own, then what it received last.

    Nothing with fewer than two GPUs.
    """

    group: Sequence[int]
    steps: int
    chunk: float

    def sizes(self) -> Sizes:
        group = self.group if len(self.group) > 1 else ()
        gpus = np.asarray(group, dtype=np.int64)
        return Sizes(gpus, np.roll(gpus, -1), np.full(len(gpus), self.steps * self.chunk, dtype=np.float64))

    def sequential_steps(self) -> int:
        """Return the steps of the ring, or 1 in slices."""
        # one slice is under way while the other is forwarded
        return 1 if whole_bytes(self.chunk) >= 2 * SLICE_BYTES else self.steps

    def emit(self, program: Program, phase: int, in_flight: int | None = None) -> None:
        group = self.group
        chunk = whole_bytes(self.chunk)
        if len(group) < 2:
            return
        slices = [chunk - chunk // 2, chunk // 2] if chunk >= 2 * SLICE_BYTES else [chunk]
        if len(group) * self.steps <= FEW_TRANSFERS:
            self._emit_few(program, phase, slices)
            return
        n = len(group)
        turns = self.steps * len(slices)
        gpus = np.asarray(group, dtype=np.int64)
        ends = np.tile(np.column_stack((gpus, np.roll(gpus, -1))), (turns, 1))
        # of what each GPU sends, by step and slice
        numbers = np.arange(turns * n).reshape(turns, n) + program.count
        begun = len(slices)
        first = [program.last(src) for src in group]
        if begun > 1:
            # the second slice also waits for the GPU's own first one
            for src, first_slice in zip(group, numbers[0].tolist(), strict=True):
                first.append((*program.last(src), first_slice))
        # of what each GPU receives
        received = np.roll(numbers, 1, axis=1)
        later = np.column_stack((received[: turns - begun].ravel(), numbers[begun - 1 : turns - 1].ravel()))
        program.send_all(ends, np.tile(np.repeat(slices, n), self.steps), phase, first, later)
        for place, gpu in enumerate(group):
            program.wait_for(gpu, [int(numbers[-1, place]), *received[-begun:, place].tolist()])

    def _emit_few(self, program: Program, phase: int, slices: list[int]) -> None:
        """Append the same transfers one by one."""
        # an array of a few transfers takes longer to make than they do
        group = self.group
        begun = len(slices)
        # by step and slice, the number of what each GPU sends
        sent: list[list[int]] = []
        for size in slices * self.steps:
            turn = len(sent)
            numbers = []
            for place, src in enumerate(group):
                # what it received last, then what it sent last
                after = [sent[turn - begun][place - 1]] if turn >= begun else list(program.last(src))
                if sent:
                    after.append(sent[-1][place])
                numbers.append(program.send(src, group[(place + 1) % len(group)], size, phase, after))
            sent.append(numbers)
        for place, gpu in enumerate(group):
            received = [numbers[place - 1] for numbers in sent[-begun:]]
            program.wait_for(gpu, [sent[-1][place], *received])


class Algorithm(ABC):
    """A way to run a collective on a grid of y HB domains by x ranks."""

    collective: ClassVar[str] = ""
    """The collective that it implements, such as all-gather; empty if it can't stand by itself as a workload."""
    algorithm: ClassVar[str] = ""  # its name among the algorithms of its collective, such as ring
    equation: ClassVar[str] = ""  # the closed form, as tables name it: "Eq. 3"; empty if there is none.
    formula: ClassVar[str] = ""  # the equation's right side in x, y, D, C_F and C_S, for reports; or empty
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
        """Return the time of one run by the papers' equation, in s; None if there is none."""
        # predictions come from the bottleneck link of the stages: this is the equation that they equal
        return None

    def stated(self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float, fabric: FabricSpec) -> Stated | None:
        """Return what one run takes, or why that can't be predicted; None: the bound of the busiest link."""
        return None

    def is_default(self, fabric: FabricSpec) -> bool:
        """Return whether `algorithm: auto` means this algorithm on a fabric: by default the hierarchical one."""
        return self.algorithm == "hierarchical"

    def emit(self, program: Program, phase: Phase, number: int, grid: Grid, in_flight: int | None = None) -> None:
        """Append the tasks of one run on a grid, of phase number `number`."""
        for stage in self.stages(phase, grid):
            # before any transfer is made: a stage that is too large would take all memory
            exchanges = [transport for transport in stage if isinstance(transport, Exchange | UnevenExchange)]
            program.check_count(sum(exchange.count() for exchange in exchanges))
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
    names = {algorithm.collective for _, algorithm in ALGORITHMS.items()}
    # some can't stand by themselves
    names.discard("")
    return tuple(sorted(names))


def algorithms_of(collective: str, on_grid: bool = False) -> dict[str, str]:
    """Return the full name of each algorithm of a collective by its short name.

    `on_grid`: only those that connect all GPUs of a grid, and not each rail by itself.
    """
    names: dict[str, str] = {}
    for name, algorithm in sorted(ALGORITHMS.items()):
        # those that can't stand by themselves have no collective
        is_of_collective = collective and algorithm.collective == collective
        if is_of_collective and not (on_grid and algorithm.per_rail):
            names[algorithm.algorithm] = name
    return names


def check_algorithm(collective: str, algorithm: str, on_grid: bool = False) -> str:
    """Return the name of an algorithm, as YAML has it, if it is auto or one of the collective's; else ValueError."""
    names = algorithms_of(collective, on_grid)
    if algorithm != "auto" and algorithm not in names:
        raise ValueError(f"is not for {collective}: allowed are auto, {', '.join(names)}")
    return algorithm


AllToAllAlgorithm = Annotated[str, AfterValidator(partial(check_algorithm, "all-to-all", on_grid=True))]


def chosen_algorithm(collective: str, algorithm: str, fabric: FabricSpec) -> str:
    """Return the full name of an algorithm; `auto` is the fabric's default, or the first one if none is a default."""
    names = algorithms_of(collective)
    if algorithm != "auto":
        return names[algorithm]
    for name in names.values():
        if ALGORITHMS[name].is_default(fabric):
            return name
    return next(iter(names.values()))


def sizing_algorithm(collective: str) -> str:
    """Return the full name of the algorithm by which a duration becomes bytes: the default of rail-only."""
    return chosen_algorithm(collective, "auto", FabricSpec.model_construct(kind="rail-only"))


def operation_of(phase: Phase) -> str:
    """Return the collective that a phase is a run of, such as all-to-all; "" for transfers of its own."""
    if not phase.collective:
        return ""
    algorithm = ALGORITHMS[phase.collective]
    return algorithm.collective or algorithm.part_of


def whole_phase(
    name: str, kind: str, collective: str, x: int, y: int, data_bytes: float, shares: tuple[float, ...] = ()
) -> Phase:
    """Return a phase whose D is rounded up to whole bytes, of each pair or of each GPU of a group."""
    n = x * y if ALGORITHMS[collective].is_divided else 1
    return Phase(name, kind, collective, x, y, n * whole_bytes(data_bytes / n), shares=shares)


def run(program: Program, phase: Phase, *grids: Grid, compute_s: float = 0.0, in_flight: int | None = None) -> None:
    """Append one run of a phase's collective on grids, after `compute_s` of computing on each of their GPUs."""
    number = program.phase(phase)
    for grid in grids:
        for gpu in chain.from_iterable(grid):
            program.compute(gpu, compute_s, number)
        ALGORITHMS[phase.collective].emit(program, phase, number, grid, in_flight)


def collective_schedule(
    name: str, domains: int, rails: int, data_bytes: float, in_flight: int | None = None, **limits: int
) -> Schedule:
    """Build the schedule of one collective among all GPUs, by the full name of its algorithm.

    `data_bytes` is the D of `Phase`; what doesn't divide evenly is rounded up, and the phase has the rounded value.
    ValueError for an algorithm that can't stand by itself. `limits`: as of `Program`.
    """
    algorithm = ALGORITHMS[name]
    program = Program(domains, rails, **limits)
    if not algorithm.collective:
        raise ValueError(f"{name} is not a collective that stands by itself")
    grids: list[Grid] = [program.grid]
    if algorithm.per_rail:
        # a rail alone is a grid of one column: its only rail
        grids = [columns((rail,)) for rail in columns(program.grid)]
    phase = whole_phase(name, "collective", name, len(grids[0][0]), domains, data_bytes)
    run(program, phase, *grids, in_flight=in_flight)
    return program.schedule(name)
