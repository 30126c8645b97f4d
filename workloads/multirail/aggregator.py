"""The switch of a `sharp` rail: adds up the nodes' streams on their way and sends the sum back to all of them.

Source: Nezha section 2.2.2 (SHARP: aggregation in the switch, each node sends its data once). Here it is a process of
its own on the rail. Pieces are added in the order in which they come, so sums of floats may differ from run to run in
the last bit, never from node to node. When one node's connection goes, all are closed: the rail is dead for everybody,
and the next to call start anew.
"""

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from workloads.multirail.buffers import DTYPES, Array
from workloads.multirail.frames import DATA, Broken, Framed, Header
from workloads.multirail.joiner import Address, Hello, SocketMaker, heard_hello, listening, plain_socket, tuned, welcome

_Key = tuple[int, int, int]


@dataclass
class _Sum:
    """A piece: what is added up so far, of how many nodes."""

    header: Header
    array: Array
    count: int = 0


class Aggregator:
    """`step` serves whoever is there; `run` does so until told to stop."""

    def __init__(
        self, rail: int, nodes: int, address: Address, group: int = 0, make: SocketMaker = plain_socket
    ) -> None:
        self.rail, self.nodes, self.group = rail, nodes, group
        self._poll = select.epoll()
        self._listener = listening(make, rail, address)
        self._poll.register(self._listener, select.EPOLLIN)
        self._nameless: list[socket.socket] = []
        self._links: dict[int, Framed] = {}
        self._ranks: dict[int, int] = {}  # by file number
        self._incarnation = 0
        self._complete = False  # all nodes are here, and were told so
        self._sums: dict[_Key, _Sum] = {}

    def run(self, stop: Callable[[], bool]) -> None:
        while not stop():
            self.step(0.05)
        self.close()

    def step(self, pause: float) -> None:
        """Serve what comes within `pause` seconds."""
        for fd, what in self._poll.poll(0.001 if self._nameless else pause):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._ranks:
                link = self._links[self._ranks[fd]]
                try:
                    if what & select.EPOLLOUT:
                        link.flush()
                        self._arm(link)
                    if what & ~select.EPOLLOUT:
                        link.read()
                except Broken:
                    self._lost(self._ranks.get(fd))
        self._greet()

    def close(self) -> None:
        self._drop_all()
        for sock in self._nameless:
            sock.close()
        self._listener.close()
        self._poll.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._nameless.append(tuned(self._listener.accept()[0]))

    def _greet(self) -> None:
        for sock in list(self._nameless):
            try:
                said = heard_hello(sock)
                if said is None:
                    continue
                self._nameless.remove(sock)
                if self._known(said):
                    self._add(said.rank, sock)
                else:
                    sock.close()
            except OSError:
                if sock in self._nameless:
                    self._nameless.remove(sock)
                sock.close()

    def _known(self, said: Hello) -> bool:
        """A node of ours, of this life of the rail or a later one, which ends this one."""
        if (said.group, said.rail, said.purpose) != (self.group, self.rail, "data") or said.rank >= self.nodes:
            return False
        if said.incarnation < self._incarnation:
            return False
        if said.incarnation > self._incarnation:
            self._drop_all()
            self._incarnation = said.incarnation
        return True

    def _add(self, rank: int, sock: socket.socket) -> None:
        if rank in self._links:
            self._lost(rank)  # it called again: its first call got no answer there

        def place(header: Header) -> memoryview:
            return memoryview(bytearray(header.length))

        def took(header: Header, view: memoryview) -> None:
            self._took(header, view)

        self._links[rank] = Framed(sock, place, took)
        self._ranks[sock.fileno()] = rank
        self._poll.register(sock, select.EPOLLIN)
        if len(self._links) == self.nodes:
            self._complete = True
            for link in self._links.values():  # not before: what is passed on to all must find all
                welcome(link.sock)

    def _took(self, header: Header, view: memoryview) -> None:
        """A node's piece. One that doesn't fit its sum is left out, so that sum never goes back: rank 0 sees why."""
        array = np.frombuffer(view, DTYPES[header.dtype])
        if header.parts == 1:
            self._send(header, array)
            return
        key = (header.op, header.task, header.seq)
        so_far = self._sums.get(key)
        if so_far is None:
            so_far = self._sums[key] = _Sum(header, array)
        elif header == so_far.header:
            np.add(so_far.array, array, out=so_far.array)
        else:
            return
        so_far.count += 1
        if so_far.count == self.nodes:
            del self._sums[key]
            self._send(header, so_far.array)

    def _send(self, header: Header, array: Array) -> None:
        data = array.view(np.uint8).data
        for link in self._links.values():
            link.put(Header(DATA, *_rest(header)), data)
            link.flush()
            self._arm(link)

    def _arm(self, link: Framed) -> None:
        self._poll.modify(link.sock, select.EPOLLIN | (0 if link.idle else select.EPOLLOUT))

    def _forget(self, rank: int) -> None:
        link = self._links.pop(rank)
        del self._ranks[link.sock.fileno()]
        self._poll.unregister(link.sock)
        link.sock.close()

    def _lost(self, rank: int | None) -> None:
        """A node is gone: with all there the rail is dead, before that it may call again."""
        if self._complete or rank is None:
            self._drop_all()
        else:
            self._forget(rank)

    def _drop_all(self) -> None:
        for rank in list(self._links):
            self._forget(rank)
        self._sums.clear()
        self._complete = False


def _rest(header: Header) -> tuple[int, int, int, int, int, int, int]:
    return header.dtype, header.parts, header.op, header.task, header.seq, header.digest, header.length
