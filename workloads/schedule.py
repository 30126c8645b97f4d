"""Schedules, the type that every workload becomes and that the replay runs, and the limits of their size.

A schedule is a program for each GPU. What a task waits for must end at the GPU that does it (a transfer's sender, or a
computation's GPU): so the replay needs no coordination while it runs. Phases group tasks under one name, for measuring
and predicting; they don't order anything. A `Program` appends to a schedule: a step of a GPU waits for what that GPU
did last, and for what was sent to it then, as with blocking collectives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np

from railyard.core.errors import BadInput
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.prediction import Stated
from railyard.workloads.columns import Columns, Numbers
from railyard.workloads.tasks import Compute, Task, Transfer


@dataclass(frozen=True, slots=True)
class Phase:
    """A named step, and what a prediction needs to know of it.

    `kind`: the kind of traffic (TP, PP, DP, EP, collective, or any other name), by which views group and colour it.
    `collective`: the name of the algorithm that it runs; empty for transfers of its own, which no algorithm describes.
    `x` GPUs of each HB domain and `y` domains take part (a group; all groups run alike). `data_bytes` is the equation's
    D: for AllGather and ReduceScatter the whole gathered data of a group, for AllReduce the buffer that every GPU ends
    with, for all-to-all and point to point the bytes a pair (of an uneven one the mean, if each GPU's own part counts).
    `repeats`: how often it runs, one after the other.
    `shares`: of an uneven all-to-all, the part of all bytes that is for (dispatch) or from (combine) each GPU of the
    grid.

    A schedule numbers each run of a collective as a phase of its own (`repeats` 1), so that each can be timed; runs
    that are alike share a name, and are reported under it. Only an `Iteration` counts with `repeats`. `stage` and
    `step` say for people which pipeline stage and which pass or micro-batch a run belongs to. `communicator`: the name
    of its process group, if it has one.
    """

    name: str
    kind: str
    collective: str
    x: int
    y: int
    data_bytes: float
    repeats: int = 1
    shares: tuple[float, ...] = ()
    stage: str = field(default="", compare=False)
    step: str = field(default="", compare=False)
    communicator: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Iteration:
    """A training iteration as Rail-only Eq. 6-11 see it, with every stage of the pipeline in HB domains of its own.

    `compute_s` is t(b): forward and backward of one micro-batch at one stage. `each_micro_batch`: the collectives that
    this takes at a stage, one after the other. `boundary`: what goes from stage to stage, None without a pipeline.
    `sync`: what follows the last micro-batch.
    """

    stages: int
    micro_batches: int
    virtual_stages: int
    compute_s: float
    each_micro_batch: tuple[Phase, ...]
    boundary: Phase | None
    sync: tuple[Phase, ...]
    bubble_has_collectives: bool = False


@dataclass(frozen=True)
class Schedule:
    """The tasks of `gpus` GPUs (`rails` to a domain), in an order in which every task comes after what it waits for.

    `stated`: predictions of the workload's own, by phase name, and for the whole under WHOLE, on the links that it was
    built for; the others follow from the bytes of its transfers. `is_uneven`: its GPUs don't compute alike, which no
    formula counts.
    """

    name: str
    gpus: int
    rails: int
    phases: tuple[Phase, ...]
    tasks: Sequence[Task]
    iteration: Iteration | None = None
    stated: Mapping[str, Stated] = field(default_factory=dict, hash=False)
    is_uneven: bool = False

    @cached_property
    def transfers(self) -> tuple[tuple[int, Transfer], ...]:
        """(task number, transfer), in order."""
        return tuple((i, t) for i, t in enumerate(self.tasks) if isinstance(t, Transfer))

    @cached_property
    def columns(self) -> Columns:
        """The tasks in arrays."""
        return Columns.of(self.tasks)

    @cached_property
    def matrix(self) -> dict[tuple[int, int], int]:
        """Bytes for each pair (src, dst) that sends any, in the order of their first transfers."""
        columns = self.columns
        transfers = np.flatnonzero(~self.columns.is_compute)
        pairs = columns.src[transfers] * self.gpus + columns.dst[transfers]
        total = np.zeros(self.gpus**2, dtype=np.int64)
        first = np.full(self.gpus**2, -1)
        np.add.at(total, pairs, columns.bytes[transfers])
        # of equal indices, the last assignment stays
        first[pairs[::-1]] = transfers[::-1]
        used = np.flatnonzero(first >= 0)
        used = used[np.argsort(first[used])]
        src, dst = np.divmod(used, self.gpus)
        ends = zip(src.tolist(), dst.tolist(), strict=True)
        return dict(zip(ends, total[used].tolist(), strict=True))

    def check(self) -> None:
        """ValueError unless every task waits only for earlier tasks that end where it runs."""
        columns = self.tasks if isinstance(self.tasks, Columns) else None
        suspects = range(len(self.tasks)) if columns is None else columns.suspects()
        for number in suspects:
            task = self.tasks[number]
            own_gpu = task.src if isinstance(task, Transfer) else task.gpu
            if isinstance(task, Transfer) and (task.src == task.dst or task.bytes <= 0):
                raise ValueError(f"task {number}: a transfer needs two GPUs and at least one byte: {task}")
            if isinstance(task, Transfer) and task.stripe < 0:
                raise ValueError(f"task {number}: stripes are numbered from 0: {task}")
            for dependency in task.after:
                if not 0 <= dependency < number:
                    raise ValueError(f"task {number} waits for task {dependency}, which doesn't come before it")
                earlier = self.tasks[dependency]
                end_gpus = (earlier.src, earlier.dst) if isinstance(earlier, Transfer) else (earlier.gpu,)
                if own_gpu not in end_gpus:
                    where = f"task {number} at GPU {own_gpu}"
                    raise ValueError(f"{where} waits for task {dependency}, which ends elsewhere")


Grid = tuple[tuple[int, ...], ...]
"""GPU numbers, a row for each HB domain and a column for each rail: y rows of x GPUs (Rail-only Table I)."""

MAX_TASKS: Final = 2**18  # of a schedule on 64 GPUs or fewer: seconds to make, and a quarter of a gigabyte
MAX_GPU_TASKS: Final = 2**12  # on average on more GPUs: twice as many as a ring of 1,024 GPUs has
COUNTED_TASKS: Final = 3 * MAX_TASKS  # beyond the most that a schedule may have: they are counted, to say how many
MAX_RUNS: Final = 2**16  # phases of a schedule, each of which is made by itself
MAX_TRANSFER_BYTES: Final = 2**62  # their sums are 64-bit integers
MAX_EXPERIMENT_TASKS: Final = 2**20  # of all schedules of an experiment, each of which is made before it starts


MAX_GPUS: Final = 1024  # all-to-all has a transfer a pair; beyond a million of them, the schedule itself is too much


class TooManyTasks(ValueError):
    """A schedule that takes too long to make; the message says how many tasks it would have, and how many it may."""


def _check_bytes(size: int) -> None:
    if size >= MAX_TRANSFER_BYTES:
        raise TooManyTasks(f"must send fewer than {MAX_TRANSFER_BYTES:,} bytes at once")


def check_total(tasks: int, gpus: int, field: str, value: object) -> None:
    """Raise BadInput if an experiment's schedules up to that of this field have too many tasks.

    `gpus`: of its largest fabric, as a single schedule on many GPUs may have more than all may have on few.
    """
    most = max(MAX_EXPERIMENT_TASKS, MAX_GPU_TASKS * gpus)
    if tasks > most:
        allowed = f"makes {tasks:,} transfers and computations together with those before it: {most:,} are allowed"
        raise BadInput(field, value, allowed)


def check_gpus(domains: int, rails: int, field: str) -> None:
    """Raise BadInput if a fabric with so many domains of `rails` GPUs is too large for workloads and random faults."""
    if domains * rails > MAX_GPUS:
        most = f"workloads and random faults are for {MAX_GPUS:,} or fewer"
        allowed = f"makes {domains * rails:,} GPUs with {rails} rails: {most}"
        raise BadInput(field, domains, allowed)


class Program:
    """The tasks so far of `domains` HB domains with `rails` GPUs each.

    `gpu_tasks`: the most on average for each GPU, where there are more than 64.
    """

    def __init__(self, domains: int, rails: int, gpu_tasks: int = MAX_GPU_TASKS) -> None:
        self.domains = domains
        self.rails = rails
        self._most = max(MAX_TASKS, gpu_tasks * domains * rails)
        self._phases: list[Phase] = []
        self._blocks: list[Columns] = []  # the first tasks
        self._tasks: list[Task] = []  # those after them
        self._count = 0
        self._last: dict[int, tuple[int, ...]] = {}

    @property
    def grid(self) -> Grid:
        """Every GPU."""
        return tuple(tuple(range(d * self.rails, (d + 1) * self.rails)) for d in range(self.domains))

    @property
    def count(self) -> int:
        """The number of tasks so far, and so of the next one."""
        return self._count

    @property
    def fits(self) -> bool:
        """Whether there are no more tasks so far than a schedule may have."""
        return self._count <= self._most

    def phase(self, phase: Phase) -> int:
        """Start one run of a collective (or of any other named step); returns the phase's number."""
        self.check_runs(1)
        self._phases.append(phase)
        return len(self._phases) - 1

    def last(self, gpu: int) -> tuple[int, ...]:
        """The tasks that the GPU's next step waits for."""
        return self._last.get(gpu, ())

    def wait_for(self, gpu: int, tasks: Iterable[int]) -> None:
        """Let the GPU's next step wait for these tasks, which must end at it and cover what it waited for before."""
        self._last[gpu] = tuple(dict.fromkeys(tasks))

    def send(self, src: int, dst: int, size: int, phase: int, after: Iterable[int], stripe: int = 0) -> int:
        """Append a transfer of `size` bytes; returns its task number. The caller says what follows it."""
        _check_bytes(size)
        return self._append(Transfer(src, dst, size, phase, tuple(dict.fromkeys(after)), stripe))

    def compute(self, gpu: int, seconds: float, phase: int) -> None:
        """The GPU computes, and its next step waits for that. No time, no task."""
        if seconds > 0:
            self.wait_for(gpu, [self._append(Compute(gpu, seconds, phase, self.last(gpu)))])

    def check_count(self, more: int) -> None:
        """Raise TooManyTasks if so many more tasks than now are more than can be counted one by one."""
        if self._count + more > self._most + COUNTED_TASKS:
            raise self._too_many(f"{self._count + more:,} or more")

    def _too_many(self, number: str) -> TooManyTasks:
        gpus = self.domains * self.rails
        limit = f"{self._most:,} or fewer are allowed on its {gpus:,} GPUs"
        return TooManyTasks(f"makes {number} transfers and computations: {limit}")

    def check_runs(self, more: int) -> None:
        """Raise TooManyTasks if so many more phases than now are more than the schedule may have."""
        if len(self._phases) + more > MAX_RUNS:
            number = len(self._phases) + more
            allowed = f"{MAX_RUNS:,} or fewer are allowed"
            raise TooManyTasks(f"makes {number:,} or more phases (runs of collectives, rounds): {allowed}")

    def _append(self, task: Task) -> int:
        self.check_count(1)
        self._count += 1
        if self.fits:
            self._tasks.append(task)
        else:
            # counted and not kept, so that TooManyTasks says how many there would be
            self._drop_tasks()
        return self._count - 1

    def _drop_tasks(self) -> None:
        """Free the memory of a schedule that won't be made."""
        self._tasks.clear()
        self._blocks.clear()

    def send_all(
        self, ends: Numbers, sizes: Numbers, phase: int, first: Sequence[Sequence[int]], later: Numbers
    ) -> int:
        """Append transfers, (n, 2) sources and destinations with the bytes of each; returns the first one's number.

        `first`: what each of the first ones waits for.
        `later`: the same for those after them, an array with a row each. The numbers that a transfer waits for must
        differ.
        """
        n = len(ends)
        self.check_count(n)
        _check_bytes(max(sizes, default=0) if sizes.dtype == object else sizes.max(initial=0))
        self._count += n
        if not self.fits:
            self._drop_tasks()
            return self._count - n
        if self._tasks:
            self._blocks.append(Columns.of(self._tasks))
            self._tasks = []
        after_end = np.cumsum([*map(len, first), *[later.shape[1]] * len(later)], dtype=np.int64)
        after_first = np.array(list(chain.from_iterable(first)), dtype=np.int64)
        # columns of one value take no memory
        block = Columns(
            src=ends[:, 0],
            dst=ends[:, 1],
            bytes=sizes,
            seconds=np.broadcast_to(0.0, n),
            is_compute=np.broadcast_to(False, n),
            phase=np.broadcast_to(np.int64(phase), n),
            stripe=np.broadcast_to(np.int64(0), n),
            after_end=after_end,
            after=np.concatenate([after_first, later.ravel()]),
        )
        self._blocks.append(block)
        return self._count - n

    def schedule(
        self, name: str, iteration: Iteration | None = None, stated: Mapping[str, Stated] | None = None
    ) -> Schedule:
        """The finished schedule, checked, with predictions of its own. TooManyTasks if it has more than it may."""
        if not self.fits:
            raise self._too_many(f"{self._count:,}")
        tasks: Sequence[Task] = tuple(self._tasks)
        if self._blocks:
            tasks = Columns.joined([*self._blocks, Columns.of(tasks)])
        phases = tuple(self._phases)
        done = Schedule(name, self.domains * self.rails, self.rails, phases, tasks, iteration, stated or {})
        done.check()
        return done


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes of payload a second, per GPU and direction, of both kinds of link."""

    hb: float
    rail: float


def payload_rates(hb_bps: int, rail_bps: int, mtu: int) -> Rates:
    """Return the payload rates of links with these rates in bit/s."""
    fraction = payload_fraction(mtu) / 8
    return Rates(hb=hb_bps * fraction, rail=rail_bps * fraction)
