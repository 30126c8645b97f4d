"""Pieces on their way between the tasks of a node's operations and its transport.

Two operations are at hand: the one that runs, and the one before, whose result others may still need (recovery.py). A
frame of a task that hasn't begun here is put aside, so that it never blocks what comes behind it.
"""

from collections.abc import Callable, Iterable

import numpy as np

from railyard.workloads.allreduce.engine.buffers import Copies, dtype_code, scratch
from railyard.workloads.allreduce.engine.operation import Operation
from railyard.workloads.allreduce.engine.tasks import Piece, Task
from railyard.workloads.allreduce.recovery.plan import Job, JobState
from railyard.workloads.allreduce.transport.frames import DATA, Header

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
