"""A replay's worker process: `python -m railyard.workloads.replay.worker`; gets Job, Connect and Go, in this order.

Its connections are made inside the GPUs' namespaces, before the clock starts. A receiver offers a window that fits the
link (job.py), and has far more room: one that drops for want of room looks like a bad link. A transfer is a header
(task number, bytes) and its bytes, cut from a pattern that both ends know; the receiver compares every byte. Transfers
on one connection go one after the other. A transmit timestamp of the kernel (SO_TIMESTAMPING) says when the last byte
of one has left its GPU, where a task waits for that.
"""

import errno
import gc
import heapq
import random
import select
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from railyard.core.host import raise_open_file_limit
from railyard.core.worker import Failed, Parent, Ready
from railyard.topologies.build import namespaces
from railyard.workloads.replay import job as protocol
from railyard.workloads.tasks import Compute, Transfer

HEADER: Final = struct.Struct("!IQ")
CHUNK_BYTES: Final = 256 * 1024
# epoll sleeps in whole milliseconds: the last one before a computation ends is spent awake
SPIN_S: Final = 0.0015
PROGRESS_INTERVAL_S: Final = 0.1

# <linux/net_tstamp.h>, <linux/errqueue.h>, <linux/in.h>: the socket module has no names for them
_SO_TIMESTAMPING: Final = 37
# software timestamps, with the number of the last byte and no data
_REPORT: Final = 1 << 4 | 1 << 7 | 1 << 11
_ON_TRANSMIT: Final = [(socket.SOL_SOCKET, _SO_TIMESTAMPING, struct.pack("=I", 1 << 1))]
_IP_RECVERR: Final = 11
_EXTENDED_ERROR: Final = struct.Struct("=IBBBBII")  # its last field is the number of the byte
_ANCILLARY_BYTES: Final = 512
_BYTE_NUMBERS: Final = 1 << 32  # after which they begin anew

Connections = dict[protocol.Channel, socket.socket]
Report = Callable[[protocol.Delivered | protocol.PhaseEnd], None]


@dataclass
class _Connection:
    """A connection, and the transfer under way on it: number (or -1), part of its header, and bytes to come."""

    channel: protocol.Channel
    sock: socket.socket
    header: bytes = b""
    task: int = -1
    remaining: int = 0
    pattern_offset: int = 0
    queue: deque[int] = field(default_factory=deque)  # transfers that wait to be sent
    wants_write: bool = False  # epoll reports when there is room
    sent: int = 0  # bytes so far
    departing: deque[tuple[int, int]] = field(default_factory=deque)  # (number of the last byte, transfer)


def pattern_of(seed: int) -> bytes:
    """The bytes that fill transfers: a megabyte at random, with as much again as one chunk may run past its end."""
    block = random.Random(seed).randbytes(protocol.PATTERN_BYTES)
    return block + block[:CHUNK_BYTES]


