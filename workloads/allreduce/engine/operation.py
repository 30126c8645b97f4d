"""One collective on one node: its jobs, the tasks that do them, and the way of pieces between tasks and rails."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from railyard.workloads.allreduce import tasks
from railyard.workloads.allreduce.engine.jobs import Collective, Layout
from railyard.workloads.allreduce.engine.recovery import BARRIER, DATA, IDLE, Job, JobState
from railyard.workloads.allreduce.tasks import Array, Copies, Piece, Segment, Task, dtype_code, scratch
from railyard.workloads.allreduce.transport import links
from railyard.workloads.allreduce.transport.links import Header

_OCTET = dtype_code(np.dtype(np.uint8))


@dataclass(frozen=True, slots=True)
class Call:
    """Collective that a node was asked for; all nodes' must be the same.

    `length`: elements of a node's own part.
    """

    collective: Collective
    length: int
    dtype: str
    root: int = 0

    def __str__(self) -> str:
        origin = f" from rank {self.root}" if self.collective == "broadcast" else ""
        return f"{self.collective} of {self.length} {self.dtype}{origin}"


def jobs_of(call: Call, op: int, plan: Iterable[Segment]) -> list[Job]:
    """Return a job for each segment, numbered alike on every node.

    All collectives but an allreduce end with a barrier, on the first job's rail.
    """
    segments = list(plan)
    jobs: list[Job] = []
    for number, part in enumerate(segments):
        jobs.append(Job(op, number, call.collective, part.rail, part.start, part.length, call.root))
    if call.collective != "allreduce":
        jobs.append(Job(op, len(jobs), "barrier", segments[0].rail, 0, 0))
    return jobs


@dataclass(frozen=True, slots=True)
class Record:
    """Times of an operation on this node, in seconds of CLOCK_MONOTONIC.

    By rail: the bytes of the buffer that it was given, and when its last job ended (`began` if nothing came in on it).
    """

    began: float
    shares: tuple[float, ...]
    ends: tuple[float, ...]


@dataclass
class Operation:
    """Collective that has begun. `source` is the caller's input, `result` the group's own buffer.

    `ended`: by rail, when the last job of data ended.
    """

    op: int
    call: Call
    rank: int
    layout: Layout
    source: Array
    result: Array
    jobs: dict[int, Job] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    ended: dict[int, float] = field(default_factory=dict)
    digest: int = field(init=False)
    dtype_code: int = field(init=False)

    def __post_init__(self) -> None:
        self.digest = crc32(str(self.call).encode())
        self.dtype_code = dtype_code(self.result.dtype)

    @property
    def done(self) -> bool:
        """True if all jobs have been started and have ended here."""
        return len(self.tasks) == len(self.jobs) and all(task.done for task in self.tasks.values())

    def state(self, job: Job) -> JobState:
        """Return the progress of a job."""
        task = self.tasks.get(job.number)
        if job.action == "broadcast" and job.root == self.rank:
            return JobState(job, True, ((job.start, job.start + job.length),), self.result.itemsize)
        final = task.final() if task and job.action in ("allreduce", "broadcast") else ()
        return JobState(job, task is not None and task.done, final, self.result.itemsize)

    def record(self, planned: Iterable[Job]) -> Record:
        """Return what was planned for each rail, and when it ended."""
        shares = [0.0] * len(self.layout.rails)
        for job in planned:
            shares[job.rail] += job.length * self.result.itemsize
        ends = [self.began] * len(shares)
        for rail, end in self.ended.items():
            ends[rail] = end
        return Record(self.began, tuple(shares), tuple(ends))

    def task_of(self, job: Job) -> Task:
        """Return the task that does a job."""
        start = job.start
        end = job.start + job.length
        nodes = self.layout.size
        piece_bytes = self.layout.piece_bytes
        source = self.source
        result = self.result
        only_gathers = job.action == "all_gather"
        if job.action == "barrier":
            source = result = np.empty(0, np.uint8)
        elif job.action in ("all_gather", "broadcast"):
            source = result
        if job.action in ("reduce_scatter", "all_gather"):
            chunks = []
            parts = []
            for rank in range(nodes):
                offset = rank * self.call.length
                chunk = (offset + start, offset + end)
                owner = rank if only_gathers else tasks.ALL
                chunks.append(chunk)
                parts.append((chunk, owner))
        else:
            chunks = tasks.split_evenly(start, job.length, nodes)
            owner = job.root if job.action == "broadcast" else tasks.ALL
            parts = [((start, end), owner)]
        if self.layout.aggregators[job.rail] is not None:
            return tasks.Tree(self.rank, parts, source, result, piece_bytes)
        if job.action == "broadcast":
            return tasks.Relay(self.rank, nodes, job.root, (start, end), result, piece_bytes)
        gathers = job.action != "reduce_scatter"
        return tasks.Ring(self.rank, chunks, source, result, not only_gathers, gathers, piece_bytes)


class PieceRouter:
    """Way of pieces between rails and the tasks of a node's last two operations.

    `send` is the transport's; `fail(why)` is called for a frame that is impossible.
    """

    def __init__(
        self, nodes: int, send: Callable[[int, Header, memoryview, bool], None], fail: Callable[[str], None]
    ) -> None:
        self._nodes = nodes
        self._send_frame = send
        self._fail = fail
        self.copies = Copies()
        self._latest = 0
        # the latest and the one before, which other nodes may still need
        self.operations: dict[int, Operation] = {}
        # frames of tasks that have not begun here are put aside, so that they never block what comes behind them
        self._early: dict[tuple[int, int], list[tuple[int, Header, memoryview]]] = {}
        self._receiving: dict[int, Task | None] = {}

    @property
    def done(self) -> bool:
        """True if all operations have ended here."""
        # the latest is asked first, since it is the one that has not ended
        latest_first = reversed(self.operations.values())
        return all(operation.done for operation in latest_first)

    def busy(self, rails: int) -> tuple[int, ...]:
        """Return for each rail what it has to do: IDLE (nothing), BARRIER (a barrier alone), or DATA."""
        work = [IDLE] * rails
        for operation in self.operations.values():
            for number, task in operation.tasks.items():
                if not task.done:
                    job = operation.jobs[number]
                    kind = BARRIER if job.action == "barrier" else DATA
                    work[job.rail] = max(work[job.rail], kind)
        return tuple(work)

    def enter(self, operation: Operation) -> None:
        """Take a new operation, and forget the one before the last."""
        self._latest = operation.op
        self.operations = {op: other for op, other in self.operations.items() if op >= operation.op - 1}
        self._early = {key: frames for key, frames in self._early.items() if key[0] >= operation.op - 1}
        self.operations[operation.op] = operation

    def begin(self, job: Job) -> None:
        """Begin a job of an operation that is held; a barrier waits for the rest."""
        operation = self.operations[job.op]
        operation.jobs[job.number] = job
        if job.action != "barrier":
            self._start(operation, job)
        self.begin_barriers(operation)

    def begin_barriers(self, operation: Operation) -> None:
        """Begin the barriers of an operation if all else is done."""
        jobs = operation.jobs
        begun = operation.tasks
        for number, job in jobs.items():
            is_done = number in begun and begun[number].done
            if job.action != "barrier" and not is_done:
                return
        for number, job in list(jobs.items()):
            if number not in begun:
                self._start(operation, job)

    def states(self, rail: int) -> list[JobState]:
        """Return the progress of all jobs of a rail."""
        states: list[JobState] = []
        for operation in self.operations.values():
            states += [operation.state(job) for job in operation.jobs.values() if job.rail == rail]
        return states

    def drop(self, rail: int) -> None:
        """Forget the jobs of a dead rail."""
        for operation in self.operations.values():
            for number, job in list(operation.jobs.items()):
                if job.rail == rail:
                    del operation.jobs[number]
                    operation.tasks.pop(number, None)

    def buffer_for(self, rail: int, header: Header) -> memoryview:
        """Return where a frame is received: in its task's buffer, or aside if it is early or of no task."""
        task = self._receiving[rail] = self._task_of(header)
        if task is None:
            return scratch(header.length)
        try:
            view = task.buffer_for(header.seq)
            if view.nbytes != header.length:
                raise ValueError(f"{view.nbytes} bytes were due")
        except ValueError as problem:
            self._fail(f"{header}: {problem}")
            return scratch(header.length)
        return view

    def on_received(self, rail: int, header: Header, view: memoryview) -> None:
        """Handle a frame that is complete in the view that `buffer_for` returned."""
        task = self._task_of(header)
        if self._receiving.pop(rail) is None:
            called = self.operations.get(header.op)
            if header.op >= self._latest - 1 and (called is None or called.digest == header.digest):
                self._early.setdefault((header.op, header.task), []).append((rail, header, view))
                if task is not None:
                    # it began while the frame was on its way
                    operation = self.operations[header.op]
                    self._deliver_early(operation, operation.jobs[header.task], task)
        elif task is not None:
            operation = self.operations[header.op]
            self._piece_done(operation, operation.jobs[header.task], task, header.seq)

    def _start(self, operation: Operation, job: Job) -> None:
        task = operation.tasks[job.number] = operation.task_of(job)
        self._send(operation, job, task.begin())
        self._deliver_early(operation, job, task)

    def _deliver_early(self, operation: Operation, job: Job, task: Task) -> None:
        for rail, header, view in self._early.pop((job.op, job.number), []):
            if rail == job.rail and header.digest == operation.digest:
                task.buffer_for(header.seq)[:] = view
                self.copies.early += header.length
                self._piece_done(operation, job, task, header.seq)

    def _piece_done(self, operation: Operation, job: Job, task: Task, seq: int) -> None:
        self._send(operation, job, task.on_received(seq))
        if task.done:
            if job.action != "barrier":
                # a barrier begins when all rails have ended
                operation.ended[job.rail] = time.monotonic()
            self.begin_barriers(operation)

    def _send(self, operation: Operation, job: Job, pieces: Iterable[Piece]) -> None:
        code = _OCTET if job.action == "barrier" else operation.dtype_code
        digest = operation.digest
        for piece in pieces:
            parts = self._nodes if piece.summed else 1
            header = Header(links.DATA, code, parts, job.op, job.number, piece.seq, digest, piece.view.nbytes)
            self._send_frame(job.rail, header, piece.view, piece.starts_message)

    def _task_of(self, header: Header) -> Task | None:
        operation = self.operations.get(header.op)
        if operation is None or operation.digest != header.digest:
            return None
        return operation.tasks.get(header.task)
