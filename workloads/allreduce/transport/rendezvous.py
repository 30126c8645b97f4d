"""A node's side of every rail's rendezvous: its listeners, who calls them, and the rails that are joining."""

import socket
from contextlib import ExitStack, suppress

from railyard.workloads.allreduce.transport.connections import (
    AGGREGATOR,
    Address,
    Hello,
    Joiner,
    Purpose,
    SocketMaker,
    callers,
    heard_hello,
    listening,
)
from railyard.workloads.allreduce.transport.frames import Header
from railyard.workloads.allreduce.transport.layout import Layout

_LOST = "its aggregator, or a rank that this waits for,"


class Rendezvous:
    """`incarnations` by rail: how often it has come back. `step` is called often while `busy`."""

    def __init__(self, rank: int, layout: Layout, make: SocketMaker) -> None:
        self._rank, self._layout, self._make = rank, layout, make
        rails = range(len(layout.rails))
        self.incarnations = dict.fromkeys(rails, 0)
        with ExitStack() as opened:
            self.listeners = [opened.enter_context(listening(make, rail, layout.nodes[rail][rank])) for rail in rails]
            opened.pop_all()
        self._nameless: list[socket.socket] = []
        self._joiners = {rail: self._joiner(rail) for rail in rails}

    @property
    def busy(self) -> bool:
        return bool(self._nameless or self._joiners)

    def joined(self, rail: int) -> bool:
        """All connections of a rail that was begun and not taken stand."""
        return rail in self._joiners and not self._joiners[rail].missing

    def missing(self, rail: int) -> list[str]:
        """Whom a rail still lacks."""
        return [_LOST if peer == AGGREGATOR else f"rank {peer}" for peer in self._joiners[rail].never_came]

    def begin(self, rail: int, incarnation: int) -> None:
        """Join a rail's next life."""
        if rail in self._joiners:
            self._joiners.pop(rail).close()
        self.incarnations[rail] = incarnation
        self._joiners[rail] = self._joiner(rail)

    def take(self, rail: int) -> Joiner:
        """A rail that has joined: its connections are the caller's now."""
        return self._joiners.pop(rail)

    def accept(self) -> None:
        """Whoever calls."""
        for listener in self.listeners:
            self._nameless += callers(listener)

    def step(self) -> None:
        """Go on with callers and calls."""
        for sock in list(self._nameless):
            self._greet(sock)
        for joiner in self._joiners.values():
            joiner.step()

    def tell(self, header: Header, text: bytes) -> None:
        """Before all have joined: tell those whose control connection stands."""
        for joiner in self._joiners.values():
            for (purpose, _), sock in joiner.accepted.items():
                if purpose == "control":
                    with suppress(OSError):
                        sock.sendmsg([header.pack(), text])

    def close(self) -> None:
        for joiner in self._joiners.values():
            joiner.close()
        for sock in (*self._nameless, *self.listeners):
            sock.close()

    def _greet(self, sock: socket.socket) -> None:
        try:
            said = heard_hello(sock)
        except OSError:
            known = False
        else:
            if said is None:
                return
            known = said.rail in self._joiners and self._joiners[said.rail].came(said, sock)
        self._nameless.remove(sock)
        if not known:
            sock.close()

    def _joiner(self, rail: int) -> Joiner:
        me, size, tree = self._rank, self._layout.size, self._layout.aggregators[rail]
        addresses = self._layout.nodes[rail]
        dials: dict[tuple[Purpose, int], Address] = {}
        expects: list[tuple[Purpose, int]] = []
        if tree is not None:
            dials["data", AGGREGATOR] = tree
        else:
            dials["data", (me + 1) % size] = addresses[(me + 1) % size]
            expects.append(("data", (me - 1) % size))
        if me == 0:
            expects += [("control", peer) for peer in range(1, size)]
        else:
            dials["control", 0] = addresses[0]

        def hello(purpose: Purpose) -> Hello:
            return Hello(self._layout.group, rail, me, purpose, self.incarnations[rail])

        return Joiner(hello, dials, expects, self._make, addresses[me][0])
