"""Traffic during faults: paced TCP streams and 1 kHz UDP probes, sent by a process of its own on each machine of the
fabric, and the handle on them.

The process has one loop of a millisecond a turn, on average.
"""

import gc
import random
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydantic import InstanceOf

from railyard.core.errors import CheckFailed
from railyard.core.host import raise_open_file_limit
from railyard.core.records import ProbeLog
from railyard.core.worker import ANSWER_S, Failed, Message, Parent, Ready
from railyard.failure.probes.ports import FIRST_PORT
from railyard.failure.probes.sites import Site, SiteWorkers
from railyard.topologies.addresses import Gpu, Pair
from railyard.topologies.build import namespaces

TICK_NS: Final = 1_000_000
JITTER: Final = 0.4  # of a turn, at most
CATCH_UP: Final = 50  # turns
# a stream sends once in so many turns: small frames at a high rate cost the switches a core
STREAM_TICKS: Final = 20
WINDOW: Final = 64_000
CONNECT_S: Final = 10.0
# all streams are connected one after the other
OPEN_S: Final = 120.0
PROBE: Final = struct.Struct("!I")
# <asm-generic/socket.h>; the socket module doesn't name it
SO_TIMESTAMPNS: Final = 35
TIMESPEC: Final = struct.Struct("@ll")
STAMP_SPACE: Final = socket.CMSG_SPACE(TIMESPEC.size)
PAUSE_NS: Final = 50_000
CHUNK: Final = bytes(65536)


class TrafficJob(Message):
    """Listen for streams of `stream_bytes_per_s` each, and for pairs that get a probe a millisecond: Ready, or Failed.

    `here`: the names of the GPUs whose ends of streams and probes are this process's; None: all.
    """

    streams: tuple[Pair, ...]
    probes: tuple[Pair, ...]
    stream_bytes_per_s: float
    port: int = FIRST_PORT
    here: frozenset[str] | None = None

    def has(self, gpu: Gpu) -> bool:
        """Return whether this process has the ends at a GPU."""
        return self.here is None or gpu.name in self.here


@dataclass
class TrafficLog:
    """Log of the traffic. By stream number: bytes sent, receipts as (ns, bytes), and why a stream broke."""

    sent: dict[int, int] = field(default_factory=dict)
    receipts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    probes: list[ProbeLog] = field(default_factory=list)

    @property
    def lost_bytes(self) -> int:
        """Bytes sent and never received. CheckFailed if a stream received more than was sent."""
        lost = 0
        for stream, sent in self.sent.items():
            received = sum(size for _, size in self.receipts.get(stream, ()))
            # the surplus would hide what another stream has lost
            if received > sent:
                raise CheckFailed(f"stream {stream}: {received:,} bytes arrived of {sent:,} sent, which TCP can't do")
            lost += sent - received
        return lost


class ProbeEnds(NamedTuple):
    """Times at which a process sent and received probes, ns, by the number of the pair.

    `sent`: in the order of sending.
    `arrived`: by the number of the probe.
    """

    sent: dict[int, list[int]]
    arrived: dict[int, dict[int, int]]


class Connect(Message):
    """Connect the streams to their receivers, which listen: Ready, or Failed."""


class Accept(Message):
    """Accept the streams, which are connected: Ready, or Failed."""


class Start(Message):
    """Start sending. There is no answer."""


class Peek(Message):
    """Send the log so far, and go on: Finished."""


class Stop(Message):
    """Stop sending, and wait `drain_s` for what is on its way: Finished."""

    drain_s: float


class Finished(Message):
    """The log of the ends that the process has; its probes are in `probes`."""

    log: InstanceOf[TrafficLog]
    probes: InstanceOf[ProbeEnds]


REPLIES: Final = (Ready, Finished)


class Traffic(SiteWorkers):
    """A traffic process on each machine, connected when made; `start` starts the clock, `stop` ends the sending and
    returns the log, with times of this machine.
    """

    def __init__(self, job: TrafficJob, sites: Sequence[Site] = (Site(),)) -> None:
        self._probes = len(job.probes)
        opening = (
            lambda site: job.model_copy(update={"here": site.nodes}),
            lambda _: Connect(),
            lambda _: Accept(),
        )
        super().__init__(sites, __name__, "the traffic process", (Finished,), opening, OPEN_S)

    def start(self) -> None:
        """Start sending."""
        for worker in self._workers:
            worker.send(Start())

    def peek(self) -> TrafficLog:
        """Return the log so far."""
        return self._log(Peek(), ANSWER_S)

    def stop(self, drain_s: float) -> TrafficLog:
        """Stop sending, wait at most `drain_s` for bytes in flight, and end the processes."""
        with self:
            return self._log(Stop(drain_s=drain_s), drain_s + ANSWER_S)

    def _log(self, message: Message, within_s: float) -> TrafficLog:
        """Send a message to all processes, and return their logs as one, with times of this machine."""
        for worker in self._workers:
            worker.send(message)
        log = TrafficLog()
        sent: dict[int, list[int]] = {}
        arrived: dict[int, dict[int, int]] = {}
        for site, worker in zip(self._sites, self._workers, strict=True):
            finished = worker.receive(Finished, within_s)
            offset_ns = site.offset_ns
            log.sent |= finished.log.sent
            log.broken = finished.log.broken | log.broken
            for stream, receipts in finished.log.receipts.items():
                log.receipts[stream] = [(at_ns - offset_ns, size) for at_ns, size in receipts]
            for pair, sent_ns in finished.probes.sent.items():
                sent[pair] = [at_ns - offset_ns for at_ns in sent_ns]
            for pair, arrived_ns in finished.probes.arrived.items():
                arrived[pair] = {number: at_ns - offset_ns for number, at_ns in arrived_ns.items()}
        # a pair's two ends may be on different machines, so its log is complete only now
        for pair in range(self._probes):
            numbers = range(len(sent[pair]))
            arrivals = tuple(arrived[pair].get(number, -1) for number in numbers)
            log.probes.append(ProbeLog(tuple(sent[pair]), arrivals))
        return log


