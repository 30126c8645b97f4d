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
from typing import Final, TypeVar

from railyard.workloads.replay.job import PATTERN_BYTES, PATTERN_STRIDE, Channel, Job, Outcome, unlocks
from railyard.workloads.replay.phases import PhaseOver, awaited
from railyard.workloads.schedule import Compute, Transfer

HEADER: Final = struct.Struct("!IQ")
CHUNK: Final = 256 * 1024
SPIN_S: Final = 0.0015  # epoll sleeps in whole milliseconds: the last one before a computation ends is spent awake
PROGRESS_S: Final = 0.1

Report = Callable[[int | PhaseOver], None]


@dataclass
class _Sending:
    """A connection that we send on: waiting transfers, and what is left of the one on its way."""

    channel: Channel
    sock: socket.socket
    queue: deque[int] = field(default_factory=deque)
    header: bytes = b""
    task: int = -1
    left: int = 0
    at: int = 0
    armed: bool = False  # epoll tells when there is room


@dataclass
class _Receiving:
    """A connection that we receive on: a part of a header, or what is missing of a transfer."""

    channel: Channel
    sock: socket.socket
    header: bytes = b""
    task: int = -1
    left: int = 0
    at: int = 0


_Connection = TypeVar("_Connection", _Sending, _Receiving)


def pattern_of(seed: int) -> bytes:
    """The bytes that fill transfers: a megabyte at random, with as much again as one chunk may run past its end."""
    once = random.Random(seed).randbytes(PATTERN_BYTES)
    return once + once[:CHUNK]


