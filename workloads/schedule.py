"""Schedules, the one type that every workload becomes and the replay runs, and the scale at which it is emulated.

A schedule is a program for each GPU. What a task waits for must end at the GPU that does it (a transfer's sender, or a
computation's GPU): so the replay needs no coordination while it runs. Phases group tasks under one name, for measuring
and predicting; they don't order anything. A `Program` appends to a schedule: a step of a GPU waits for what that GPU
did last, and for what was sent to it then, as with blocking collectives. A job is scaled in shape, then in time
(docs/workloads.md): time factor = bytes factor / rate factor; HB and rail rates have the same factor.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.platforms import Platform


@dataclass(frozen=True, slots=True)
class Transfer:
    """`bytes` from GPU number `src` to GPU number `dst` (number n is G(n // K, n % K)), of phase number `phase`.

    `after`: task numbers, all below this task's own, that must have ended at `src`. A transfer ends at its sender when
    its last byte was handed to the kernel, and at its receiver when its last byte was read. Transfers of one pair with
    different `stripe` numbers go over different connections, so that a hash may put them on different paths.
    """

    src: int
    dst: int
    bytes: int
    phase: int
    after: tuple[int, ...] = ()
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Compute:
    """`seconds` of computing on GPU number `gpu`: a gap in which this GPU's later tasks wait."""

    gpu: int
    seconds: float
    phase: int
    after: tuple[int, ...] = ()


Task = Transfer | Compute


@dataclass(frozen=True, slots=True)
class Phase:
    """A named step, and what a prediction needs to know of it.

    `kind`: the kind of traffic (TP, PP, DP, EP, collective, or any other name), by which views group and colour it.
    `collective`: the name of the algorithm that it runs; empty for transfers of its own, which no algorithm describes.
    `x` GPUs of each HB domain and `y` domains take part (a group; all groups run alike). `data_bytes` is the equation's
    D: for AllGather and ReduceScatter the whole gathered data of a group, for AllReduce the buffer that every GPU ends
    with, for all-to-all and point to point the bytes a pair (of an uneven one the mean, if each GPU's own part counts).
    `repeats`: how often it runs, one after the other. `shares`: of an uneven all-to-all, the part of all bytes that is
    for (dispatch) or from (combine) each GPU of the grid.

    A schedule numbers each run of a collective as a phase of its own (`repeats` 1), so that each can be timed; runs
    that are alike share a name, and are reported under it. Only an `Iteration` counts with `repeats`.
    """

    name: str
    kind: str
    collective: str
    x: int
    y: int
    data_bytes: float
    repeats: int = 1
    shares: tuple[float, ...] = ()


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


@dataclass(frozen=True)
class Schedule:
    """The tasks of `gpus` GPUs (`rails` to a domain), in an order in which every task comes after what it waits for."""

    name: str
    gpus: int
    rails: int
    phases: tuple[Phase, ...]
    tasks: tuple[Task, ...]
    iteration: Iteration | None = None

    @cached_property
    def transfers(self) -> tuple[tuple[int, Transfer], ...]:
        """(task number, transfer), in order."""
        return tuple((i, t) for i, t in enumerate(self.tasks) if isinstance(t, Transfer))

    @cached_property
    def matrix(self) -> dict[tuple[int, int], int]:
        """Bytes for each pair (src, dst) that sends any."""
        total: defaultdict[tuple[int, int], int] = defaultdict(int)
        for _, t in self.transfers:
            total[t.src, t.dst] += t.bytes
        return dict(total)

    def check(self) -> None:
        """ValueError unless every task waits only for earlier tasks that end where it runs."""
        for number, task in enumerate(self.tasks):
            own_gpu = task.src if isinstance(task, Transfer) else task.gpu
            if isinstance(task, Transfer) and (task.src == task.dst or task.bytes <= 0):
                raise ValueError(f"task {number}: a transfer needs two GPUs and at least one byte: {task}")
            if isinstance(task, Transfer) and task.stripe < 0:
                raise ValueError(f"task {number}: stripes are numbered from 0: {task}")
            for dependency in task.after:
                if not 0 <= dependency < number:
                    raise ValueError(f"task {number} waits for task {dependency}, which doesn't come before it")
                other = self.tasks[dependency]
                end_gpus = (other.src, other.dst) if isinstance(other, Transfer) else (other.gpu,)
                if own_gpu not in end_gpus:
                    raise ValueError(
                        f"task {number} at GPU {own_gpu} waits for task {dependency}, which ends elsewhere"
                    )


Grid = tuple[tuple[int, ...], ...]
"""GPU numbers, a row for each HB domain and a column for each rail: y rows of x GPUs (Rail-only Table I)."""


MAX_TASKS: Final = 2**18  # of a schedule on 64 GPUs or fewer: seconds to make, and a quarter of a gigabyte
MAX_GPU_TASKS: Final = 2**12  # on average on more GPUs: twice as many as a ring of 1,024 GPUs has
MAX_EXPERIMENT_TASKS: Final = 2**20  # of all schedules of an experiment, each of which is made before it starts


class TooManyTasks(ValueError):
    """A schedule that takes too long to make; the message says how many tasks it may have."""


def check_total(tasks: int, gpus: int, field: str, value: object) -> None:
    """Raise BadInput if an experiment's schedules up to that of this field have too many tasks.

    `gpus`: of its largest fabric, as a single schedule on many GPUs may have more than all may have on few.
    """
    most = max(MAX_EXPERIMENT_TASKS, MAX_GPU_TASKS * gpus)
    if tasks > most:
        allowed = f"makes {tasks:,} transfers and computations together with those before it: {most:,} are allowed"
        raise BadInput(field, value, allowed)


class Program:
    """The tasks so far of `domains` HB domains with `rails` GPUs each. TooManyTasks as soon as there are."""

    def __init__(self, domains: int, rails: int) -> None:
        self.domains, self.rails = domains, rails
        self._most = max(MAX_TASKS, MAX_GPU_TASKS * domains * rails)
        self._phases: list[Phase] = []
        self._tasks: list[Task] = []
        self._last: dict[int, tuple[int, ...]] = {}

    @property
    def grid(self) -> Grid:
        """Every GPU."""
        return tuple(tuple(range(d * self.rails, (d + 1) * self.rails)) for d in range(self.domains))

    def phase(self, phase: Phase) -> int:
        """Start one run of a collective (or of any other named step); returns the phase's number."""
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
        return self._append(Transfer(src, dst, size, phase, tuple(dict.fromkeys(after)), stripe))

    def compute(self, gpu: int, seconds: float, phase: int) -> None:
        """The GPU computes, and its next step waits for that. No time, no task."""
        if seconds > 0:
            self.wait_for(gpu, [self._append(Compute(gpu, seconds, phase, self.last(gpu)))])

    def check_count(self, more: int) -> None:
        """Raise TooManyTasks if so many more tasks than now are more than the schedule may have."""
        if len(self._tasks) + more > self._most:
            raise TooManyTasks(f"must make {self._most:,} transfers and computations or fewer on this fabric")

    def _append(self, task: Task) -> int:
        self.check_count(1)
        self._tasks.append(task)
        return len(self._tasks) - 1

    def schedule(self, name: str, iteration: Iteration | None = None) -> Schedule:
        """The finished schedule, checked."""
        done = Schedule(name, self.domains * self.rails, self.rails, tuple(self._phases), tuple(self._tasks), iteration)
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
    """`shape` is step 1; the factors are step 2. `real` is the published job, at its full size, in real bytes."""

    workload: str
    platform: str
    real_rates: Rates
    emulated_rates: Rates
    bytes_factor: float
    shape: Mapping[str, Factor] = field(default_factory=dict)
    compute_kept: float = 1.0
    real: Iteration | None = None

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
        return {
            "workload": self.workload,
            "platform": self.platform,
            "compute_kept": self.compute_kept,
            "factors": {
                name: {"real": f.real, "emulated": f.emulated, "factor": f.emulated / f.real}
                for name, f in factors.items()
            },
        }


def real_rates(platform: Platform, emulated: Rates) -> Rates:
    """The platform's rail rate, and the HB rate that stands to it as in the emulation."""
    rail = platform.rail_bps / 8
    return Rates(hb=rail * emulated.hb / emulated.rail, rail=rail)