class _Streams:
    """All TCP streams. Sockets are identified by the stream's number."""

    def __init__(self, job: TrafficJob, epoll: select.epoll, log: TrafficLog) -> None:
        self.log = log
        self._epoll = epoll
        self._bytes_per_ns = job.stream_bytes_per_s / 1e9
        # until when each stream has been given what it may send
        self._credited_ns: dict[int, int] = {}
        self._out: dict[int, socket.socket] = {}
        self.readers: dict[int, int] = {}
        self._in: dict[int, socket.socket] = {}
        self._credit = dict.fromkeys(range(len(job.streams)), 0.0)
        self._job = job
        self._listeners: dict[int, socket.socket] = {}
        for number, (src, dst) in enumerate(job.streams):
            if job.has(src):
                log.sent[number] = 0
            if job.has(dst):
                log.receipts[number] = []
                self._listeners[number] = listener = self._open(dst)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((dst.ip, job.port + number))
                listener.listen(1)

    def _open(self, gpu: Gpu) -> socket.socket:
        sock = namespaces.open_socket(gpu.name, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WINDOW)
        sock.settimeout(CONNECT_S)
        return sock

    def connect(self) -> None:
        """Connect the streams that begin here."""
        for number, (src, dst) in enumerate(self._job.streams):
            if self._job.has(src):
                self._out[number] = client = self._open(src)
                client.connect((dst.ip, self._job.port + number))
                client.setblocking(False)

    def accept(self) -> None:
        """Accept the streams that end here."""
        for number, listener in self._listeners.items():
            self._in[number] = accepted = listener.accept()[0]
            listener.close()
            accepted.setblocking(False)
            self.readers[accepted.fileno()] = number
            self._epoll.register(accepted, select.EPOLLIN)

    def send(self, tick: int, now_ns: int) -> None:
        """Send from each stream that is due what has accumulated since its last turn: the later it is, the more."""
        for number in range(tick % STREAM_TICKS, len(self._credit), STREAM_TICKS):
            sock = self._out.get(number)
            if sock is None:
                continue
            credited_ns = self._credited_ns.get(number, now_ns)
            self._credited_ns[number] = now_ns
            self._credit[number] = min(self._credit[number] + (now_ns - credited_ns) * self._bytes_per_ns, len(CHUNK))
            try:
                sent = sock.send(memoryview(CHUNK)[: int(self._credit[number])])
            except BlockingIOError:
                continue
            except OSError as error:
                self._mark_broken(number, str(error))
                continue
            self._credit[number] -= sent
            self.log.sent[number] += sent

    def receive(self, fd: int) -> None:
        number = self.readers[fd]
        try:
            data = self._in[number].recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._mark_broken(number, str(error))
            return
        if data:
            self.log.receipts[number].append((time.monotonic_ns(), len(data)))
        else:
            self._stop_reading(fd)

    def finish(self) -> None:
        """End the sending."""
        for number, sock in list(self._out.items()):
            try:
                sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._mark_broken(number, str(error))

    def _mark_broken(self, number: int, reason: str) -> None:
        self.log.broken.setdefault(number, reason)
        if number in self._in:
            self._stop_reading(self._in[number].fileno())
        self._out.pop(number, None)

    def _stop_reading(self, fd: int) -> None:
        if self.readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)


