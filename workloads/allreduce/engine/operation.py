"""One collective on one node: its jobs, the tasks that do them, and when each rail was through."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal
from zlib import crc32

import numpy as np

from railyard.workloads.allreduce.engine.recovery import Action, Job, JobState
from railyard.workloads.allreduce.engine.tasks import (
    ALL,
    PIECE_BYTES,
    Array,
    Copies,
    Piece,
    Relay,
    Ring,
    Segment,
    Span,
    Task,
    Tree,
    chunks_of,
    dtype_code,
    scratch,
)
from railyard.workloads.allreduce.transport.links import DATA, Header

Collective = Literal["allreduce", "reduce_scatter", "all_gather", "broadcast"]
_ACTIONS: dict[Collective, Action] = {
    "allreduce": "reduce",
    "reduce_scatter": "scatter",
    "all_gather": "gather",
    "broadcast": "relay",
}


@dataclass(frozen=True, slots=True)
class Call:
    """What a node was asked to do; all nodes' must be the same. `length`: elements of a node's own part."""

    collective: Collective
    length: int
    dtype: str
    root: int = 0

    def __str__(self) -> str:
        origin = f" from rank {self.root}" if self.collective == "broadcast" else ""
        return f"{self.collective} of {self.length} {self.dtype}{origin}"


def jobs_of(call: Call, op: int, plan: Iterable[Segment]) -> list[Job]:
    """A job a segment, numbered alike on every node; all but an allreduce end with a barrier, on the first's rail."""
    segments = list(plan)
    jobs = [
        Job(op, number, _ACTIONS[call.collective], part.rail, part.start, part.length, call.root)
        for number, part in enumerate(segments)
    ]
    if call.collective != "allreduce":
        jobs.append(Job(op, len(jobs), "barrier", segments[0].rail, 0, 0))
    return jobs


@dataclass(frozen=True, slots=True)
class Record:
    """When this node began, and by rail: the bytes of the buffer that it was given, and when it was through (where
    nothing came in on it: when it began). Seconds of CLOCK_MONOTONIC."""

    began: float
    shares: tuple[float, ...]
    ends: tuple[float, ...]


@dataclass
class Operation:
    """`source` is the caller's input, `result` the group's own. `trees`: the rails with an aggregator."""

    op: int
    call: Call
    rank: int
    nodes: int
    source: Array
    result: Array
    trees: frozenset[int]
    piece_bytes: int = PIECE_BYTES
    jobs: dict[int, Job] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    ended: dict[int, float] = field(default_factory=dict)
    digest: int = field(init=False)
    dtype_code: int = field(init=False)

    def __post_init__(self) -> None:
        self.digest = crc32(str(self.call).encode())
        self.dtype_code = dtype_code(self.result.dtype)

    def add(self, job: Job) -> Task | None:
        """The task to begin now; None for a barrier that has to wait."""
        self.jobs[job.number] = job
        return None if job.action == "barrier" else self._start(job)

    def barriers(self) -> Iterator[tuple[Job, Task]]:
        """Barriers whose time has come: all else here is done."""
        if all(number in self.tasks and self.tasks[number].done for number in self._data()):
            for number, job in self.jobs.items():
                if number not in self.tasks:
                    yield job, self._start(job)

    def drop(self, rail: int) -> None:
        """Forget all that this rail was doing."""
        for number in [number for number, job in self.jobs.items() if job.rail == rail]:
            del self.jobs[number]
            self.tasks.pop(number, None)

    def states(self, rail: int) -> list[JobState]:
        """How far each job of a rail is."""
        return [self._state(job) for job in self.jobs.values() if job.rail == rail]

    def note_end(self, rail: int) -> None:
        """Some data of a rail is done: the last time that's said counts."""
        self.ended[rail] = time.monotonic()

    def record(self, planned: Iterable[Job], rails: int) -> Record:
        """What was planned for each rail, and when it was through."""
        shares = [0.0] * rails
        for job in planned:
            shares[job.rail] += job.length * self.result.itemsize
        return Record(self.began, tuple(shares), tuple(self.ended.get(rail, self.began) for rail in range(rails)))

    def unfinished(self) -> Iterator[Job]:
        """Jobs that have begun and aren't done."""
        return (self.jobs[number] for number, task in self.tasks.items() if not task.done)

    @property
    def done(self) -> bool:
        return len(self.tasks) == len(self.jobs) and all(task.done for task in self.tasks.values())

    def _data(self) -> list[int]:
        return [number for number, job in self.jobs.items() if job.action != "barrier"]

    def _state(self, job: Job) -> JobState:
        task = self.tasks.get(job.number)
        end = job.start + job.length
        if job.action == "relay" and job.root == self.rank:
            return JobState(job, True, ((job.start, end),), self.result.itemsize)
        final = tuple(task.final()) if task and job.action in ("reduce", "relay") else ()
        return JobState(job, task is not None and task.done, final, self.result.itemsize)

    def _start(self, job: Job) -> Task:
        self.tasks[job.number] = task = self._task(job)
        return task

    def _task(self, job: Job) -> Task:
        span = (job.start, job.start + job.length)
        if job.action == "relay":
            if job.rail in self.trees:
                return Tree(self.rank, [(span, job.root)], self.result, self.result, self.piece_bytes)
            return Relay(self.rank, self.nodes, job.root, span, self.result, self.piece_bytes)
        if job.action == "barrier":
            empty = np.empty(0, np.uint8)
            if job.rail in self.trees:
                return Tree(self.rank, [((0, 0), ALL)], empty, empty)
            return Ring(self.rank, chunks_of(0, 0, self.nodes), empty, empty)
        gathers = job.action == "gather"
        source = self.result if gathers else self.source
        if job.action == "reduce":
            parts: list[tuple[Span, int]] = [(span, ALL)]
            chunks = chunks_of(job.start, job.length, self.nodes)
        else:
            chunks = [(n * self.call.length + span[0], n * self.call.length + span[1]) for n in range(self.nodes)]
            parts = [(chunk, n if gathers else ALL) for n, chunk in enumerate(chunks)]
        if job.rail in self.trees:
            return Tree(self.rank, parts, source, self.result, self.piece_bytes)
        return Ring(self.rank, chunks, source, self.result, not gathers, job.action != "scatter", self.piece_bytes)


