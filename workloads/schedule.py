"""Schedules, the one type that every workload becomes and the replay runs, and the scale at which it is emulated.

A schedule is a program for each GPU. What a task waits for must end at the GPU that does it (a transfer's sender, or a
computation's GPU): so the replay needs no coordination while it runs. Phases group tasks under one name, for measuring
and predicting; they don't order anything. A `Program` appends to a schedule: a step of a GPU waits for what that GPU
did last, and for what was sent to it then, as with blocking collectives. A job is scaled in shape, then in time
(docs/workloads.md): time factor = bytes factor / rate factor; HB and rail rates have the same factor.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from railyard.core.errors import BadInput
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.platforms import Platform
from railyard.topologies.prediction import Stated
from railyard.workloads.tasks import Compute, Task, Transfer

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Columns(Sequence[Task]):
    """Tasks in arrays of one length. A computation has its GPU as `src` and as `dst`, and no bytes.

    Task n waits for `after[after_end[n - 1]:after_end[n]]`.
    """

    # each task is made when it is read: a million objects take seconds and a gigabyte
    src: Numbers
    dst: Numbers
    bytes: Numbers
    seconds: npt.NDArray[np.float64]
    is_compute: npt.NDArray[np.bool_]
    phase: Numbers
    stripe: Numbers
    after_end: Numbers
    after: Numbers

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> "Columns":
        """Return tasks in arrays."""
        if isinstance(tasks, Columns):
            return tasks
        rows: list[tuple[int, int, int, float, bool, int, int]] = []
        after: list[int] = []
        for task in tasks:
            if isinstance(task, Transfer):
                rows.append((task.src, task.dst, task.bytes, 0.0, False, task.phase, task.stripe))
            else:
                rows.append((task.gpu, task.gpu, 0, task.seconds, True, task.phase, 0))
            after += task.after
        src, dst, size, seconds, is_compute, phase, stripe = zip(*rows, strict=True) if rows else ((),) * 7
        return cls(
            src=np.array(src, dtype=np.int64),
            dst=np.array(dst, dtype=np.int64),
            bytes=np.array(size, dtype=np.int64),
            seconds=np.array(seconds, dtype=np.float64),
            is_compute=np.array(is_compute, dtype=bool),
            phase=np.array(phase, dtype=np.int64),
            stripe=np.array(stripe, dtype=np.int64),
            after_end=np.cumsum([len(task.after) for task in tasks], dtype=np.int64),
            after=np.array(after, dtype=np.int64),
        )

    @classmethod
    def joined(cls, parts: Sequence["Columns"]) -> "Columns":
        """Return the tasks of all parts, one part after the other."""
        parts = [part for part in parts if len(part)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        joined: dict[str, npt.NDArray[Any]] = {}
        for column in fields(cls):
            joined[column.name] = _joined_column([getattr(part, column.name) for part in parts])
        offsets = np.cumsum([0, *(len(part.after) for part in parts[:-1])])
        joined["after_end"] += np.repeat(offsets, [len(part) for part in parts])
        return cls(**joined)

    def __len__(self) -> int:
        return len(self.src)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        # IndexError, and numbers from the end
        n = range(len(self))[index]
        first = int(self.after_end[n - 1]) if n else 0
        after = tuple(self.after[first : self.after_end[n]].tolist())
        if self.is_compute[n]:
            return Compute(int(self.src[n]), float(self.seconds[n]), int(self.phase[n]), after)
        ends = int(self.src[n]), int(self.dst[n])
        return Transfer(*ends, int(self.bytes[n]), int(self.phase[n]), after, int(self.stripe[n]))

    def __iter__(self) -> Iterator[Task]:
        start = 0
        after = self.after.tolist()
        columns = (getattr(self, f.name).tolist() for f in fields(self)[:-1])
        for src, dst, size, seconds, is_compute, phase, stripe, end in zip(*columns, strict=True):
            waits = tuple(after[start:end])
            start = end
            yield Compute(src, seconds, phase, waits) if is_compute else Transfer(src, dst, size, phase, waits, stripe)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    def __hash__(self) -> int:
        return hash((len(self), int(self.bytes.sum()), int(self.after.sum())))

    def suspects(self) -> list[int]:
        """Return the numbers of the tasks that break a rule of `Schedule.check`."""
        transfers = ~self.is_compute
        number = np.arange(len(self))
        wrong = transfers & ((self.src == self.dst) | (self.bytes <= 0) | (self.stripe < 0))
        waiting = np.repeat(number, np.diff(self.after_end, prepend=0))
        late = (self.after < 0) | (self.after >= waiting)
        other = np.where(late, 0, self.after)
        elsewhere = (self.src[other] != self.src[waiting]) & (self.dst[other] != self.src[waiting])
        wrong[waiting[late | elsewhere]] = True
        return np.flatnonzero(wrong).tolist()


def _joined_column(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the parts of a column as one array; one that repeats a single value without memory stays so."""
    if all(len(part) and part.strides == (0,) for part in parts):
        values = {part[0] for part in parts}
        if len(values) == 1:
            return np.broadcast_to(parts[0][0], sum(map(len, parts)))
    return np.concatenate(parts)


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
class Factor:
    """One quantity as it is in reality and in the emulation."""

    real: float
    emulated: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes of payload a second, per GPU and direction, of both kinds of link."""

    hb: float
    rail: float


def payload_rates(hb_bps: int, rail_bps: int, mtu: int) -> Rates:
    """Return the payload rates of links with these rates in bit/s."""
    fraction = payload_fraction(mtu) / 8
    return Rates(hb=hb_bps * fraction, rail=rail_bps * fraction)


@dataclass(frozen=True)
class Scale:
    """`shape` is step 1; the factors are step 2. `real` is the published job, at its full size, in real bytes.

    `full_compute_s`: computing of `real` (`Iteration.compute_s`) if all of it were kept; None if that isn't known.
    """

    workload: str
    platform: str
    real_rates: Rates
    emulated_rates: Rates
    bytes_factor: float
    shape: Mapping[str, Factor] = field(default_factory=dict)
    compute_kept: float = 1.0
    real: Iteration | None = None
    full_compute_s: float | None = None

    @property
    def time_factor(self) -> float:
        """Emulated seconds for a second of the real job of the same shape."""
        rate_factor = self.emulated_rates.rail / self.real_rates.rail
        return self.bytes_factor / rate_factor

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the run's record."""
        factors = {
            **self.shape,
            "rail_bytes_per_s": Factor(self.real_rates.rail, self.emulated_rates.rail),
            "hb_bytes_per_s": Factor(self.real_rates.hb, self.emulated_rates.hb),
            "bytes_per_transfer": Factor(1, self.bytes_factor),
            "seconds": Factor(1, self.time_factor),
        }
        rows: dict[str, dict[str, float]] = {}
        for name, factor in factors.items():
            ratio = factor.emulated / factor.real
            rows[name] = {"real": factor.real, "emulated": factor.emulated, "factor": ratio}
        kept = self.compute_kept
        return {"workload": self.workload, "platform": self.platform, "compute_kept": kept, "factors": rows}


def real_rates(platform: Platform, emulated: Rates) -> Rates:
    """The platform's rail rate, and the HB rate that stands to it as in the emulation."""
    rail = platform.rail_bps / 8
    return Rates(hb=rail * emulated.hb / emulated.rail, rail=rail)
