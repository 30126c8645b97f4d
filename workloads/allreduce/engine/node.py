"""One node of a group: it runs operations, sends heartbeats, and does what rank 0 decides about rails.

Source: Nezha section 3.5 (NIC selector, timer, load balancer, exception handler), 4.2 and Fig. 7; recovery.py has the
protocol.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from railyard.workloads.allreduce.balancing.policy import PlannerSet
from railyard.workloads.allreduce.engine.jobs import GroupBroken, Layout, Migration, SocketMaker, Timeouts
from railyard.workloads.allreduce.engine.operation import Call, Operation, PieceRouter, Record, jobs_of
from railyard.workloads.allreduce.engine.recovery import Coordinator, Heartbeat, Job, LivenessMonitor
from railyard.workloads.allreduce.tasks import Array
from railyard.workloads.allreduce.transport.links import Message
from railyard.workloads.allreduce.transport.transport import Transport

# time out of operations after which the progress thread serves the node's peers
IDLE_S: Final = 0.01
_MAX_SAMPLES: Final = 50_000  # most programs never take them
# rank 0's timeout comes first: it knows which rank is missing
_GRACE_S: Final = 1.0


class ProgressThread:
    """Thread that serves a node's peers while its program computes: they may need its answers to go on.

    From `IDLE_S` after an operation on it calls `serve(seconds)` repeatedly; `wake` makes that return.
    """

    def __init__(self, serve: Callable[[float], None], wake: Callable[[], None]) -> None:
        self._serve = serve
        self._wake = wake
        self._lock = threading.Lock()
        self._in_use = False
        self._released_at = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="allreduce progress", daemon=True)
        self._thread.start()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the node: the thread does not touch it meanwhile."""
        self._in_use = True
        if not self._lock.acquire(blocking=False):
            self._wake()
            self._lock.acquire()
        try:
            yield
        finally:
            self._in_use = False
            self._released_at = time.monotonic()
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


class RailChanges:
    """Decisions of rank 0 about rails, as one node carries them out (recovery.py).

    `epoch`: of the freeze whose decision is awaited.
    `migrations`: each time that rails died and their work moved.
    """

    def __init__(self, transport: Transport, router: PieceRouter) -> None:
        self._transport = transport
        self._router = router
        self.epoch: int | None = None
        self.migrations: list[Migration] = []
        self._frozen_at = 0.0
        # by rail: up to which operation its planned jobs are replaced
        self._replaced_up_to: dict[int, int] = {}
        self._moved_jobs: list[Job] = []
        # decisions that planners do not know yet
        self._pending: list[Message] = []

    def freeze(self, message: Message, rank: int, op: int) -> Message:
        """Close the dead rails, and return this node's `state`."""
        if self.epoch is None:
            self._frozen_at = time.monotonic()
        self.epoch = message["epoch"]
        jobs = []
        for rail, incarnation in message["dead"]:
            if self._transport.incarnations[rail] != incarnation:
                self._transport.close_rail(rail, incarnation)
            jobs += self._router.states(rail)
        return {"type": "state", "epoch": self.epoch, "rank": rank, "op": op, "jobs": jobs}

    def decide(self, message: Message, now: float) -> tuple[list[int], list[int]]:
        """Carry out a decision. Return the rails that are restored, and those that were lost again before."""
        latest = message["latest"]
        dead = message["dead"]
        for rail in dead:
            self._replaced_up_to[rail] = latest
            self._router.drop(rail)
        restored = [rail for rail in message["restored"] if self._transport.joined(rail)]
        for rail in restored:
            self._transport.install(rail, self._router)
        self.epoch = None
        self._pending.append(message)
        jobs = [Job(*job) for job in message["jobs"]]
        self._moved_jobs = [job for job in self._moved_jobs if job.op >= latest and job.rail not in dead] + jobs
        if dead:
            self.migrations.append(Migration(tuple(dead), self._frozen_at, now))
        for job in jobs:
            if job.op in self._router.operations:
                self._router.begin(job)
        for operation in self._router.operations.values():
            self._router.begin_barriers(operation)
        return restored, [rail for rail in message["restored"] if rail not in restored]

    def plan(self, op: int, call: Call, itemsize: int, planners: PlannerSet) -> tuple[list[Job], list[Job]]:
        """Return the jobs of operation `op` as planned, and those to begin: with the jobs on dead rails replaced."""
        # planners get a decision with the first operation that no node has begun, so that all plan alike
        due = [change for change in self._pending if change["latest"] < op]
        self._pending = self._pending[len(due) :]
        for change in due:
            planners.rails_changed(change["dead"], change["restored"])
        planned = jobs_of(call, op, planners.current.planner.plan(call.length, itemsize))
        kept = [job for job in planned if self._replaced_up_to.get(job.rail, 0) < op]
        return planned, kept + [job for job in self._moved_jobs if job.op == op]


