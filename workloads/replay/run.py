"""Runs a schedule: one worker process a core, started together, and one answer of everything that was sent and
arrived.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import psutil

from railyard.core.errors import RailyardError
from railyard.core.worker import Ready, Worker
from railyard.workloads.replay.job import (
    NO_CALLBACKS,
    Connect,
    Delivered,
    Finished,
    Go,
    Job,
    Listen,
    Outcome,
    PhaseEnd,
    PhaseEndCallback,
    PhaseOver,
    PhaseTracker,
    Windows,
    jobs,
)
from railyard.workloads.schedule import Schedule

POLL_INTERVAL_S: Final = 0.1
START_DELAY_NS: Final = 100_000_000  # all workers have read "go" by then
PORT: Final = 7000


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
        """Seconds from the first send to the last receipt."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def delivered_matrix(self) -> dict[tuple[int, int], int]:
        """Verified bytes for each pair (src, dst)."""
        found: dict[tuple[int, int], int] = {}
        for number, transfer in self.schedule.transfers:
            if number in self.delivered:
                pair = (transfer.src, transfer.dst)
                found[pair] = found.get(pair, 0) + self.delivered[number]
        return found


class _ReplayWorker:
    """One worker process and what it last reported."""

    def __init__(self, job: Job, on_phase: Callable[[PhaseEnd], None]) -> None:
        self._on_phase = on_phase
        self.process = Worker(
            "railyard.workloads.replay.worker", "a replay worker", Ready, Delivered, PhaseOver, Finished
        )
        self.delivered = 0
        self.outcome: Outcome | None = None
        self.error: RailyardError | None = None
        self.reader = threading.Thread(target=self._read_messages, daemon=True)

    def _read_messages(self) -> None:
        """Read progress until the outcome, in a thread."""
        try:
            while self.outcome is None:
                match self.process.receive_any(timeout_s=None):
                    case Finished() as finished:
                        self.outcome = finished.outcome
                    case PhaseOver() as phase:
                        self._on_phase(phase.end)
                    case Delivered() as delivered:
                        self.delivered = delivered.size
        except RailyardError as error:
            self.error = error

    def end(self) -> None:
        self.process.kill()
        if self.reader.is_alive():
            self.reader.join()  # it reads the end of what the process sent
        self.process.end()


def replay(
    schedule: Schedule,
    windows: Windows,
    seed: int,
    deadline_s: float = 600.0,
    progress: Callable[[int], None] = lambda delivered: None,
    started: Callable[[int], None] = lambda start_ns: None,
    abort: threading.Event | None = None,
    watched: Mapping[int, PhaseEndCallback] = NO_CALLBACKS,
) -> Replay:
    """Play a schedule in a built fabric. RailyardError if connections don't come about or a worker dies.

    Once started, it ends as soon as `abort` is set, by any thread: Aborted, and its connections are gone.

    `progress` is called ten times a second with the bytes delivered so far, `started` once with the start time in ns,
    each of `watched` when the phase of that number is over.
    What is not delivered when the deadline passes, or when a connection breaks, is missing from the result.
    """
    phases = PhaseTracker(schedule, watched)
    worker_jobs = jobs(schedule, psutil.cpu_count() or 1, PORT, seed, windows, watched)
    workers: list[_ReplayWorker] = []
    try:
        for job in worker_jobs:
            workers.append(_ReplayWorker(job, phases.receive))
            workers[-1].process.send(Listen(job=job))
        for worker in workers:
            worker.process.receive(Ready, timeout_s=None)
        for worker in workers:
            worker.process.send(Connect())
        for worker in workers:
            worker.process.receive(Ready, timeout_s=None)
        start_ns = time.monotonic_ns() + START_DELAY_NS
        for worker in workers:
            worker.process.send(Go(start_ns=start_ns, deadline_ns=start_ns + int(deadline_s * 1e9)))
        started(start_ns)
        for worker in workers:
            worker.reader.start()
        abort = abort or threading.Event()
        while any(worker.reader.is_alive() for worker in workers):
            if abort.wait(POLL_INTERVAL_S):
                raise Aborted("the replay was ended")
            progress(sum(worker.delivered for worker in workers))
        return _collect_outcomes(schedule, start_ns, workers)
    finally:
        for worker in workers:
            worker.end()


def _collect_outcomes(schedule: Schedule, start_ns: int, workers: list[_ReplayWorker]) -> Replay:
    outcomes = []
    for worker in workers:
        if worker.error or worker.outcome is None:
            raise worker.error or RailyardError("a replay worker gave no outcome")
        outcomes.append(worker.outcome)
    start_times = {n: at for o in outcomes for n, at in o.started_ns.items()}
    end_times = {n: at for o in outcomes for n, at in o.ended_ns.items()}
    return Replay(
        schedule=schedule,
        start_ns=start_ns,
        end_ns=max(end_times.values(), default=start_ns),
        spans={n: (start_times[n], end_times[n]) for n in sorted(end_times) if n in start_times},
        delivered={n: size for o in outcomes for n, size in o.delivered.items()},
        corrupt=tuple(sorted({n for o in outcomes for n in o.corrupt})),
        broken=tuple(reason for o in outcomes for reason in o.broken),
    )