class Engine:
    """Plays the job's GPUs. `sending` and `receiving`: the connected, non-blocking sockets."""

    def __init__(
        self, job: Job, sending: dict[Channel, socket.socket], receiving: dict[Channel, socket.socket]
    ) -> None:
        self.job, self.outcome = job, Outcome()
        self._pattern = memoryview(pattern_of(job.seed))
        self._waits, self._on_done, self._on_receipt = unlocks(job)
        self._epoll = select.epoll()
        self._out = {channel: _Sending(channel, sock) for channel, sock in sending.items()}
        self._senders = {conn.sock.fileno(): conn for conn in self._out.values()}
        self._receivers = {sock.fileno(): _Receiving(channel, sock) for channel, sock in receiving.items()}
        for fd in self._receivers:
            self._epoll.register(fd, select.EPOLLIN)
        for fd in self._senders:
            self._epoll.register(fd, 0)
        self._timers: list[tuple[float, int]] = []
        self._ready = deque(number for number, left in self._waits.items() if left == 0)
        self._buffer = bytearray(CHUNK)
        self._to_do = len(self._waits)
        self._awaited = awaited(job.tasks, job.watched, job.mine)
        self._parts = dict(self._awaited)
        self._report: Report = lambda _: None
        self._to_come = sum(1 for t in job.tasks if isinstance(t, Transfer) and t.dst in job.mine)
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
        while (self._to_do or self._to_come) and not self.outcome.broken:
            self._serve(self._pause())
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self._done(heapq.heappop(self._timers)[1])
            self._begin_ready()
            if now >= next_report:
                next_report = now + PROGRESS_S
                report(self.delivered_bytes)
                if time.monotonic_ns() > deadline_ns:
                    self.outcome.broken.append(f"{self._to_come} transfers had not arrived at the deadline")
        report(self.delivered_bytes)
        return self.outcome

    def _pause(self) -> float:
        """Seconds that epoll may sleep."""
        if not self._timers:
            return PROGRESS_S
        left = self._timers[0][0] - time.monotonic()
        return min(PROGRESS_S, left - SPIN_S) if left > SPIN_S else 0.0

    def _serve(self, pause: float) -> None:
        for fd, what in self._epoll.poll(pause):
            if fd in self._receivers:
                self._try(self._receive, self._receivers[fd])
            elif what & select.EPOLLOUT:
                self._try(self._send, self._senders[fd])
            else:
                self._try(self._explain, self._senders[fd])
            self._begin_ready()

    def _try(self, step: Callable[[_Connection], None], connection: _Connection) -> None:
        """Take a step on a connection; if that fails, the connection is broken, and with it the replay."""
        try:
            step(connection)
        except BlockingIOError:
            return
        except OSError as error:
            src, dst = (self.job.gpus[number].name for number in connection.channel[:2])
            self.outcome.broken.append(f"{src} -> {dst}: {error}")

    def _explain(self, connection: _Sending) -> None:
        """Raise what is wrong with a connection of which epoll says that something is."""
        connection.sock.send(b"")
        raise ConnectionResetError("the receiver hung up")

    def _begin_ready(self) -> None:
        """Begin what waits for nothing more, and what that frees; none if a connection broke."""
        while self._ready and not self.outcome.broken:
            self._begin(self._ready.popleft())

    def _begin(self, number: int) -> None:
        task = self.job.tasks[number]
        if isinstance(task, Compute):
            now = time.monotonic()
            self.outcome.started_ns[number] = int(now * 1e9)
            heapq.heappush(self._timers, (now + task.seconds, number))
            return
        connection = self._out[Channel(task.src, task.dst, task.stripe)]
        connection.queue.append(number)
        if connection.task < 0:  # else it goes on when there is room
            self._try(self._send, connection)

    def _done(self, number: int) -> None:
        """A task of mine is over as far as its own GPU is concerned."""
        self._to_do -= 1
        if isinstance(self.job.tasks[number], Compute):
            self.outcome.ended_ns[number] = time.monotonic_ns()
        self._free(self._on_done.get(number, ()))

    def _free(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._waits[number] -= 1
            if self._waits[number] == 0:
                self._ready.append(number)  # begun by the loop: a chain of them would be too deep for the stack

    def _send(self, connection: _Sending) -> None:
        """Hand the kernel all that it takes, one transfer after the other; wait for room if there is none."""
        while True:
            if connection.task < 0:
                if not connection.queue:
                    self._arm(connection, False)
                    return
                self._load(connection)
            try:
                if connection.header:
                    sent = connection.sock.send(connection.header, socket.MSG_MORE)
                    connection.header = connection.header[sent:]
                    continue
                piece = min(connection.left, CHUNK)
                sent = connection.sock.send(self._pattern[connection.at : connection.at + piece])
            except BlockingIOError:
                self._arm(connection, True)
                return
            connection.left -= sent
            connection.at = (connection.at + sent) % PATTERN_BYTES
            if connection.left == 0:
                number, connection.task = connection.task, -1
                self._done(number)

    def _load(self, connection: _Sending) -> None:
        number = connection.queue.popleft()
        task = self.job.tasks[number]
        assert isinstance(task, Transfer)
        connection.task, connection.left = number, task.bytes
        connection.at = number * PATTERN_STRIDE % PATTERN_BYTES
        connection.header = HEADER.pack(number, task.bytes)
        self.outcome.started_ns[number] = time.monotonic_ns()

    def _arm(self, connection: _Sending, wanted: bool) -> None:
        if connection.armed != wanted:
            connection.armed = wanted
            self._epoll.modify(connection.sock.fileno(), select.EPOLLOUT if wanted else 0)

    def _receive(self, connection: _Receiving) -> None:
        """Read once; epoll tells again if there is more."""
        if connection.task < 0:
            got = connection.sock.recv(HEADER.size - len(connection.header))
            if not got:
                raise ConnectionResetError("the sender hung up")
            connection.header += got
            if len(connection.header) < HEADER.size:
                return
            connection.task, connection.left = self._announced(connection)
            connection.header, connection.at = b"", connection.task * PATTERN_STRIDE % PATTERN_BYTES
        piece = min(connection.left, CHUNK)
        count = connection.sock.recv_into(self._buffer, piece)
        if count == 0:
            raise ConnectionResetError("the sender hung up")
        if self._buffer[:count] != self._pattern[connection.at : connection.at + count]:
            self.outcome.corrupt.append(connection.task)
        connection.left -= count
        connection.at = (connection.at + count) % PATTERN_BYTES
        self.delivered_bytes += count
        if connection.left == 0:
            self._received(connection)

    def _announced(self, connection: _Receiving) -> tuple[int, int]:
        """What a header says: (task number, bytes). ConnectionError if no such transfer goes over this connection."""
        number, size = HEADER.unpack(connection.header)
        task = self.job.tasks[number] if number < len(self.job.tasks) else None
        told = (task.src, task.dst, task.stripe, task.bytes) if isinstance(task, Transfer) else None
        if told != (*connection.channel, size):
            raise ConnectionError(f"the sender announced task {number} with {size} bytes, which isn't to come here")
        return number, size

    def _received(self, connection: _Receiving) -> None:
        number, connection.task = connection.task, -1
        task = self.job.tasks[number]
        assert isinstance(task, Transfer)
        self.outcome.ended_ns[number] = time.monotonic_ns()
        if number not in self.outcome.corrupt:
            self.outcome.delivered[number] = task.bytes
        self._to_come -= 1
        if task.phase in self._awaited:
            self._awaited[task.phase] -= 1
            if self._awaited[task.phase] == 0:
                self._report(PhaseOver(task.phase, self._parts[task.phase], self.outcome.ended_ns[number]))
        self._free(self._on_receipt.get(number, ()))