class Node:
    """Member of a group, which joins on construction. The node serves its peers in `run`, and a thread in between.

    `last`: the operation that ended last. `samples` gets (CLOCK_MONOTONIC in ns, bytes by rail so far, both ways) at
    each heartbeat and operation's end; the latest 50,000 are kept.
    """

    def __init__(self, rank: int, layout: Layout, policy: str, timeouts: Timeouts, make: SocketMaker) -> None:
        self.rank = rank
        self.layout = layout
        self.timeouts = timeouts
        rails = len(layout.rails)
        self.last = Record(0.0, (0.0,) * rails, (0.0,) * rails)
        self.samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=_MAX_SAMPLES)
        self._op = self._heartbeat_number = 0
        self._heartbeat_at = self._next_heartbeat_at = 0.0
        self._failed: str | None = None
        self._announced_ready: set[tuple[int, int]] = set()
        self._peers = range(1, layout.size) if rank == 0 else range(1)
        self._liveness = LivenessMonitor(rails, timeouts)
        self.planners = PlannerSet(layout.rails, layout.size, policy, self._send_to_coordinator)
        self._coordinator = Coordinator(layout, self.planners, self._send_to_all) if rank == 0 else None
        self.transport = Transport(rank, layout, make, self._on_message, self._on_disconnect)
        self._router = PieceRouter(layout.size, self.transport.send, self._give_up)
        self.copies = self._router.copies
        self.changes = RailChanges(self.transport, self._router)
        try:
            self._join()
        except BaseException:
            self.transport.close()
            raise
        # one thread serves all rails: sums and system calls take long, and the code between them little
        self._progress = ProgressThread(self._serve_idly, self.transport.wake)

    def _join(self) -> None:
        """Connect to all peers on every rail. GroupBroken names the ranks that never came."""
        deadline = time.monotonic() + self.timeouts.join_s
        rails = range(len(self.layout.rails))
        while unjoined := [rail for rail in rails if not self.transport.joined(rail)]:
            if time.monotonic() > deadline:
                absences = []
                for rail in unjoined:
                    ranks = ", ".join(self.transport.missing(rail))
                    absences.append(f"{ranks} never came to rail {self.layout.rails[rail].name}")
                why = f"{'; '.join(absences)} in {self.timeouts.join_s:g} s"
                self.transport.abandon(why)
                raise GroupBroken(why)
            self.transport.poll(0.005)
        for rail in rails:
            self.transport.install(rail, self._router)

    def run(self, call: Call, source: Array, result: Array) -> None:
        """Do a collective: `result` is right when this returns. GroupBroken if that is impossible."""
        changes = self.changes
        router = self._router
        planners = self.planners
        with self._progress.exclusive():
            self._next_heartbeat_at = self.timeouts.next_heartbeat(
                time.monotonic(), self._next_heartbeat_at, self._heartbeat_at
            )
            self._serve_until(lambda: changes.epoch is None and planners.current.up_to_date(), call)
            self._op += 1
            operation = Operation(self._op, call, self.rank, self.layout, source, result)
            router.enter(operation)
            planned, jobs = changes.plan(self._op, call, source.itemsize, planners)
            for job in jobs:
                router.begin(job)
            self._serve_until(lambda: changes.epoch is None and router.done and self.transport.flushed(), call)
            self.last = operation.record(planned)
            planners.current.ended(self._op, call.length * source.itemsize, self.last.began, self.last.ends)
            self.samples.append((time.monotonic_ns(), self.transport.moved()))

    def set_policy(self, policy: str) -> None:
        """Plan by another policy from the next operation on: on all nodes alike."""
        with self._progress.exclusive():
            self.planners.use(policy)

    def abandon(self, why: str) -> None:
        """Let the operation that runs, and all later ones, end with GroupBroken; called from another thread."""
        self._fail(why)
        self.transport.wake()

    def close(self) -> None:
        """End the progress thread and close all connections."""
        self._progress.close()
        self.transport.close()

    def _serve_until(self, is_done: Callable[[], bool], call: Call) -> None:
        began = time.monotonic()
        limit_s = self.timeouts.operation_s
        own_limit_s = limit_s if self._coordinator else limit_s + _GRACE_S
        self._send_heartbeat(began)
        self.transport.deliver_own()
        while self._failed is None and not is_done():
            now = time.monotonic()
            if self._send_heartbeat(now) and now - began > own_limit_s:
                absent = self._liveness.absent(self._peers, self._op, now)
                missing_ranks = ", ".join(f"rank {rank}" for rank in absent)
                action = f"operation {self._op} ({call})"
                why = f"{missing_ranks} never came to {action}" if absent else f"{action} didn't end"
                self._give_up(f"{why} in {limit_s:g} s")
            self.transport.poll(max(0.0, self._next_heartbeat_at - now))
        if self._failed is not None:
            raise GroupBroken(self._failed)

    def _serve_idly(self, timeout_s: float) -> None:
        if self._failed is None:
            # else the program's next operation raises it
            self._send_heartbeat(time.monotonic())
        self.transport.poll(timeout_s)

    def _send_heartbeat(self, now: float) -> bool:
        """Send a heartbeat if one is due, and look at the others' state. Return whether it was due."""
        if now < self._next_heartbeat_at:
            return False
        self._heartbeat_at = now
        self._next_heartbeat_at = now + self.timeouts.heartbeat_s
        self._heartbeat_number += 1
        current = self._router.operations.get(self._op)
        moved = self.transport.moved()
        self.samples.append((time.monotonic_ns(), moved))
        call = str(current.call) if current else ""
        busy = self._router.busy(len(self.layout.rails))
        heartbeat = Heartbeat(self._heartbeat_number, self._op, call, moved, busy)
        self.transport.heartbeat({"type": "heartbeat", "state": heartbeat})
        self._liveness.received(self.rank, 0, heartbeat, now)
        if self.changes.epoch is None:
            dead = self._liveness.silent(self._peers, self.transport.live)
            if self._coordinator is not None:
                dead |= self._liveness.stalled(range(self.layout.size), self.transport.live, now)
            for rail, why in dead.items():
                self._suspect(rail, why, certain=False)
        if self._coordinator is not None and (mismatch := self._liveness.mismatch()):
            self._coordinator.abort(mismatch)
        for rail, incarnation in self.transport.incarnations.items():
            if self.transport.joined(rail) and (rail, incarnation) not in self._announced_ready:
                self._announced_ready.add((rail, incarnation))
                ready = {"type": "ready", "rank": self.rank, "rail": rail, "incarnation": incarnation}
                self._send_to_coordinator(ready)
        return True

    def _on_disconnect(self, rail: int, why: str, gone: list[int]) -> None:
        """Report a live rail whose connection is gone; fail where no rail leads to a peer any more."""
        self._suspect(rail, why, certain=True)
        if gone and self._coordinator is not None:
            self._coordinator.abort(f"rank {gone[0]} is gone: {why}")
        elif gone:
            self._fail(f"no rail leads to rank 0 any more: {self.layout.rails[rail].name}: {why}")

    def _on_message(self, peer: int, rail: int, message: Message) -> None:
        match message["type"]:
            case "heartbeat":
                self._liveness.received(peer, rail, Heartbeat(*message["state"]), time.monotonic())
            case "freeze":
                self._send_to_coordinator(self.changes.freeze(message, self.rank, self._op))
            case "decision":
                now = time.monotonic()
                restored, lost = self.changes.decide(message, now)
                for each in restored:
                    self._liveness.restored(each, now)
                for each in lost:
                    self._suspect(each, "it was lost again before it was used", certain=True)
            case "table":
                self.planners.received(message)
            case "abort":
                self._fail(message["why"])
            case _ if self._coordinator is not None:
                self._coordinator.received(message)

    def _suspect(self, rail: int, why: str, certain: bool) -> None:
        report = {"type": "suspect", "rail": rail, "incarnation": self.transport.incarnations[rail], "certain": certain}
        self._send_to_coordinator(report | {"why": f"rank {self.rank}: {why}"})

    def _fail(self, why: str) -> None:
        self._failed = self._failed or why

    def _give_up(self, why: str) -> None:
        """End the whole group: at once here, and through rank 0 on the others."""
        if self._coordinator is not None:
            self._coordinator.abort(why)
        else:
            self._fail(why)
            self._send_to_coordinator({"type": "give up", "why": why})

    def _send_to_coordinator(self, message: Message) -> None:
        self.transport.send_control(0, message)

    def _send_to_all(self, message: Message) -> None:
        for rank in (*self._peers, 0):
            self.transport.send_control(rank, message)
