"""The process of a connectivity check: probes every ordered pair of GPUs with numbered datagrams, in one loop.

One socket for each GPU sends and receives everything. In the k-th round each GPU probes the k-th after it, so that no
GPU receives many probes at once.
"""

import select
import socket
import struct
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from pydantic import InstanceOf

from railyard.core.host import raise_open_file_limit
from railyard.core.worker import Message, Parent, Ready
from railyard.topologies.addresses import Gpu, Pair
from railyard.topologies.build import namespaces

PAIRS_PER_S: Final = 8000.0
TRIES: Final = 5  # a gray link of 5% loses as many of one pair once in three million times
MIN_TRIES: Final = 2
FINAL_WAIT_S: Final = 0.02  # for unexpected answers
PORT: Final = 7800
PROBE: Final = struct.Struct("!IHH")  # number of the check; sender and receiver by their position among the GPUs
BATCH_S: Final = 0.001


class Open(Message):
    """Open a socket in each GPU: Ready."""

    gpus: InstanceOf[tuple]  # type: ignore[type-arg]


class Probe(Message):
    """Probe all pairs until `end_s` (s, monotonic) at the latest: Answered.

    Pairs in `expected` that don't answer within `timeout_s` are probed again.
    """

    expected: InstanceOf[frozenset]  # type: ignore[type-arg]
    timeout_s: float
    end_s: float


class Answered(Message):
    """The answer of each pair; None if there was too little time."""

    pairs: InstanceOf[dict] | None  # type: ignore[type-arg]


class _Prober:
    """All sockets, open."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._epoll = select.epoll()
        self._sockets = [_open(gpu) for gpu in gpus]
        self._by_fd = {sock.fileno(): sock for sock in self._sockets}
        for fd in self._by_fd:
            self._epoll.register(fd, select.EPOLLIN)
        n = len(gpus)
        self._pairs = [(a, (a + step) % n) for step in range(1, n) for a in range(n)]
        self._number, self._end_s = 0, 0.0
        self._answered: set[tuple[int, int]] = set()

    def probe_all(self, expected: Collection[Pair], timeout_s: float, end_s: float) -> dict[Pair, bool] | None:
        """Take one check. Return None if there was no time until `end_s` to probe every pair without an answer
        `MIN_TRIES` times: the machine was too busy, so a missing answer means nothing.
        """
        self._number, self._end_s, self._answered = (self._number + 1) % 2**32, end_s, set()
        index_of = {gpu: index for index, gpu in enumerate(self._gpus)}
        awaited = {(index_of[a], index_of[b]) for a, b in expected}
        pending, tries = self._pairs, 0
        while pending and tries < TRIES and self._send(pending):
            deadline = time.monotonic() + timeout_s
            while not self._answered.issuperset(awaited) and (left := deadline - time.monotonic()) > 0:
                self._serve(min(left, BATCH_S * 5))
            tries += time.monotonic() <= end_s
            pending = [pair for pair in self._pairs if pair in awaited and pair not in self._answered]
        self._serve(max(0.0, min(FINAL_WAIT_S, end_s - time.monotonic())))
        if tries < (MIN_TRIES if pending else 1):
            return None
        return {(self._gpus[a], self._gpus[b]): (a, b) in self._answered for a, b in self._pairs}

    def _send(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Send a few each millisecond, and receive meanwhile; return whether all were sent before the end."""
        batch = round(PAIRS_PER_S * BATCH_S)
        next_s = time.monotonic()
        for first in range(0, len(pairs), batch):
            if time.monotonic() > self._end_s:
                return False
            for a, b in pairs[first : first + batch]:
                with suppress(OSError):  # no route: it stays without an answer
                    self._sockets[a].sendto(PROBE.pack(self._number, a, b), (self._gpus[b].ip, PORT))
            next_s += BATCH_S
            self._serve(max(0.0, next_s - time.monotonic()))
        return True

    def _serve(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while True:
            for fd, _ in self._epoll.poll(0):
                self._receive(self._by_fd[fd])
            left = end_s - time.monotonic()
            if left <= 0:
                return
            select.select([self._epoll], [], [], left)

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
    parent = Parent(Open, Probe)
    raise_open_file_limit()
    prober = _Prober(parent.receive().gpus)
    parent.send(Ready())
    for probe in parent:
        parent.send(Answered(pairs=prober.probe_all(probe.expected, probe.timeout_s, probe.end_s)))


if __name__ == "__main__":
    from railyard.failure.connectivity import worker  # messages are pickled by the names of this module

    worker.main()