class _Probes:
    """All probed pairs: numbered datagrams, with the time of sending and of arrival of each."""

    def __init__(self, job: TrafficJob, epoll: select.epoll) -> None:
        # by the number of the pair, with the times of sending
        self._senders: dict[int, tuple[socket.socket, tuple[str, int], list[int]]] = {}
        # by file descriptor, with the number of the pair, and the times of arrival by number
        self._receivers: dict[int, tuple[socket.socket, int, dict[int, int]]] = {}
        for pair, (src, dst) in enumerate(job.probes):
            port = job.port + len(job.streams) + pair
            if job.has(dst):
                receiver = namespaces.open_socket(dst.name)
                receiver.bind((dst.ip, port))
                # The kernel notes when a probe arrives: on a busy machine it is read much later, and if that is after a
                # repair, would seem to have come only because of it.
                receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                receiver.setblocking(False)
                self._receivers[receiver.fileno()] = receiver, pair, {}
                epoll.register(receiver, select.EPOLLIN)
            if job.has(src):
                # Not connected: a connected socket keeps the route that it once looked up. If it does so in the very
                # moment in which routes change, it may keep the wrong one for good. TCP asks anew after a timeout.
                sender = namespaces.open_socket(src.name)
                sender.setblocking(False)
                self._senders[pair] = sender, (dst.ip, port), []

    def send(self) -> None:
        for sock, address, sent in self._senders.values():
            sent.append(time.monotonic_ns())
            # no route, or an ICMP error of an earlier one: it is lost, as its log will show
            with suppress(OSError):
                sock.sendto(PROBE.pack(len(sent) - 1), address)

    def receive(self, fd: int) -> None:
        sock, _, arrived = self._receivers[fd]
        offset_ns = _clock_offset_ns()
        with suppress(OSError):
            while True:
                data, ((_, _, stamp), *_), _, _ = sock.recvmsg(PROBE.size, STAMP_SPACE)
                (number,) = PROBE.unpack(data)
                seconds, ns = TIMESPEC.unpack(stamp)
                arrived[number] = seconds * 1_000_000_000 + ns - offset_ns

    @property
    def ends(self) -> ProbeEnds:
        sent = {pair: times for pair, (_, _, times) in self._senders.items()}
        arrived = {pair: times for _, pair, times in self._receivers.values()}
        return ProbeEnds(sent, arrived)


def _clock_offset_ns() -> int:
    """Return what the kernel's time stamps are ahead of the monotonic clock, read without a pause between the two."""
    while True:
        before = time.monotonic_ns()
        stamped = time.time_ns()
        after = time.monotonic_ns()
        if after - before < PAUSE_NS:
            return stamped - before


class _Loop:
    """Turns of a millisecond until a command comes."""

    def __init__(self, job: TrafficJob, parent: Parent) -> None:
        self.log = TrafficLog()
        self._parent = parent
        self._epoll = select.epoll()
        self.streams = _Streams(job, self._epoll, self.log)
        self.probes = _Probes(job, self._epoll)

    def run(self) -> float:
        """Send until a command comes on its connection; return its drain time."""
        self._epoll.register(self._parent, select.EPOLLIN)
        tick = 0
        next_ns = time.monotonic_ns()
        while True:
            now = time.monotonic_ns()
            # Turns that the loop is late for come all at once, but not too many: a socket queues some 270 probes, and
            # those beyond would pass for lost in the fabric.
            next_ns = max(next_ns, now - CATCH_UP * TICK_NS)
            while next_ns <= now:
                self.probes.send()
                self.streams.send(tick, now)
                tick += 1
                # a little early or late at random, so as not to fall in step with the kernel's tick
                next_ns += int(TICK_NS * random.uniform(1 - JITTER, 1 + JITTER))
            if self._serve((next_ns - time.monotonic_ns()) / 1e9):
                command = self._parent.receive()
                if isinstance(command, Stop):
                    self._epoll.unregister(self._parent)
                    return float(command.drain_s)
                self.report()

    def drain(self, seconds: float) -> None:
        """Receive what is still on its way."""
        self.streams.finish()
        deadline = time.monotonic() + seconds
        while self.streams.readers and time.monotonic() < deadline:
            self._serve(0.05)
        for number in self.streams.readers.values():
            self.log.broken.setdefault(number, f"its bytes did not arrive within {seconds:.0f} s")

    def report(self) -> None:
        """Send the log so far."""
        self._parent.send(Finished(log=self.log, probes=self.probes.ends))

    def _serve(self, pause_s: float) -> bool:
        """Serve sockets for so long; return whether there is a command."""
        has_input = False
        # epoll rounds up to a millisecond: a turn would always be late
        for fd, _ in self._epoll.poll(pause_s if pause_s > 0.001 else 0):
            if fd == self._parent.fileno():
                has_input = True
            elif fd in self.streams.readers:
                self.streams.receive(fd)
            else:
                self.probes.receive(fd)
        if 0 < pause_s <= 0.001 and not has_input:
            select.select([self._epoll], [], [], pause_s)
        return has_input


def main() -> None:
    """Serve jobs, one after the other."""
    parent = Parent(TrafficJob, Connect, Accept, Start, Peek, Stop)
    raise_open_file_limit()
    for job in parent:
        _serve(job, parent)


def _serve(job: TrafficJob, parent: Parent) -> None:
    try:
        loop = _Loop(job, parent)
        for step in (loop.streams.connect, loop.streams.accept):
            parent.send(Ready())
            parent.receive()
            step()
    except OSError as error:
        parent.send(Failed(why=f"streams can't be connected: {error}"))
        return
    parent.send(Ready())
    parent.receive()
    gc.disable()
    loop.drain(loop.run())
    loop.report()


if __name__ == "__main__":
    from railyard.failure.probes import traffic  # messages are pickled by the names of this module, not of __main__

    traffic.main()
