"""A node's side of every rail's rendezvous: its listeners, who calls them, and the rails that are joining."""

import socket
from contextlib import ExitStack, suppress

from railyard.workloads.allreduce.transport.connections import (
    AGGREGATOR,
    Address,
    Hello,
    Purpose,
    RailConnections,
    SocketMaker,
    accept_pending,
    listening_socket,
    read_hello,
)
from railyard.workloads.allreduce.transport.frames import Header
from railyard.workloads.allreduce.transport.layout import Layout

_MISSING_AGGREGATOR = "its aggregator, or a rank that this waits for,"


class Rendezvous:
    """`incarnations` by rail: how often it has come back. `step` is called often while `busy`."""

    def __init__(self, rank: int, layout: Layout, make: SocketMaker) -> None:
        self._rank, self._layout, self._make = rank, layout, make
        rails = range(len(layout.rails))
        self.incarnations = dict.fromkeys(rails, 0)
        with ExitStack() as opened:
            self.listeners = [
                opened.enter_context(listening_socket(make, rail, layout.nodes[rail][rank])) for rail in rails
            ]
            opened.pop_all()
        self._unidentified: list[socket.socket] = []
        self._connections = {rail: self._new_connections(rail) for rail in rails}

    @property
    def busy(self) -> bool:
        return bool(self._unidentified or self._connections)

    def joined(self, rail: int) -> bool:
        """All connections of a rail that was begun and not taken stand."""
        return rail in self._connections and not self._connections[rail].missing

    def missing(self, rail: int) -> list[str]:
        """Whom a rail still lacks."""
        return [
            _MISSING_AGGREGATOR if peer == AGGREGATOR else f"rank {peer}"
            for peer in self._connections[rail].never_answered
        ]

    def begin(self, rail: int, incarnation: int) -> None:
        """Join a rail's next life."""
        if rail in self._connections:
            self._connections.pop(rail).close()
        self.incarnations[rail] = incarnation
        self._connections[rail] = self._new_connections(rail)

    def take(self, rail: int) -> RailConnections:
        """A rail that has joined: its connections are the caller's now."""
        return self._connections.pop(rail)

    def accept(self) -> None:
        """Whoever calls."""
        for listener in self.listeners:
            self._unidentified += accept_pending(listener)

    def step(self) -> None:
        """Go on with callers and calls."""
        for sock in list(self._unidentified):
            self._read_hello(sock)
        for connections in self._connections.values():
            connections.step()

    def send_control(self, header: Header, text: bytes) -> None:
        """Before all have joined: tell those whose control connection stands."""
        for connections in self._connections.values():
            for (purpose, _), sock in connections.accepted.items():
                if purpose == "control":
                    with suppress(OSError):
                        sock.sendmsg([header.pack(), text])

    def close(self) -> None:
        for connections in self._connections.values():
            connections.close()
        for sock in (*self._unidentified, *self.listeners):
            sock.close()

    def _read_hello(self, sock: socket.socket) -> None:
        try:
            hello = read_hello(sock)
        except OSError:
            known = False
        else:
            if hello is None:
                return
            known = hello.rail in self._connections and self._connections[hello.rail].accept_connection(hello, sock)
        self._unidentified.remove(sock)
        if not known:
            sock.close()

    def _new_connections(self, rail: int) -> RailConnections:
        own_rank, size, aggregator = self._rank, self._layout.size, self._layout.aggregators[rail]
        addresses = self._layout.nodes[rail]
        dials: dict[tuple[Purpose, int], Address] = {}
        expects: list[tuple[Purpose, int]] = []
        if aggregator is not None:
            dials["data", AGGREGATOR] = aggregator
        else:
            dials["data", (own_rank + 1) % size] = addresses[(own_rank + 1) % size]
            expects.append(("data", (own_rank - 1) % size))
        if own_rank == 0:
            expects += [("control", peer) for peer in range(1, size)]
        else:
            dials["control", 0] = addresses[0]

        def hello(purpose: Purpose) -> Hello:
            return Hello(self._layout.group, rail, own_rank, purpose, self.incarnations[rail])

        return RailConnections(hello, dials, expects, self._make, addresses[own_rank][0])
