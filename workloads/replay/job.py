"""Jobs of a replay: the part of a schedule that one worker process plays, its outcome, and the messages about both.

A GPU belongs to one worker, which sends its transfers and receives what is sent to it. Whole domains go to one worker,
so that most of the busy HB traffic needs no second process. A phase of a replay is over when its last transfer has
arrived, whichever workers received its parts.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import Field, InstanceOf, SkipValidation

from railyard.core.worker import Message
from railyard.topologies.addresses import Gpu
from railyard.workloads.tasks import EXCHANGE_SLICE_BYTES, Compute, Task, Transfer

if TYPE_CHECKING:  # workers need none of it, and NumPy takes longer to import than the rest
    from railyard.workloads.schedule import Schedule

PORT: Final = 7000
PATTERN_BYTES: Final = 1 << 20
# transfers start at different places of the pattern, so that mixing two up is detected
PATTERN_STRIDE: Final = 7919
WINDOW_S: Final = 0.015
# with fewer a link falls idle between a frame and its acknowledgement
MIN_FRAMES: Final = 4
# two slices and their headers
MIN_WINDOW_BYTES: Final = 4 * EXCHANGE_SLICE_BYTES + 100
# about what a receive buffer of the usual size has room for
MAX_WINDOW_BYTES: Final = 200_000


class Channel(NamedTuple):
    """A connection, by GPU numbers: a pair has one for each stripe of its transfers."""

    src: int
    dst: int
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Windows:
    """Bytes that a pair's connections may have under way: within an HB domain, and over rails.

    `minimum`: what a connection needs, however many it shares with.
    """

    hb: int
    rail: int
    minimum: int

    def per_connection(self, in_domain: bool, stripes: int) -> int:
        """Return the window of one of a pair's `stripes` connections, which together have that of a single one."""
        pair_window = self.hb if in_domain else self.rail
        return max(self.minimum, pair_window // stripes)


def windows_for_links(hb_bps: int, rail_bps: int, mtu: int) -> Windows:
    """Return windows of 15 ms of links of these rates; at least of two slices, at most of a receive buffer."""
    return Windows(_window_bytes(hb_bps), _window_bytes(rail_bps), MIN_FRAMES * mtu)


def _window_bytes(rate_bps: int) -> int:
    # More than a link needs only waits in its queue: at emulated rates for so long that TCP takes it for a loss. With
    # less than a slice, a sender has at times used up the windows of all its receivers, whose acknowledgements wait in
    # the queues of the other direction, and its link falls idle.
    return min(MAX_WINDOW_BYTES, max(MIN_WINDOW_BYTES, round(rate_bps / 8 * WINDOW_S)))


class Job(Message):
    """A worker's share, for which it opens its listening sockets: Ready, or Failed.

    `local_gpus` are the GPU numbers that it plays; `seed` makes the pattern that fills every transfer. `watched`:
    phases of which it reports when all that comes to its GPUs has come. `unreachable`: pairs without a path, whose
    transfers wait until the deadline.
    """

    gpus: SkipValidation[tuple[Gpu, ...]]
    local_gpus: frozenset[int]
    tasks: SkipValidation[tuple[Task, ...]]
    seed: int
    windows: InstanceOf[Windows]
    watched: frozenset[int] = frozenset()
    unreachable: frozenset[tuple[int, int]] = frozenset()


class Connect(Message):
    """Connect to the other workers, which all listen: Ready, or Failed."""


class Go(Message):
    """Play the job from `start_ns` to `deadline_ns` (monotonic) at the latest: Delivered, PhaseEnd, and Outcome."""

    start_ns: int
    deadline_ns: int


class Delivered(Message):
    """Bytes received so far, each of which was compared with what was sent."""

    size: int


class PhaseEnd(Message):
    """A worker has received all that comes to its GPUs in a phase: so many transfers, the last at `ended_ns`."""

    phase: int
    transfers: int
    ended_ns: int


class Outcome(Message):
    """Start (at the sender) and end (at the receiver) of each task in ns, and verified bytes.

    `broken`: connections that failed, and why.
    """

    started_ns: dict[int, int] = Field(default_factory=dict)
    ended_ns: dict[int, int] = Field(default_factory=dict)
    delivered: dict[int, int] = Field(default_factory=dict)
    corrupt: list[int] = Field(default_factory=list)
    broken: list[str] = Field(default_factory=list)


def owner(task: Task) -> int:
    """The number of the GPU that does a task."""
    return task.src if isinstance(task, Transfer) else task.gpu


def connections(tasks: Sequence[Task]) -> list[Channel]:
    """Return the connections that tasks need, in order."""
    transfers = [task for task in tasks if isinstance(task, Transfer)]
    ends = {(transfer.src, transfer.dst, transfer.stripe) for transfer in transfers}
    return [Channel(*each) for each in sorted(ends)]


def shares(schedule: "Schedule", workers: int, domains: Sequence[int]) -> list[frozenset[int]]:
    """Return the GPU numbers of each worker. Domains are dealt in turn, to no more workers than domains."""
    count = min(workers, len(domains))
    rails = schedule.rails
    gpus_of_workers: list[frozenset[int]] = []
    for worker in range(count):
        gpus: set[int] = set()
        for domain in domains[worker::count]:
            gpus.update(range(domain * rails, (domain + 1) * rails))
        gpus_of_workers.append(frozenset(gpus))
    return gpus_of_workers


def jobs(
    schedule: "Schedule",
    workers: int | Sequence[frozenset[int]],
    seed: int,
    windows: Windows,
    watched: Iterable[int] = (),
    unreachable: frozenset[tuple[int, int]] = frozenset(),
) -> list[Job]:
    """Return one job a worker; all know all tasks.

    `workers`: how many share all domains, or the GPUs of each. `unreachable`: see `Job`.
    """
    gpus = tuple(Gpu(*divmod(number, schedule.rails)) for number in range(schedule.gpus))
    common = {
        "gpus": gpus,
        "tasks": tuple(schedule.tasks),
        "seed": seed,
        "windows": windows,
        "watched": frozenset(watched),
        "unreachable": unreachable,
    }
    if isinstance(workers, int):
        workers = shares(schedule, workers, range(schedule.gpus // schedule.rails))
    return [Job(local_gpus=local_gpus, **common) for local_gpus in workers]


class Dependents(NamedTuple):
    """What the local tasks of a job wait for. `counts`: by task, how many ends.

    The others say by task which ones its end frees: the end of a computation, or of handing a transfer to the kernel;
    the moment when a transfer's last byte leaves its sender; its receipt.
    """

    counts: dict[int, int]
    on_done: dict[int, list[int]]
    on_departure: dict[int, list[int]]
    on_receipt: dict[int, list[int]]


def dependents(job: Job) -> Dependents:
    """Return what the local tasks wait for.

    A task waits for the departure of an earlier transfer of its own GPU if that was to another GPU or in another phase.
    """
    result = Dependents({}, {}, {}, {})
    for number, task in enumerate(job.tasks):
        owner_gpu = owner(task)
        if owner_gpu not in job.local_gpus:
            continue
        result.counts[number] = len(task.after)
        for dependency in task.after:
            earlier = job.tasks[dependency]
            if isinstance(earlier, Compute):
                frees = result.on_done
            elif earlier.dst == owner_gpu:
                frees = result.on_receipt
            elif _departs(task, earlier):
                frees = result.on_departure
            else:
                frees = result.on_done
            frees.setdefault(dependency, []).append(number)
    return result


def _departs(task: Task, earlier: Transfer) -> bool:
    """Return whether a task waits until an earlier transfer of its GPU has left it, and not only for the kernel."""
    # the next transfer to the same GPU in the same phase needs no wait: on its connection it leaves after the earlier
    is_next_of_pair = isinstance(task, Transfer) and earlier.dst == task.dst and earlier.phase == task.phase
    return not is_next_of_pair


PhaseEndCallback = Callable[[int], None]  # called once, in a thread, with the monotonic ns of a phase's last receipt


def first_phases(schedule: "Schedule") -> dict[str, int]:
    """The number of the first phase of each name in which something is sent."""
    numbers = sorted({transfer.phase for _, transfer in schedule.transfers}, reverse=True)
    return {schedule.phases[number].name: number for number in numbers}


def transfers_per_phase(tasks: Iterable[Task], watched: Collection[int], local_gpus: Collection[int]) -> Counter[int]:
    """Return how many transfers of each watched phase come to these GPUs."""
    counts: Counter[int] = Counter()
    for task in tasks:
        if isinstance(task, Transfer) and task.phase in watched and task.dst in local_gpus:
            counts[task.phase] += 1
    return counts


class PhaseTracker:
    """Sums of the workers' phase ends; runs a phase's callback when all of its transfers have arrived."""

    def __init__(self, schedule: "Schedule", watched: Mapping[int, PhaseEndCallback]) -> None:
        self._remaining = transfers_per_phase(schedule.tasks, watched, range(schedule.gpus))
        self._watched = watched
        # the workers' messages are read in threads
        self._lock = threading.Lock()
        self._ended_ns = dict.fromkeys(watched, 0)

    def receive(self, end: PhaseEnd) -> None:
        """Add a worker's part."""
        with self._lock:
            self._remaining[end.phase] -= end.transfers
            self._ended_ns[end.phase] = max(self._ended_ns[end.phase], end.ended_ns)
            done = self._remaining[end.phase] == 0
        if done:
            self._watched[end.phase](self._ended_ns[end.phase])
