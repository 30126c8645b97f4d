"""The loop of one worker: epoll over every connection of its GPUs, a heap of computations, and nothing else.

A transfer is a header (task number, bytes) and its bytes, cut from a pattern that both ends know; the receiver compares
every byte. Transfers on one connection go one after the other; those on different connections share the sender's link.
"""

import heapq
import random
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from railyard.workloads.replay.job import (
    PATTERN_BYTES,
    PATTERN_STRIDE,
    Channel,
    Delivered,
    Job,
    Outcome,
    PhaseEnd,
    dependents,
    transfers_per_phase,
)
from railyard.workloads.schedule import Compute, Transfer

HEADER: Final = struct.Struct("!IQ")
CHUNK_BYTES: Final = 256 * 1024
SPIN_S: Final = 0.0015  # epoll sleeps in whole milliseconds: the last one before a computation ends is spent awake
PROGRESS_INTERVAL_S: Final = 0.1

Report = Callable[[Delivered | PhaseEnd], None]


@dataclass
class _Connection:
    """A connection, and the transfer under way on it: number (or -1), part of its header, and bytes to come."""

    channel: Channel
    sock: socket.socket
    header: bytes = b""
    task: int = -1
    remaining: int = 0
    pattern_offset: int = 0
    queue: deque[int] = field(default_factory=deque)  # transfers that wait to be sent
    wants_write: bool = False  # epoll reports when there is room


def pattern_of(seed: int) -> bytes:
    """The bytes that fill transfers: a megabyte at random, with as much again as one chunk may run past its end."""
    block = random.Random(seed).randbytes(PATTERN_BYTES)
    return block + block[:CHUNK_BYTES]


