"""Runs a schedule: one worker process a core, started together, and one answer of everything that was sent and
arrived.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.host import usable_cores
from railyard.core.worker import ANSWER_S, Ready, Worker
from railyard.workloads.replay import job as protocol
from railyard.workloads.schedule import Schedule

# for all connections of large schedules
CONNECT_S: Final = 120.0
POLL_INTERVAL_S: Final = 0.1
# all workers have read "go" by then
START_DELAY_NS: Final = 100_000_000
# a replay that takes so many times its prediction, and this margin for a busy machine, has failed
TIMEOUT_FACTOR: Final = 10
TIMEOUT_MARGIN_S: Final = 30.0

REPLIES: Final = (Ready, protocol.Delivered, protocol.PhaseEnd, protocol.Outcome)


def start_worker() -> Worker:
    """Start a worker on this machine."""
    return Worker("railyard.workloads.replay.worker", "a replay worker", *REPLIES)


@dataclass(frozen=True)
class Place:
    """A machine that replays what its `domains` send and receive. `start` starts one worker of `workers` there.

    `offset_ns`: its monotonic clock less that of this machine.
    """

    domains: tuple[int, ...]
    workers: int
    start: Callable[[], Worker] = start_worker
    offset_ns: int = 0


class Aborted(RailyardError):
    """A replay was ended before it was over."""


@dataclass(frozen=True)
class Replay:
    """Result: `spans` has (start, end) in monotonic ns of every task that ended; `delivered` verified bytes."""

    schedule: Schedule
    start_ns: int
    end_ns: int
    spans: dict[int, tuple[int, int]]
    delivered: dict[int, int]
    corrupt: tuple[int, ...]
    broken: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end of the last task, computing included."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def transfer_seconds(self) -> float:
        """Seconds from the first send to the last receipt, without computing before and after."""
        spans = [self.spans[number] for number, _ in self.schedule.transfers if number in self.spans]
        first_ns = min((start_ns for start_ns, _ in spans), default=self.start_ns)
        last_ns = max((end_ns for _, end_ns in spans), default=self.start_ns)
        return (last_ns - first_ns) / 1e9

    @property
    def delivered_matrix(self) -> dict[tuple[int, int], int]:
        """Verified bytes for each pair (src, dst)."""
        matrix: Counter[tuple[int, int]] = Counter()
        for number, transfer in self.schedule.transfers:
            if number in self.delivered:
                matrix[transfer.src, transfer.dst] += self.delivered[number]
        return dict(matrix)


def time_limit_s(predicted_s: float) -> float:
    """Return the seconds after which a replay that should take `predicted_s` has failed."""
    return predicted_s * TIMEOUT_FACTOR + TIMEOUT_MARGIN_S


def replay(
    schedule: Schedule,
    windows: protocol.Windows,
    seed: int,
    deadline_s: float = 600.0,
    progress: Callable[[int], None] = lambda delivered: None,
    started: Callable[[int], None] = lambda start_ns: None,
    abort: threading.Event | None = None,
    watched: Mapping[int, protocol.PhaseEndCallback] = MappingProxyType({}),
    places: Sequence[Place] = (),
    unreachable: frozenset[tuple[int, int]] = frozenset(),
) -> Replay:
    """Play a schedule in a built fabric. RailyardError if connections don't come about or a worker dies.

    Once started, it ends as soon as `abort` is set, by any thread: Aborted, and its connections are gone. `progress` is
    called ten times a second with the bytes delivered so far, `started` once with the start time in ns, each of
    `watched` when the phase of that number is over. What is not delivered when the deadline passes, or when a
    connection breaks, is missing from the result. `places`: the machines, if the fabric is on several. `unreachable`:
    pairs that must have no path; their transfers wait until the deadline. It is an error if one of them connects.
    """
    place_of_worker, shares = _shared_out(schedule, places)
    jobs = protocol.jobs(schedule, shares, seed, windows, watched, unreachable)
    phases = protocol.PhaseTracker(schedule, watched)
    workers: list[Worker] = []
    delivered = [0] * len(jobs)
    abort = abort or threading.Event()
    pool = ThreadPoolExecutor(len(jobs))

    def outcome_of(number: int) -> protocol.Outcome:
        """Read what a worker reports until its outcome; RailyardError if it dies."""
        while not isinstance(message := workers[number].receive_any(deadline_s + ANSWER_S), protocol.Outcome):
            match message:
                case protocol.PhaseEnd():
                    ended_ns = message.ended_ns - place_of_worker[number].offset_ns
                    phases.receive(message.model_copy(update={"ended_ns": ended_ns}))
                case protocol.Delivered():
                    delivered[number] = message.size
        return message

    try:
        for place, job in zip(place_of_worker, jobs, strict=True):
            workers.append(place.start())
            workers[-1].send(job)
        _await_ready(workers)
        # all listen before any connects
        for worker in workers:
            worker.send(protocol.Connect())
        _await_ready(workers)
        start_ns = time.monotonic_ns() + START_DELAY_NS
        for place, worker in zip(place_of_worker, workers, strict=True):
            begin_ns = start_ns + place.offset_ns
            worker.send(protocol.Go(start_ns=begin_ns, deadline_ns=begin_ns + int(deadline_s * 1e9)))
        started(start_ns)
        pending = [pool.submit(outcome_of, number) for number in range(len(workers))]
        while not all(outcome.done() for outcome in pending):
            if abort.wait(POLL_INTERVAL_S):
                raise Aborted("the replay was ended")
            watch.check()
            progress(sum(delivered))
        outcomes = []
        for place, outcome in zip(place_of_worker, pending, strict=True):
            outcomes.append(_on_our_clock(outcome.result(), place))
        return _merged(schedule, start_ns, outcomes)
    finally:
        for worker in workers:
            worker.kill()
        # its threads read the end of what the processes sent
        pool.shutdown()
        for worker in workers:
            worker.end()


def _shared_out(schedule: Schedule, places: Sequence[Place]) -> tuple[list[Place], list[frozenset[int]]]:
    """Return the place of each worker, and the GPUs that it plays. Without places: those of this machine's cores."""
    # one process a core: a process serves any number of GPUs, since a socket stays in the namespace it was made in
    if not places:
        places = [Place(tuple(range(schedule.gpus // schedule.rails)), max(1, round(usable_cores())))]
    place_of_worker: list[Place] = []
    shares: list[frozenset[int]] = []
    for place in places:
        for share in protocol.shares(schedule, place.workers, place.domains):
            place_of_worker.append(place)
            shares.append(share)
    return place_of_worker, shares


def _await_ready(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.receive(Ready, CONNECT_S)


def _on_our_clock(outcome: protocol.Outcome, place: Place) -> protocol.Outcome:
    if not place.offset_ns:
        return outcome
    started_ns = {number: at_ns - place.offset_ns for number, at_ns in outcome.started_ns.items()}
    ended_ns = {number: at_ns - place.offset_ns for number, at_ns in outcome.ended_ns.items()}
    return outcome.model_copy(update={"started_ns": started_ns, "ended_ns": ended_ns})


def _merged(schedule: Schedule, start_ns: int, outcomes: list[protocol.Outcome]) -> Replay:
    """Return what all workers observed. A task begins at its source's worker and ends at its destination's."""
    start_times: dict[int, int] = {}
    end_times: dict[int, int] = {}
    delivered: dict[int, int] = {}
    corrupt: set[int] = set()
    broken: list[str] = []
    for outcome in outcomes:
        start_times |= outcome.started_ns
        end_times |= outcome.ended_ns
        delivered |= outcome.delivered
        corrupt |= set(outcome.corrupt)
        broken += outcome.broken
    spans: dict[int, tuple[int, int]] = {}
    for number in sorted(end_times):
        if number in start_times:
            spans[number] = start_times[number], end_times[number]
    return Replay(
        schedule=schedule,
        start_ns=start_ns,
        end_ns=max(end_times.values(), default=start_ns),
        spans=spans,
        delivered=delivered,
        corrupt=tuple(sorted(corrupt)),
        broken=tuple(broken),
    )