class Engine:
    """Plays the job's GPUs. `sending` and `receiving`: the connected, non-blocking sockets."""

    def __init__(self, job: protocol.Job, sending: Connections, receiving: Connections) -> None:
        self.job = job
        self.outcome = protocol.Outcome()
        self._pattern = memoryview(pattern_of(job.seed))
        self._dependency_counts, self._on_done, self._on_departure, self._on_receipt = protocol.dependents(job)
        self._epoll = select.epoll()
        self._send_connections = {channel: _Connection(channel, sock) for channel, sock in sending.items()}
        self._senders = {conn.sock.fileno(): conn for conn in self._send_connections.values()}
        self._receivers = {sock.fileno(): _Connection(channel, sock) for channel, sock in receiving.items()}
        for fd in self._receivers:
            self._epoll.register(fd, select.EPOLLIN)
        for fd in self._senders:
            self._epoll.register(fd, 0)
        self._timers: list[tuple[float, int]] = []
        ready = [number for number, remaining in self._dependency_counts.items() if remaining == 0]
        self._ready = deque(ready)
        self._buffer = bytearray(CHUNK_BYTES)
        self._pending_tasks = len(self._dependency_counts)
        self._pending_by_phase = protocol.transfers_per_phase(job.tasks, job.watched, job.local_gpus)
        self._total_by_phase = dict(self._pending_by_phase)
        self._report: Report = lambda _: None
        transfers = [task for task in job.tasks if isinstance(task, Transfer)]
        self._pending_receives = sum(transfer.dst in job.local_gpus for transfer in transfers)
        self.delivered_bytes = 0

    def run(self, start_ns: int, report: Report, deadline_ns: int) -> protocol.Outcome:
        """Begin at `start_ns`; return when all is sent and received, a connection broke, or the deadline passed.

        Reported are the bytes delivered so far, now and then, and each watched phase when it is over here.
        """
        self._report = report
        # bytes are numbered from here: all that was sent before is acknowledged
        for number in self._on_departure:
            connection = self._send_connections.get(_channel(self._transfer(number)))
            if connection is None:
                # a pair without a path
                continue
            connection.sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _REPORT)
        while time.monotonic_ns() < start_ns:
            time.sleep(0.0002)
        self._begin_ready()
        next_report_s = 0.0
        while (self._pending_tasks or self._pending_receives) and not self.outcome.broken:
            for fd, events in self._epoll.poll(self._poll_timeout_s()):
                self._on_event(fd, events)
                self._begin_ready()
            now_s = time.monotonic()
            while self._timers and self._timers[0][0] <= now_s:
                self._done(heapq.heappop(self._timers)[1])
            self._begin_ready()
            if now_s >= next_report_s:
                next_report_s = now_s + PROGRESS_INTERVAL_S
                report(protocol.Delivered(size=self.delivered_bytes))
                if time.monotonic_ns() > deadline_ns:
                    self.outcome.broken.append(f"{self._pending_receives} transfers had not arrived at the deadline")
        report(protocol.Delivered(size=self.delivered_bytes))
        return self.outcome

    def _poll_timeout_s(self) -> float:
        """Return how long to wait for events: until `SPIN_S` before the next task is computed, then not at all."""
        if not self._timers:
            return PROGRESS_INTERVAL_S
        remaining_s = self._timers[0][0] - time.monotonic() - SPIN_S
        return max(0.0, min(PROGRESS_INTERVAL_S, remaining_s))

    def _on_event(self, fd: int, events: int) -> None:
        if fd in self._receivers:
            self._run_step(self._receive, self._receivers[fd])
            return
        if events & ~select.EPOLLOUT:
            self._run_step(self._read_departure, self._senders[fd])
        if events & select.EPOLLOUT:
            self._run_step(self._send, self._senders[fd])

    def _run_step(self, step: Callable[[_Connection], None], connection: _Connection) -> None:
        """Take a step on a connection; if that fails, the connection is broken, and with it the replay."""
        try:
            step(connection)
        except BlockingIOError:
            return
        except OSError as error:
            src, dst = (self.job.gpus[number].name for number in connection.channel[:2])
            self.outcome.broken.append(f"{src} -> {dst}: {error}")

    def _read_departure(self, connection: _Connection) -> None:
        """Release what waits for a byte that has left its GPU; if there is none, raise what is wrong instead."""
        try:
            _, ancillary, _, _ = connection.sock.recvmsg(0, _ANCILLARY_BYTES, socket.MSG_ERRQUEUE)
        except BlockingIOError:
            connection.sock.send(b"")
            raise ConnectionResetError("the receiver hung up") from None
        for level, kind, data in ancillary:
            if (level, kind) == (socket.IPPROTO_IP, _IP_RECVERR):
                byte = _EXTENDED_ERROR.unpack_from(data)[-1]
                # retransmitted bytes may leave twice
                while connection.departing and (byte - connection.departing[0][0]) % _BYTE_NUMBERS < _BYTE_NUMBERS // 2:
                    self._release(self._on_departure[connection.departing.popleft()[1]])

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
            if (task.src, task.dst) in self.job.unreachable:
                # it has no connection, and waits until the deadline
                continue
            connection = self._send_connections[_channel(task)]
            connection.queue.append(number)
            if connection.task < 0:
                # else it goes on when there is room
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
                # begun by the loop: a chain of them would be too deep for the stack
                self._ready.append(number)

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
                    connection.sent += sent
                    continue
                length = min(connection.remaining, CHUNK_BYTES)
                start = connection.pattern_offset
                is_reported = length == connection.remaining and connection.task in self._on_departure
                chunk = self._pattern[start : start + length]
                if is_reported:
                    sent = connection.sock.sendmsg([chunk], _ON_TRANSMIT)
                else:
                    sent = connection.sock.send(chunk)
            except BlockingIOError:
                self._set_write_events(connection, True)
                return
            connection.remaining -= sent
            connection.sent += sent
            connection.pattern_offset = (connection.pattern_offset + sent) % protocol.PATTERN_BYTES
            if connection.remaining == 0:
                number = connection.task
                connection.task = -1
                if is_reported:
                    connection.departing.append(((connection.sent - 1) % _BYTE_NUMBERS, number))
                self._done(number)

    def _transfer(self, number: int) -> Transfer:
        task = self.job.tasks[number]
        assert isinstance(task, Transfer)
        return task

    def _start(self, connection: _Connection, number: int, size: int) -> None:
        connection.task = number
        connection.remaining = size
        connection.pattern_offset = number * protocol.PATTERN_STRIDE % protocol.PATTERN_BYTES

    def _set_write_events(self, connection: _Connection, enabled: bool) -> None:
        if connection.wants_write != enabled:
            connection.wants_write = enabled
            events = select.EPOLLOUT if enabled else 0
            self._epoll.modify(connection.sock.fileno(), events)

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
        connection.pattern_offset = (connection.pattern_offset + count) % protocol.PATTERN_BYTES
        self.delivered_bytes += count
        if connection.remaining:
            return
        number = connection.task
        connection.task = -1
        task = self._transfer(number)
        self.outcome.ended_ns[number] = time.monotonic_ns()
        if number not in self.outcome.corrupt:
            self.outcome.delivered[number] = task.bytes
        self._pending_receives -= 1
        if task.phase in self._pending_by_phase:
            self._pending_by_phase[task.phase] -= 1
            if self._pending_by_phase[task.phase] == 0:
                total = self._total_by_phase[task.phase]
                ended_ns = self.outcome.ended_ns[number]
                self._report(protocol.PhaseEnd(phase=task.phase, transfers=total, ended_ns=ended_ns))
        self._release(self._on_receipt.get(number, ()))