class Engine:
    """Plays the job's GPUs. `sending` and `receiving`: the connected, non-blocking sockets."""

    def __init__(
        self, job: Job, sending: dict[Channel, socket.socket], receiving: dict[Channel, socket.socket]
    ) -> None:
        self.job, self.outcome = job, Outcome()
        self._pattern = memoryview(pattern_of(job.seed))
        self._dependency_counts, self._on_done, self._on_receipt = dependents(job)
        self._epoll = select.epoll()
        self._send_connections = {channel: _Connection(channel, sock) for channel, sock in sending.items()}
        self._senders = {conn.sock.fileno(): conn for conn in self._send_connections.values()}
        self._receivers = {sock.fileno(): _Connection(channel, sock) for channel, sock in receiving.items()}
        for fd in self._receivers:
            self._epoll.register(fd, select.EPOLLIN)
        for fd in self._senders:
            self._epoll.register(fd, 0)
        self._timers: list[tuple[float, int]] = []
        self._ready = deque(number for number, remaining in self._dependency_counts.items() if remaining == 0)
        self._buffer = bytearray(CHUNK_BYTES)
        self._pending_tasks = len(self._dependency_counts)
        self._pending_by_phase = transfers_per_phase(job.tasks, job.watched, job.local_gpus)
        self._total_by_phase = dict(self._pending_by_phase)
        self._report: Report = lambda _: None
        self._pending_receives = sum(1 for t in job.tasks if isinstance(t, Transfer) and t.dst in job.local_gpus)
        self.delivered_bytes = 0

    def run(self, start_ns: int, report: Report, deadline_ns: int) -> Outcome:
        """Begin at `start_ns`; return when all is sent and received, a connection broke, or the deadline passed.

        Reported are the bytes delivered so far, now and then, and each watched phase when it is over here.
        """
        self._report = report
        while time.monotonic_ns() < start_ns:
            time.sleep(0.0002)
        self._begin_ready()
        next_report = 0.0
        while (self._pending_tasks or self._pending_receives) and not self.outcome.broken:
            remaining = self._timers[0][0] - time.monotonic() if self._timers else PROGRESS_INTERVAL_S + SPIN_S
            timeout_s = min(PROGRESS_INTERVAL_S, remaining - SPIN_S) if remaining > SPIN_S else 0.0
            for fd, events in self._epoll.poll(timeout_s):
                if fd in self._receivers:
                    self._run_step(self._receive, self._receivers[fd])
                else:
                    self._run_step(self._send if events & select.EPOLLOUT else self._raise_error, self._senders[fd])
                self._begin_ready()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self._done(heapq.heappop(self._timers)[1])
            self._begin_ready()
            if now >= next_report:
                next_report = now + PROGRESS_INTERVAL_S
                report(Delivered(size=self.delivered_bytes))
                if time.monotonic_ns() > deadline_ns:
                    self.outcome.broken.append(f"{self._pending_receives} transfers had not arrived at the deadline")
        report(Delivered(size=self.delivered_bytes))
        return self.outcome

    def _run_step(self, step: Callable[[_Connection], None], connection: _Connection) -> None:
        """Take a step on a connection; if that fails, the connection is broken, and with it the replay."""
        try:
            step(connection)
        except BlockingIOError:
            return
        except OSError as error:
            src, dst = (self.job.gpus[number].name for number in connection.channel[:2])
            self.outcome.broken.append(f"{src} -> {dst}: {error}")

    def _raise_error(self, connection: _Connection) -> None:
        """Raise what is wrong with a connection of which epoll says that something is."""
        connection.sock.send(b"")
        raise ConnectionResetError("the receiver hung up")

    def _begin_ready(self) -> None:
        """Begin what waits for nothing more, and what that frees; none if a connection broke."""
        while self._ready and not self.outcome.broken:
            number = self._ready.popleft()
            task = self.job.tasks[number]
            if isinstance(task, Compute):
                now = time.monotonic()
                self.outcome.started_ns[number] = int(now * 1e9)
                heapq.heappush(self._timers, (now + task.seconds, number))
                continue
            connection = self._send_connections[Channel(task.src, task.dst, task.stripe)]
            connection.queue.append(number)
            if connection.task < 0:  # else it goes on when there is room
                self._run_step(self._send, connection)

    def _done(self, number: int) -> None:
        self._pending_tasks -= 1
        if isinstance(self.job.tasks[number], Compute):
            self.outcome.ended_ns[number] = time.monotonic_ns()
        self._release(self._on_done.get(number, ()))

    def _release(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._dependency_counts[number] -= 1
            if self._dependency_counts[number] == 0:
                self._ready.append(number)  # begun by the loop: a chain of them would be too deep for the stack

    def _send(self, connection: _Connection) -> None:
        """Hand the kernel all that it takes, one transfer after the other; wait for room if there is none."""
        while True:
            if connection.task < 0:
                if not connection.queue:
                    self._set_write_events(connection, False)
                    return
                number = connection.queue.popleft()
                self._start(connection, number, self._transfer(number).bytes)
                connection.header = HEADER.pack(number, connection.remaining)
                self.outcome.started_ns[number] = time.monotonic_ns()
            try:
                if connection.header:
                    sent = connection.sock.send(connection.header, socket.MSG_MORE)
                    connection.header = connection.header[sent:]
                    continue
                length = min(connection.remaining, CHUNK_BYTES)
                start = connection.pattern_offset
                sent = connection.sock.send(self._pattern[start : start + length])
            except BlockingIOError:
                self._set_write_events(connection, True)
                return
            connection.remaining -= sent
            connection.pattern_offset = (connection.pattern_offset + sent) % PATTERN_BYTES
            if connection.remaining == 0:
                number, connection.task = connection.task, -1
                self._done(number)

    def _transfer(self, number: int) -> Transfer:
        task = self.job.tasks[number]
        assert isinstance(task, Transfer)
        return task

    def _start(self, connection: _Connection, number: int, size: int) -> None:
        connection.task, connection.remaining = number, size
        connection.pattern_offset = number * PATTERN_STRIDE % PATTERN_BYTES

    def _set_write_events(self, connection: _Connection, enabled: bool) -> None:
        if connection.wants_write != enabled:
            connection.wants_write = enabled
            self._epoll.modify(connection.sock.fileno(), select.EPOLLOUT if enabled else 0)

    def _receive(self, connection: _Connection) -> None:
        """Read once; epoll tells again if there is more."""
        if connection.task < 0:
            data = connection.sock.recv(HEADER.size - len(connection.header))
            if not data:
                raise ConnectionResetError("the sender hung up")
            connection.header += data
            if len(connection.header) < HEADER.size:
                return
            number, size = HEADER.unpack(connection.header)
            task = self.job.tasks[number] if number < len(self.job.tasks) else None
            expected = (task.src, task.dst, task.stripe, task.bytes) if isinstance(task, Transfer) else None
            if expected != (*connection.channel, size):
                raise ConnectionError(f"the sender announced task {number} with {size} bytes, which isn't to come here")
            self._start(connection, number, size)
            connection.header = b""
        length = min(connection.remaining, CHUNK_BYTES)
        count = connection.sock.recv_into(self._buffer, length)
        if count == 0:
            raise ConnectionResetError("the sender hung up")
        if self._buffer[:count] != self._pattern[connection.pattern_offset : connection.pattern_offset + count]:
            self.outcome.corrupt.append(connection.task)
        connection.remaining -= count
        connection.pattern_offset = (connection.pattern_offset + count) % PATTERN_BYTES
        self.delivered_bytes += count
        if connection.remaining == 0:
            self._received(connection)

    def _received(self, connection: _Connection) -> None:
        number, connection.task = connection.task, -1
        task = self._transfer(number)
        self.outcome.ended_ns[number] = time.monotonic_ns()
        if number not in self.outcome.corrupt:
            self.outcome.delivered[number] = task.bytes
        self._pending_receives -= 1
        if task.phase in self._pending_by_phase:
            self._pending_by_phase[task.phase] -= 1
            if self._pending_by_phase[task.phase] == 0:
                total, ended_ns = self._total_by_phase[task.phase], self.outcome.ended_ns[number]
                self._report(PhaseEnd(phase=task.phase, transfers=total, ended_ns=ended_ns))
        self._release(self._on_receipt.get(number, ()))
