"""The process of a connectivity check on each machine: probes pairs of GPUs with numbered datagrams, in one loop.

One socket for each GPU sends and receives everything.
"""

import math
import select
import socket
import struct
import time
from collections.abc import Container, Sequence
from contextlib import closing, suppress
from typing import Final

from pydantic import InstanceOf

from railyard.core.host import raise_open_file_limit
from railyard.core.worker import Message, Parent, Ready
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.measure.counters import PortReader

PAIRS_PER_S: Final = 8000.0
PORT: Final = 7800
PROBE: Final = struct.Struct("!IHH")  # number of the check; sender and receiver by their position among the GPUs
BATCH_S: Final = 0.001


class Open(Message):
    """Open a socket in each GPU that is `here` (by name; None: all): Ready."""

    gpus: InstanceOf[tuple]  # type: ignore[type-arg]
    here: frozenset[str] | None = None


class Probe(Message):
    """Send the probes of these pairs that begin here, in `send_s`, and wait for those that end here: Answered.

    Pairs are positions among the GPUs. `number`: of the check. It waits until all of `awaited` have answered, and
    `timeout_s` after sending at most; nothing is sent or counted later than `within_s` from now.
    """

    number: int
    pairs: InstanceOf[list]  # type: ignore[type-arg]
    awaited: InstanceOf[frozenset]  # type: ignore[type-arg]
    send_s: float
    timeout_s: float
    within_s: float


class Answered(Message):
    """The pairs that end here and have answered.

    `in_time`: all probes were sent, and there was time to wait.
    """

    pairs: InstanceOf[frozenset]  # type: ignore[type-arg]
    in_time: bool


class ReadPorts(Message):
    """Read the counters of the interfaces of nodes here: Ports."""

    nodes: tuple[str, ...]


class Ports(Message):
    """Counters by node and interface."""

    ports: InstanceOf[dict]  # type: ignore[type-arg]


class _Prober:
    """All sockets of this machine, open."""

    def __init__(self, gpus: Sequence[Gpu], here: Container[str] | None) -> None:
        self._gpus = gpus
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._by_fd: dict[int, socket.socket] = {}
        for number, gpu in enumerate(gpus):
            if here is None or gpu.name in here:
                sock = _open(gpu)
                self._sockets[number] = sock
                self._by_fd[sock.fileno()] = sock
                self._epoll.register(sock, select.EPOLLIN)
        self._number = 0
        self._end_s = 0.0
        self._answered: set[tuple[int, int]] = set()

    def probe(self, probe: Probe) -> Answered:
        """Send once, and wait."""
        if probe.number != self._number:
            self._number = probe.number
            self._answered = set()
        self._end_s = time.monotonic() + probe.within_s
        awaited = {(a, b) for a, b in probe.awaited if b in self._sockets}
        pairs_from_here = [(a, b) for a, b in probe.pairs if a in self._sockets]
        all_sent = self._send(pairs_from_here, probe.send_s)
        deadline = time.monotonic() + probe.timeout_s
        while all_sent and not self._answered.issuperset(awaited):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                break
            self._serve(min(remaining_s, BATCH_S * 5))
        if not probe.pairs:
            # the last time, for unexpected answers
            self._serve(probe.timeout_s)
        return Answered(pairs=frozenset(self._answered), in_time=all_sent and time.monotonic() <= self._end_s)

    def _send(self, pairs: Sequence[tuple[int, int]], send_s: float) -> bool:
        """Send a few each millisecond, and receive meanwhile; return whether all were sent before the end."""
        batch = 1
        if send_s:
            batch = max(1, math.ceil(len(pairs) * BATCH_S / send_s))
        next_s = time.monotonic()
        for first in range(0, len(pairs), batch):
            if time.monotonic() > self._end_s:
                return False
            for a, b in pairs[first : first + batch]:
                # no route: it stays without an answer
                with suppress(OSError):
                    self._sockets[a].sendto(PROBE.pack(self._number, a, b), (self._gpus[b].ip, PORT))
            next_s += BATCH_S
            self._serve(max(0.0, next_s - time.monotonic()))
        return True

    def _serve(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while True:
            for fd, _ in self._epoll.poll(0):
                self._receive(self._by_fd[fd])
            remaining_s = end_s - time.monotonic()
            if remaining_s <= 0:
                return
            select.select([self._epoll], [], [], remaining_s)

    def _receive(self, sock: socket.socket) -> None:
        with suppress(OSError):
            while True:
                number, a, b = PROBE.unpack(sock.recv(PROBE.size))
                if number == self._number and time.monotonic() <= self._end_s:
                    self._answered.add((a, b))


def _open(gpu: Gpu) -> socket.socket:
    sock = namespaces.open_socket(gpu.name)
    sock.bind((gpu.ip, PORT))
    sock.setblocking(False)
    return sock


def main() -> None:
    """Serve until the parent ends."""
    parent = Parent(Open, Probe, ReadPorts)
    raise_open_file_limit()
    opened = parent.receive()
    prober = _Prober(opened.gpus, opened.here)
    parent.send(Ready())
    for command in parent:
        match command:
            case Probe():
                parent.send(prober.probe(command))
            case ReadPorts(nodes=nodes):
                with closing(PortReader(nodes)) as reader:
                    parent.send(Ports(ports=reader.read()))


if __name__ == "__main__":
    from railyard.failure.connectivity import worker  # messages are pickled by the names of this module

    worker.main()