def _channel(transfer: Transfer) -> protocol.Channel:
    return protocol.Channel(transfer.src, transfer.dst, transfer.stripe)


# all that an ordinary user gets; the kernel doubles it for its own bookkeeping
SOCKET_BUFFER_BYTES: Final = 212_992
CONNECT_S: Final = 20.0
# 256 GPUs have 7,936 channels in an all-to-all of rails, whose handshakes share slow links
CONNECT_S_A_CHANNEL: Final = 0.01
# less than what the run waits for a worker
MAX_CONNECT_S: Final = 100.0
# struct linger: a closed connection ends with a reset, and no receiver waits for what is yet to be sent
_LINGER_RESET: Final = struct.pack("ii", 1, 0)
UNCONNECTED_S: Final = 1.0
"""Time in which a pair that should have no path must not connect."""
HELLO: Final = struct.Struct("!II")  # the caller's GPU number, and the stripe


def _configured(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # every kernel has cubic; the default is another one on some machines
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    sock.setblocking(False)
    return sock


def listen(job: protocol.Job) -> dict[int, socket.socket]:
    """Open a listening socket at each local GPU that receives anything."""
    listeners = {}
    for dst in sorted({channel.dst for channel in protocol.connections(job.tasks)} & job.local_gpus):
        with namespaces.inside(job.gpus[dst].name):
            sock = _configured(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((job.gpus[dst].ip, protocol.PORT))
        sock.listen(1024)
        listeners[dst] = sock
    return listeners


def connect(job: protocol.Job, listeners: dict[int, socket.socket]) -> tuple[Connections, Connections]:
    """Return (sending, receiving), all established. TimeoutError names a pair of which one did not come about.

    OSError if a pair connects that should have no path.
    """
    channels: list[protocol.Channel] = []
    unreachable: list[protocol.Channel] = []
    for channel in protocol.connections(job.tasks):
        pair = (channel.src, channel.dst)
        group = unreachable if pair in job.unreachable else channels
        group.append(channel)
    within_s = min(MAX_CONNECT_S, CONNECT_S + CONNECT_S_A_CHANNEL * len(channels))
    deadline = time.monotonic() + within_s
    stripes = Counter((channel.src, channel.dst) for channel in channels)

    def wait(sock: socket.socket, event: int, missing: Collection[protocol.Channel]) -> None:
        poller = select.poll()
        poller.register(sock, event)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            src, dst, _ = min(missing)
            raise TimeoutError(f"no connection {job.gpus[src].name} -> {job.gpus[dst].name} in {within_s:.0f} s")

    sending: Connections = {}
    for channel in channels:
        if channel.src in job.local_gpus:
            sending[channel] = _open_connection(job, channel)
    attempts = _attempt_connections(job, unreachable)
    # the kernels of both ends connect all pairs at once, so waiting for one after the other takes no longer
    for channel, sock in sending.items():
        wait(sock, select.POLLOUT, [channel])
        if error_code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error_code, f"{channel} failed")
        sock.send(HELLO.pack(channel.src, channel.stripe))
    # before anything is received: else two workers could wait for each other's first message over such a pair
    _check_unconnected(job, attempts)
    receiving: Connections = {}
    for dst, listener in listeners.items():
        missing = {channel for channel in channels if channel.dst == dst}
        while missing:
            wait(listener, select.POLLIN, missing)
            sock, _ = listener.accept()
            sock.setblocking(False)
            wait(sock, select.POLLIN, missing)
            hello = sock.recv(HELLO.size)
            if not hello and job.unreachable:
                # of a pair that should have no path: its sender reports it
                sock.close()
                continue
            src, stripe = HELLO.unpack(hello)
            window = job.windows.per_connection(job.gpus[src].domain == job.gpus[dst].domain, stripes[src, dst])
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)
            receiving[protocol.Channel(src, dst, stripe)] = sock
            missing.remove(protocol.Channel(src, dst, stripe))
    return sending, receiving