_OCTET = dtype_code(np.dtype(np.uint8))


class PieceRouter:
    """`send(rail, header, view, opens)` is the transport's; `fail(why)` is told of a frame that can't be."""

    def __init__(
        self,
        nodes: int,
        send: Callable[[int, Header, memoryview, bool], None],
        fail: Callable[[str], None],
        copies: Copies,
    ) -> None:
        self._nodes, self._send_frame, self._fail, self._copies = nodes, send, fail, copies
        self.latest = 0
        self.operations: dict[int, Operation] = {}
        self._early: dict[tuple[int, int], list[tuple[int, Header, memoryview]]] = {}
        self._receiving: dict[int, Task | None] = {}

    @property
    def done(self) -> bool:
        return all(operation.done for operation in reversed(self.operations.values()))

    def enter(self, operation: Operation) -> None:
        """A new operation; the one before the last is forgotten."""
        self.latest = operation.op
        self.operations = {op: other for op, other in self.operations.items() if op >= operation.op - 1}
        self._early = {key: frames for key, frames in self._early.items() if key[0] >= operation.op - 1}
        self.operations[operation.op] = operation

    def begin(self, job: Job) -> None:
        """Begin a job of an operation that is at hand; a barrier waits for the rest."""
        operation = self.operations[job.op]
        task = operation.add(job)
        if task is not None:
            self._start(operation, job, task)
        self.begin_barriers(operation)

    def begin_barriers(self, operation: Operation) -> None:
        for job, task in list(operation.barriers()):
            self._start(operation, job, task)

    def states(self, rail: int) -> list[JobState]:
        """How far all jobs of a rail are."""
        return [state for operation in self.operations.values() for state in operation.states(rail)]

    def drop(self, rail: int) -> None:
        """Forget what a dead rail was doing."""
        for operation in self.operations.values():
            operation.drop(rail)

    def buffer_for(self, rail: int, header: Header) -> memoryview:
        """Where a frame goes: into its task's buffer, or aside if it comes early or nobody wants it."""
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
        """A frame is complete, where `buffer_for` said."""
        task = self._task_of(header)
        if self._receiving.pop(rail) is None:
            if header.op >= self.latest - 1 and (header.op not in self.operations or self._fits(header)):
                self._early.setdefault((header.op, header.task), []).append((rail, header, view))
                if task is not None:  # it began while the frame was on its way
                    operation = self.operations[header.op]
                    self._deliver_early(operation, operation.jobs[header.task], task)
        elif task is not None:
            operation = self.operations[header.op]
            self._piece_done(operation, operation.jobs[header.task], task, header.seq)

    def _start(self, operation: Operation, job: Job, task: Task) -> None:
        self._send(operation, job, task.begin())
        self._deliver_early(operation, job, task)

    def _deliver_early(self, operation: Operation, job: Job, task: Task) -> None:
        for rail, header, view in self._early.pop((job.op, job.number), []):
            if rail == job.rail and self._fits(header):
                task.buffer_for(header.seq)[:] = view
                self._copies.early += header.length
                self._piece_done(operation, job, task, header.seq)

    def _piece_done(self, operation: Operation, job: Job, task: Task, seq: int) -> None:
        self._send(operation, job, task.on_received(seq))
        if task.done:
            if job.action != "barrier":  # which begins when all rails are through
                operation.note_end(job.rail)
            self.begin_barriers(operation)

    def _send(self, operation: Operation, job: Job, pieces: Iterable[Piece]) -> None:
        code = _OCTET if job.action == "barrier" else operation.dtype_code
        digest = operation.digest
        for piece in pieces:
            parts = self._nodes if piece.summed else 1
            header = Header(DATA, code, parts, job.op, job.number, piece.seq, digest, piece.view.nbytes)
            self._send_frame(job.rail, header, piece.view, piece.starts_message)

    def _fits(self, header: Header) -> bool:
        """It's of the operation that was called here, not of an unlike one."""
        return self.operations[header.op].digest == header.digest

    def _task_of(self, header: Header) -> Task | None:
        """The task that has begun here and that a frame is for."""
        if header.op not in self.operations or not self._fits(header):
            return None
        return self.operations[header.op].tasks.get(header.task)
