"""The process that probes a replacement: numbered datagrams, two milliseconds apart, and their echoes.

Its messages are those of replacement.py: StartProbing, HaveAnswered as often as needed, StopProbing.
"""

import gc
import os
import select
import socket
import struct
import time
from contextlib import suppress
from typing import Final

from railyard.core.worker import Parent, Ready
from railyard.failure.analysis.recovery_times import ProbeLog
from railyard.failure.probes.replacement import Answered, HaveAnswered, Logs, ProbePair, StartProbing, StopProbing
from railyard.topologies.build import namespaces

PORT: Final = 7900
PERIOD_NS: Final = 2_000_000  # each probe costs four passes through an optical switch, which is waited for
NUMBER: Final = struct.Struct("!I")
IP_FREEBIND: Final = 15  # <linux/in.h>; the socket module doesn't name it


class _Pair:
    """One pair's two sockets and its log."""

    def __init__(self, probe_pair: ProbePair, port: int) -> None:
        self.responder = _socket_in(probe_pair.responder)
        self.responder.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)  # the address may come later
        self.responder.bind((probe_pair.address, port))
        self.requester = _socket_in(probe_pair.requester)
        self._address = (probe_pair.address, port)  # not connected: see _Probes in failure/probes/traffic_worker.py
        self.sent: list[int] = []
        self.echoed_ns: dict[int, int] = {}
        self._newest = -1  # of the answered

    def send_probe(self) -> None:
        self.sent.append(time.monotonic_ns())
        with suppress(OSError):  # no way there, or an ICMP error of an earlier one: the log will show it
            self.requester.sendto(NUMBER.pack(len(self.sent) - 1), self._address)

    def echo(self) -> None:
        with suppress(OSError):
            while True:
                datagram, sender = self.responder.recvfrom(NUMBER.size)
                self.responder.sendto(datagram, sender)

    def receive_echoes(self) -> None:
        with suppress(OSError):
            while True:
                (number,) = NUMBER.unpack(self.requester.recv(NUMBER.size))
                self.echoed_ns[number] = time.monotonic_ns()
                self._newest = max(self._newest, number)

    def has_echo_since(self, since_ns: int) -> bool:
        return self._newest >= 0 and self.sent[self._newest] >= since_ns

    def log(self) -> ProbeLog:
        return ProbeLog(tuple(self.sent), tuple(self.echoed_ns.get(n, -1) for n in range(len(self.sent))))


def _socket_in(node: str) -> socket.socket:
    with namespaces.inside(node):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock


def main() -> None:
    """Probe until the parent says stop."""
    with suppress(PermissionError):  # an ordinary user may not
        os.nice(-15)  # what it measures is when packets come, not when it gets a processor
    parent = Parent(StartProbing, HaveAnswered, StopProbing)
    pairs = [_Pair(probe_pair, PORT + n) for n, probe_pair in enumerate(parent.receive().pairs)]
    handlers = {pair.responder.fileno(): pair.echo for pair in pairs} | {
        pair.requester.fileno(): pair.receive_echoes for pair in pairs
    }
    epoll = select.epoll()
    for fd in (*handlers, parent.fileno()):
        epoll.register(fd, select.EPOLLIN)
    parent.send(Ready())
    gc.disable()
    next_ns, running = time.monotonic_ns(), True
    while running:
        if time.monotonic_ns() >= next_ns:
            next_ns += PERIOD_NS
            for pair in pairs:
                pair.send_probe()
        for fd, _ in epoll.poll(0.001):
            if fd in handlers:
                handlers[fd]()
            elif isinstance(command := parent.receive(), HaveAnswered):
                parent.send(Answered(by_all=all(pair.has_echo_since(command.since_ns) for pair in pairs)))
            else:
                running = False
    parent.send(Logs(logs=[pair.log() for pair in pairs]))


if __name__ == "__main__":
    main()
