"""Probes between peers and a replacement GPU, by a process of its own: when has the replacement taken over?

The replacement may get its address, or its optical link, only in the course of it. So it listens for the address before
it has it, and answers from there: an answer has gone both ways, to the GPU that bears the failed one's name from then
on.
"""

import gc
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pydantic import InstanceOf

from railyard.core.records import ProbeLog
from railyard.core.worker import Message, Parent, Ready, Worker
from railyard.failure.probes.ports import REPLACEMENT_PORT
from railyard.topologies.build import namespaces

# each probe costs four passes through an optical switch, for which the replacement waits
PERIOD_NS: Final = 2_000_000
NUMBER: Final = struct.Struct("!I")
# <linux/in.h>; the socket module doesn't name it
IP_FREEBIND: Final = 15


@dataclass(frozen=True, slots=True)
class ProbePair:
    """A probed pair: the namespaces of the two ends, and the address that is probed."""

    requester: str
    responder: str
    address: str


class StartProbing(Message):
    """Probe each pair every two milliseconds from now on: Ready."""

    pairs: tuple[InstanceOf[ProbePair], ...]


class HaveAnswered(Message):
    """Question whether each pair has an answer to a probe sent since `since_ns`: Answered."""

    since_ns: int


class Answered(Message):
    """The reply to HaveAnswered."""

    by_all: bool


class StopProbing(Message):
    """Stop, without waiting for more answers: Logs."""


class Logs(Message):
    """A log for each pair."""

    logs: list[InstanceOf[ProbeLog]]


class Prober(Worker):
    """A process that probes each pair every two milliseconds from its start; `stop` returns a log for each pair."""

    def __init__(self, pairs: Iterable[ProbePair]) -> None:
        super().__init__(__name__, "the prober", Ready, Answered, Logs)
        self.open(StartProbing(pairs=tuple(pairs)))

    def reaches_all(self, since_ns: int) -> bool:
        """Return whether each pair has had an answer to a probe sent since then. RailyardError if the prober died."""
        return self.ask(HaveAnswered(since_ns=since_ns), Answered).by_all

    def stop(self) -> list[ProbeLog]:
        """Stop probing, without waiting for more answers, and end the process."""
        with self:
            return self.ask(StopProbing(), Logs).logs


def taken_over_ns(logs: Iterable[ProbeLog], decided_ns: int) -> int | None:
    """Return when the last pair had its first answer to a probe since the decision; None if one never had."""
    first_answers: list[int] = []
    for log in logs:
        answers: list[int] = []
        for sent_ns, arrived_ns in zip(log.sent_ns, log.arrived_ns, strict=True):
            # an answer to an earlier probe may have come from the GPU that failed; -1: no answer
            if min(sent_ns, arrived_ns) >= decided_ns:
                answers.append(arrived_ns)
        if not answers:
            return None
        first_answers.append(min(answers))
    return max(first_answers, default=None)


class _Pair:
    """One pair's two sockets and its log."""

    def __init__(self, probe_pair: ProbePair, port: int) -> None:
        self.responder = namespaces.open_socket(probe_pair.responder)
        # the address may come later
        self.responder.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        self.responder.bind((probe_pair.address, port))
        self.requester = namespaces.open_socket(probe_pair.requester)
        for sock in (self.requester, self.responder):
            sock.setblocking(False)
        # not connected: see _Probes in failure/probes/traffic.py
        self._address = (probe_pair.address, port)
        self.sent: list[int] = []
        self.echoed_ns: dict[int, int] = {}
        # when the newest of the answered probes was sent
        self.answered_ns = -1

    def send_probe(self) -> None:
        self.sent.append(time.monotonic_ns())
        # no route, or an ICMP error of an earlier one: the log will show it
        with suppress(OSError):
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
                self.answered_ns = max(self.answered_ns, self.sent[number])

    def log(self) -> ProbeLog:
        arrivals = tuple(self.echoed_ns.get(number, -1) for number in range(len(self.sent)))
        return ProbeLog(tuple(self.sent), arrivals)


def main() -> None:
    """Probe until StopProbing comes."""
    # an ordinary user may not
    with suppress(PermissionError):
        # what it measures is when packets come, not when it gets a processor
        os.nice(-15)
    parent = Parent(StartProbing, HaveAnswered, StopProbing)
    pairs: list[_Pair] = []
    handlers: dict[int, Callable[[], None]] = {}
    for port, probe_pair in enumerate(parent.receive().pairs, REPLACEMENT_PORT):
        pair = _Pair(probe_pair, port)
        pairs.append(pair)
        handlers[pair.responder.fileno()] = pair.echo
        handlers[pair.requester.fileno()] = pair.receive_echoes
    epoll = select.epoll()
    for fd in (*handlers, parent.fileno()):
        epoll.register(fd, select.EPOLLIN)
    parent.send(Ready())
    gc.disable()
    next_ns = time.monotonic_ns()
    running = True
    while running:
        if time.monotonic_ns() >= next_ns:
            next_ns += PERIOD_NS
            for pair in pairs:
                pair.send_probe()
        for fd, _ in epoll.poll(0.001):
            if fd in handlers:
                handlers[fd]()
            elif isinstance(command := parent.receive(), HaveAnswered):
                parent.send(Answered(by_all=all(pair.answered_ns >= command.since_ns for pair in pairs)))
            else:
                running = False
    parent.send(Logs(logs=[pair.log() for pair in pairs]))


if __name__ == "__main__":
    from railyard.failure.probes import replacement  # messages are pickled by the names of this module

    replacement.main()