def _attempt_connections(
    job: protocol.Job, channels: Iterable[protocol.Channel]
) -> dict[protocol.Channel, socket.socket]:
    """Begin to connect pairs that should have no path; return the attempts that the kernel doesn't refuse at once."""
    attempts: dict[protocol.Channel, socket.socket] = {}
    for channel in channels:
        if channel.src in job.local_gpus:
            with suppress(OSError):
                attempts[channel] = _open_connection(job, channel)
    return attempts


def _check_unconnected(job: protocol.Job, attempts: Mapping[protocol.Channel, socket.socket]) -> None:
    """Close these attempts. OSError if one connects within UNCONNECTED_S, all together."""
    # most kernels refuse at once where there is no route: then no attempt is here to be waited for
    deadline = time.monotonic() + UNCONNECTED_S
    for channel, sock in attempts.items():
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        # without a reset, so that the receiver reads the end and goes on
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        with sock:
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            if poller.poll(left_ms) and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                src = job.gpus[channel.src].name
                dst = job.gpus[channel.dst].name
                raise OSError(errno.EISCONN, f"{src} -> {dst} connected, though it should have no path")


def _open_connection(job: protocol.Job, channel: protocol.Channel) -> socket.socket:
    src = job.gpus[channel.src]
    dst = job.gpus[channel.dst]
    with namespaces.inside(src.name):
        sock = _configured(socket.socket())
    error_code = sock.connect_ex((dst.ip, protocol.PORT))
    if error_code not in (0, errno.EINPROGRESS):
        raise OSError(error_code, f"{src.name} -> {dst.name} can't connect")
    return sock


def main() -> None:
    """Serve one job."""
    parent = Parent(protocol.Job, protocol.Connect, protocol.Go)
    job = parent.receive()
    raise_open_file_limit()

    try:
        listeners = listen(job)
        parent.send(Ready())
        parent.receive()
        engine = Engine(job, *connect(job, listeners))
        parent.send(Ready())
        go = parent.receive()
        gc.disable()
        outcome = engine.run(go.start_ns, parent.send, go.deadline_ns)
        parent.send(outcome)
        if not outcome.broken:
            # keep the connections until all workers have finished
            parent.receive()
        # else close them, so that the other workers find out at once
    except (OSError, TimeoutError) as error:
        parent.send(Failed(why=str(error)))


if __name__ == "__main__":
    main()
