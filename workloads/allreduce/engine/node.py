"""One node: begins operations, watches the clock, and does what rank 0 decides.

Source: Nezha section 3.5 (NIC selector, timer, load balancer, exception handler), 4.2 and Fig. 7; recovery.py has the
protocol. One thread serves all rails: sums and system calls are long, and what is between them short.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from railyard.workloads.allreduce.balancing.policy import Learning, Planner
from railyard.workloads.allreduce.engine.jobs import GroupBroken, Layout, Migration, SocketMaker, Timeouts
from railyard.workloads.allreduce.engine.operation import Call, Operation, PieceRouter, Record, jobs_of
from railyard.workloads.allreduce.engine.recovery import (
    BARRIER,
    DATA,
    IDLE,
    Coordinator,
    Heartbeat,
    Job,
    LivenessMonitor,
)
from railyard.workloads.allreduce.engine.tasks import PIECE_BYTES, Array, Copies
from railyard.workloads.allreduce.transport.links import Header, Message
from railyard.workloads.allreduce.transport.transport import Transport

_GRACE_S: Final = 1.0  # rank 0's timeout comes first: it knows who is missing
_MAX_SAMPLES: Final = 50_000  # samples: most programs never ask for them


IDLE_S: Final = 0.01


class Progress:
    """`serve(seconds)` is called again and again by the thread, `wake` makes it return at once."""

    def __init__(self, serve: Callable[[float], None], wake: Callable[[], None]) -> None:
        self._serve, self._wake = serve, wake
        self._lock = threading.Lock()
        self._in_use, self._released_at = False, time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="multirail progress", daemon=True)
        self._thread.start()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """The node is the caller's own."""
        self._in_use = True
        if not self._lock.acquire(blocking=False):
            self._wake()
            self._lock.acquire()
        try:
            yield
        finally:
            self._in_use, self._released_at = False, time.monotonic()
            self._lock.release()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self.exclusive():
            pass
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(IDLE_S):
            if not self._in_use and time.monotonic() - self._released_at >= IDLE_S:
                with self._lock:
                    while not self._in_use and not self._closed.is_set():
                        self._serve(IDLE_S)


class Node:
    """`run` does one collective; while it does, the node serves the others too, and so does a thread in between.

    `last`: of the operation that ended last. `samples`: (ns, bytes by rail so far, both ways) at each beat and at the
    end of each operation.
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        policy: Planner,
        timeouts: Timeouts,
        make: SocketMaker,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.rank, self.layout, self.policy, self.timeouts = rank, layout, policy, timeouts
        self.migrations: list[Migration] = []
        self.samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=_MAX_SAMPLES)
        self.last = Record(0.0, (0.0,) * len(layout.rails), (0.0,) * len(layout.rails))
        self._piece_bytes = piece_bytes
        self._op = 0
        self._heartbeat_number, self._heartbeat_at, self._next_heartbeat = 0, 0.0, 0.0
        self._frozen: int | None = None  # the epoch
        self._frozen_at = 0.0
        self._replaced_up_to: dict[int, int] = {}  # by rail: up to which operation its planned jobs are replaced
        self._changes: list[Message] = []
        self._moved_jobs: list[Job] = []
        self._announced_ready: set[tuple[int, int]] = set()
        self._failed: str | None = None
        self._peers = range(1, layout.size) if rank == 0 else range(1)
        self._liveness = LivenessMonitor(len(layout.rails), timeouts)
        names = [rail.name for rail in layout.rails]
        self._coordinator = Coordinator(layout.size, names, self._send_to_all, self._best) if rank == 0 else None
        self._copies = Copies()
        self._transport = Transport(rank, layout, make, self, self._copies)
        self._router = PieceRouter(layout.size, self._transport.send, self._give_up, self._copies)
        self._learned: list[tuple[Planner, Learning]] = []
        self._down: set[int] = set()  # rails that no policy plans with
        self._learning = self._learning_of(policy)
        self._progress: Progress | None = None

    @property
    def live_rails(self) -> list[int]:
        return self._transport.live

    @property
    def copies(self) -> Copies:
        return self._copies

    def join(self) -> None:
        """Rendezvous on every rail. GroupBroken names the ranks that never came."""
        deadline = time.monotonic() + self.timeouts.join_s
        rails = range(len(self.layout.rails))
        while unjoined := [rail for rail in rails if not self._transport.joined(rail)]:
            if time.monotonic() > deadline:
                on_message = "; ".join(
                    f"{', '.join(self._transport.missing(rail))} never came to rail {self.layout.rails[rail].name}"
                    for rail in unjoined
                )
                self._transport.abandon(f"{on_message} in {self.timeouts.join_s:g} s")
                raise GroupBroken(f"{on_message} in {self.timeouts.join_s:g} s")
            self._transport.poll(0.005)
        for rail in rails:
            self._transport.install(rail)
        self._progress = Progress(self._serve_idly, self._transport.wake)

    def run(self, call: Call, source: Array, result: Array) -> None:
        """Do it: `result` is right when this returns. GroupBroken if that can't be."""
        assert self._progress is not None  # it has joined
        with self._progress.exclusive():
            self._run(call, source, result)

    def set_policy(self, policy: Planner) -> None:
        """From the next operation on, on all nodes alike."""
        assert self._progress is not None  # it has joined
        with self._progress.exclusive():
            self.policy, self._learning = policy, self._learning_of(policy)

    def abandon(self, why: str) -> None:
        """From another thread: let the operation that runs, and each after it, end with GroupBroken at once."""
        self._failed = self._failed or why
        self._transport.wake()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
        self._transport.close()

    def _run(self, call: Call, source: Array, result: Array) -> None:
        self._next_heartbeat = self.timeouts.next_heartbeat(time.monotonic(), self._next_heartbeat, self._heartbeat_at)
        self._serve_until(lambda: self._frozen is None and self._learning.up_to_date(), call)
        self._op += 1
        self._apply_changes()
        operation = Operation(
            self._op, call, self.rank, self.layout.size, source, result, self.layout.trees, self._piece_bytes
        )
        self._router.enter(operation)
        planned = jobs_of(call, self._op, self.policy.plan(call.length, source.itemsize))
        for job in planned:
            if self._replaced_up_to.get(job.rail, 0) < self._op:
                self._router.begin(job)
        for job in self._moved_jobs:
            if job.op == self._op:
                self._router.begin(job)
        self._serve_until(lambda: self._frozen is None and self._router.done and self._transport.flushed(), call)
        self.last = operation.record(planned, len(self.layout.rails))
        self._learning.ended(self._op, call.length * source.itemsize, self.last.began, self.last.ends)
        self.samples.append((time.monotonic_ns(), self._transport.moved()))

    # by the clock

    def _serve_until(self, is_done: Callable[[], bool], call: Call) -> None:
        began = time.monotonic()
        self._tick(began)
        self._transport.deliver_own()
        while self._failed is None and not is_done():
            now = time.monotonic()
            if self._tick(now):
                self._check_timeout(now - began, call)
            self._transport.poll(max(0.0, self._next_heartbeat - now))
        if self._failed is not None:
            raise GroupBroken(self._failed)

    def _serve_idly(self, timeout_s: float) -> None:
        """While the program computes. What goes wrong is told when it comes back."""
        if self._failed is None:
            self._tick(time.monotonic())
        self._transport.poll(timeout_s)

    def _tick(self, now: float) -> bool:
        """If a beat is due, say how it goes, and look at how the others do. Whether it was."""
        if now < self._next_heartbeat:
            return False
        self._heartbeat_at, self._next_heartbeat = now, now + self.timeouts.heartbeat_s
        self._heartbeat_number += 1
        current = self._router.operations.get(self._op)
        call = str(current.call) if current else ""
        moved = self._transport.moved()
        self.samples.append((time.monotonic_ns(), moved))
        heartbeat = Heartbeat(self._heartbeat_number, self._op, call, moved, self._work())
        self._transport.heartbeat({"type": "heartbeat", **asdict(heartbeat)})
        self._liveness.received(self.rank, 0, heartbeat, now)
        if self._frozen is None:
            dead = self._liveness.silent(self._peers, self._transport.live)
            if self._coordinator is not None:
                dead |= self._liveness.stalled(range(self.layout.size), self._transport.live, now)
            for rail, why in dead.items():
                self._suspect(rail, why, certain=False)
        if self._coordinator is not None and (mismatch_reason := self._liveness.mismatch()):
            self._coordinator.abort(mismatch_reason)
        self._announce_ready()
        return True

    def _work(self) -> tuple[int, ...]:
        work = [IDLE] * len(self.layout.rails)
        for operation in self._router.operations.values():
            for job in operation.unfinished():
                work[job.rail] = max(work[job.rail], BARRIER if job.action == "barrier" else DATA)
        return tuple(work)

    def _announce_ready(self) -> None:
        for rail, incarnation in self._transport.incarnations.items():
            if self._transport.joined(rail) and (rail, incarnation) not in self._announced_ready:
                self._announced_ready.add((rail, incarnation))
                self._transport.send_control(
                    0, {"type": "ready", "rank": self.rank, "rail": rail, "incarnation": incarnation}
                )

    def _check_timeout(self, waited: float, call: Call) -> None:
        limit = self.timeouts.operation_s
        if waited <= limit + (0 if self._coordinator is not None else _GRACE_S):
            return
        absent = self._liveness.absent(self._peers, self._op, time.monotonic())
        missing_ranks = ", ".join(f"rank {rank}" for rank in absent)
        action = f"operation {self._op} ({call})"
        self._give_up(
            f"{missing_ranks} never came to {action} in {limit:g} s"
            if missing_ranks
            else f"{action} didn't end in {limit:g} s"
        )

    # what comes in

    def buffer_for(self, rail: int, header: Header) -> memoryview:
        return self._router.buffer_for(rail, header)

    def on_received(self, rail: int, header: Header, view: memoryview) -> None:
        self._router.on_received(rail, header, view)

    def on_disconnect(self, rail: int, why: str) -> None:
        """A connection of a live rail is gone."""
        self._suspect(rail, why, certain=True)
        gone = self._transport.unreachable_peers()
        if gone and self._coordinator is not None:
            self._coordinator.abort(f"rank {gone[0]} is gone: {why}")
        elif gone and self._failed is None:
            self._failed = f"no rail leads to rank 0 any more: {self.layout.rails[rail].name}: {why}"

    def on_message(self, peer: int, rail: int, message: Message) -> None:
        """A message, by what it is."""
        match message["type"]:
            case "heartbeat":
                moved, busy = tuple(message["moved"]), tuple(message["busy"])
                heartbeat = Heartbeat(message["number"], message["op"], message["call"], moved, busy)
                self._liveness.received(peer, rail, heartbeat, time.monotonic())
            case "freeze":
                self._freeze(message)
            case "decision":
                self._decided(message)
            case "table":
                for _, learning in self._learned:
                    learning.received(message)
            case "abort":
                self._failed = self._failed or message["why"]
            case _ if self._coordinator is not None:
                self._coordinator.received(message)

    # what goes out

    def _suspect(self, rail: int, why: str, certain: bool) -> None:
        incarnation, why = self._transport.incarnations[rail], f"rank {self.rank}: {why}"
        self._transport.send_control(
            0, {"type": "suspect", "rail": rail, "incarnation": incarnation, "why": why, "certain": certain}
        )

    def _give_up(self, why: str) -> None:
        """End it for the whole group: at once here, and by rank 0's word at the others."""
        if self._coordinator is not None:
            self._coordinator.abort(why)
        else:
            self._failed = self._failed or why
            self._transport.send_control(0, {"type": "give up", "why": why})

    def _send_to_all(self, message: Message) -> None:
        for rank in (*self._peers, 0):
            self._transport.send_control(rank, message)

    # rails die and come back: recovery.py

    def _best(self, size: int, rails: Collection[int]) -> int:
        return self.policy.best(size, rails)

    def _freeze(self, message: Message) -> None:
        if self._frozen is None:
            self._frozen_at = time.monotonic()
        self._frozen = message["epoch"]
        jobs = []
        for rail, incarnation in message["dead"]:
            if self._transport.incarnations[rail] != incarnation:
                self._transport.close_rail(rail, incarnation)
            jobs += [state.as_json() for state in self._router.states(rail)]
        answer = {"type": "state", "epoch": self._frozen, "rank": self.rank, "op": self._op, "jobs": jobs}
        self._transport.send_control(0, answer)

    def _decided(self, message: Message) -> None:
        latest, dead, now = message["latest"], message["dead"], time.monotonic()
        for rail in dead:
            self._replaced_up_to[rail] = latest
            self._router.drop(rail)
        for rail in message["restored"]:
            if self._transport.joined(rail):
                self._transport.install(rail)
                self._liveness.restored(rail, now)
            else:
                self._suspect(rail, "it was lost again before it was used", certain=True)
        self._frozen = None
        self._changes.append(message)
        jobs = [Job(**job) for job in message["jobs"]]
        self._moved_jobs = [job for job in self._moved_jobs if job.op >= latest and job.rail not in dead] + jobs
        if dead:
            self.migrations.append(Migration(tuple(dead), self._frozen_at, now))
        for job in jobs:
            if job.op in self._router.operations:
                self._router.begin(job)
        for operation in self._router.operations.values():
            self._router.begin_barriers(operation)

    def _apply_changes(self) -> None:
        """From this operation on plan as was decided."""
        pending_changes = [change for change in self._changes if change["latest"] < self._op]
        self._changes = self._changes[len(pending_changes) :]
        for change in pending_changes:
            self._down = (self._down - set(change["restored"])) | set(change["dead"])
            for policy, learning in self._learned:
                for rail in change["restored"]:
                    policy.up(rail)
                for rail in change["dead"]:
                    policy.down(rail)
                learning.rails_changed()

    def _learning_of(self, policy: Planner) -> Learning:
        """What it has learnt: nothing yet, if it never planned anything here."""
        found = next((learning for other, learning in self._learned if other is policy), None)
        if found is None:
            for rail in self._down:
                policy.down(rail)
            found = Learning(policy, lambda message: self._transport.send_control(0, message))
            self._learned.append((policy, found))
        return found
