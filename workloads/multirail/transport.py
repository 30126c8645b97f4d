"""A node's connections on all rails: data to the next of the ring or to the aggregator, control between rank 0 and all.

Source: Nezha section 3.3. A control message goes over every live rail and carries a number: whichever copy comes first
counts, in order, and a rail that joins later is sent the latest ones again. So it arrives as long as one rail does.
"""

import json
import select
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from workloads.multirail.frames import CONTROL, Broken, Framed, Header
from workloads.multirail.joiner import (
    AGGREGATOR,
    Address,
    Hello,
    Joiner,
    Purpose,
    SocketMaker,
    heard_hello,
    listening,
    tuned,
)
from workloads.multirail.layout import Layout

Message = dict[str, Any]
_KEPT: Final = 64
_JOIN_PAUSE_S: Final = 0.003


class Listener(Protocol):
    """Who is told what comes in."""

    def place(self, rail: int, header: Header) -> memoryview: ...

    def took(self, rail: int, header: Header, view: memoryview) -> None: ...

    def said(self, peer: int, rail: int, message: Message) -> None: ...

    def broke(self, rail: int, why: str) -> None: ...


@dataclass
class _Peer:
    """The numbered messages to and from one node."""

    sent: int = 0
    kept: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    heard: int = 0
    early: dict[int, Message] = field(default_factory=dict)


@dataclass
class _Rail:
    """A live rail's connections. On a tree `forth` and `back` are one."""

    forth: Framed
    back: Framed
    control: dict[int, Framed]


class Transport:
    """`poll` serves all; the rest only queues and sends what the kernel takes at once."""

    def __init__(self, rank: int, layout: Layout, make: SocketMaker, listener: Listener) -> None:
        self.rank, self.layout, self._make, self._listener = rank, layout, make, listener
        rails = range(len(layout.rails))
        self.incarnations = dict.fromkeys(rails, 0)
        self._epoll = select.epoll()
        self._listeners = {rail: listening(make, rail, layout.nodes[rail][rank]) for rail in rails}
        self._by_fd: dict[int, tuple[int, Framed, str]] = {}
        for sock in self._listeners.values():
            self._epoll.register(sock, select.EPOLLIN)
        self._nameless: list[socket.socket] = []
        self._live: dict[int, _Rail] = {}
        self._moved_before = dict.fromkeys(rails, 0)
        peers = range(1, layout.size) if rank == 0 else (0,)
        self._peers = {peer: _Peer() for peer in peers}
        self._to_self: deque[Message] = deque()
        self._joiners = {rail: self._joiner(rail) for rail in rails}

    # what is there

    @property
    def live(self) -> list[int]:
        return sorted(self._live)

    def joined(self, rail: int) -> bool:
        """All connections of a rail that isn't live stand."""
        return rail in self._joiners and not self._joiners[rail].missing

    def missing(self, rail: int) -> list[str]:
        """Whom a rail that isn't live still lacks."""
        lost = "its aggregator, or a rank that this waits for,"
        return [lost if peer == AGGREGATOR else f"rank {peer}" for peer in self._joiners[rail].missing]

    def moved(self) -> list[int]:
        """Bytes by rail, both ways, data only."""
        counts = dict(self._moved_before)
        for number, rail in self._live.items():
            counts[number] += sum(link.moved_bytes for link in {id(x): x for x in (rail.forth, rail.back)}.values())
        return [counts[rail] for rail in sorted(counts)]

    def flushed(self) -> bool:
        return all(rail.forth.idle for rail in self._live.values())

    def cut_off(self) -> list[int]:
        """Peers that no live rail leads to."""
        return [peer for peer in self._peers if not any(peer in rail.control for rail in self._live.values())]

    # going out

    def send(self, rail: int, header: Header, view: memoryview) -> None:
        """Data, on a rail; to one that isn't live it's dropped, since what it was for will be done again."""
        if rail in self._live:
            self._out(rail, self._live[rail].forth, header, view)

    def tell(self, peer: int, message: Message) -> None:
        """A message to a node, or from rank 0 to itself: that waits its turn, lest it overtake what goes out."""
        if peer == self.rank:
            self._to_self.append(message)
            return
        state = self._peers[peer]
        state.sent += 1
        text = json.dumps(message).encode()
        state.kept.append((state.sent, text))
        self._spread(peer, Header(CONTROL, seq=state.sent, length=len(text)), text)

    def beat(self, message: Message) -> None:
        """To all peers, on all live rails; without a number, and never sent again."""
        text = json.dumps(message).encode()
        for peer in self._peers:
            self._spread(peer, Header(CONTROL, length=len(text)), text)

    # rails come and go

    def close_rail(self, rail: int, incarnation: int) -> None:
        """Close all that a rail has, and begin to join its next life."""
        if rail in self._live:
            self._moved_before[rail] = self.moved()[rail]
            state = self._live.pop(rail)
            for link in {id(x): x for x in (state.forth, state.back, *state.control.values())}.values():
                self._forget(link)
        if rail in self._joiners:
            self._joiners.pop(rail).close()
        self.incarnations[rail] = incarnation
        self._joiners[rail] = self._joiner(rail)

    def install(self, rail: int) -> None:
        """Use a rail that has joined."""
        joiner = self._joiners.pop(rail)
        links = {key: self._framed(rail, sock, key) for key, sock in {**joiner.accepted}.items()}
        control = {peer: link for (purpose, peer), link in links.items() if purpose == "control"}
        back = next((link for (purpose, _), link in links.items() if purpose == "data"), None)
        forth = None
        for key, sock in joiner.dialled.items():
            link = self._framed(rail, sock, key)
            if key[0] == "control":
                control[key[1]] = link
            else:
                forth = link
        assert forth is not None  # every rail is dialled for data: the next of the ring, or the aggregator
        self._live[rail] = _Rail(forth, back or forth, control)
        for peer, state in self._peers.items():
            for number, text in tuple(state.kept):
                self._out(rail, control[peer], Header(CONTROL, seq=number, length=len(text)), text)

    def close(self) -> None:
        for rail in self.live:
            self.close_rail(rail, self.incarnations[rail])
        for joiner in self._joiners.values():
            joiner.close()
        for sock in (*self._nameless, *self._listeners.values()):
            sock.close()
        self._epoll.close()

    def abandon(self, why: str) -> None:
        """Before all have joined: tell those whose control connection stands."""
        text = json.dumps({"is": "abort", "why": why}).encode()
        for joiner in self._joiners.values():
            for (purpose, _), sock in joiner.accepted.items():
                if purpose == "control":
                    with suppress(OSError):
                        sock.sendmsg([Header(CONTROL, seq=1, length=len(text)).pack(), text])

    # coming in

    def poll(self, pause: float) -> None:
        """Serve what comes within `pause` seconds."""
        joining = self._nameless or self._joiners
        for fd, what in self._epoll.poll(min(pause, _JOIN_PAUSE_S) if joining else pause):
            if fd in self._by_fd:
                self._serve(*self._by_fd[fd], what)
            else:
                self._accept()
        if joining or self._nameless:
            self._greet()
            for joiner in self._joiners.values():
                joiner.step()
        self.hear_self()

    def hear_self(self) -> None:
        """Take what rank 0 told itself."""
        while self._to_self:
            self._listener.said(self.rank, -1, self._to_self.popleft())

    def _serve(self, rail: int, link: Framed, who: str, what: int) -> None:
        try:
            if what & select.EPOLLOUT:
                link.flush()
                self._arm(link)
            if what & ~select.EPOLLOUT:
                link.read()
        except Broken as problem:
            self._lost(rail, link, f"{who}: {problem}")

    def _lost(self, rail: int, link: Framed, why: str) -> None:
        """One connection is gone; the rest of its rail stays until all have agreed that it's dead."""
        if link.sock.fileno() not in self._by_fd:
            return
        del self._by_fd[link.sock.fileno()]
        self._epoll.unregister(link.sock)
        with suppress(Broken):
            link.read()  # what came before the end: rank 0 may have said why
        state = self._live.get(rail)
        if state is not None:
            state.control = {peer: other for peer, other in state.control.items() if other is not link}
            if link not in (state.forth, state.back):
                link.sock.close()
        self._listener.broke(rail, why)

    def _out(self, rail: int, link: Framed, header: Header, view: memoryview | bytes) -> None:
        link.put(header, view)
        if link.sock.fileno() not in self._by_fd:
            return  # it is broken already
        try:
            link.flush()
            self._arm(link)
        except Broken as problem:
            self._lost(rail, link, f"{self._by_fd[link.sock.fileno()][2]}: {problem}")

    def _spread(self, peer: int, header: Header, text: bytes) -> None:
        for rail in self.live:
            if rail in self._live and peer in self._live[rail].control:
                self._out(rail, self._live[rail].control[peer], header, text)

    def _arm(self, link: Framed) -> None:
        self._epoll.modify(link.sock, select.EPOLLIN | (0 if link.idle else select.EPOLLOUT))

    def _framed(self, rail: int, sock: socket.socket, key: tuple[Purpose, int]) -> Framed:
        purpose, peer = key

        def place(header: Header) -> memoryview:
            return memoryview(bytearray(header.length)) if purpose == "control" else self._listener.place(rail, header)

        def took(header: Header, view: memoryview) -> None:
            if purpose == "control":
                self._heard(peer, rail, header, view)
            else:
                self._listener.took(rail, header, view)

        link = Framed(sock, place, took)
        who = "its aggregator" if peer == AGGREGATOR else f"rank {peer}"
        self._by_fd[sock.fileno()] = (rail, link, who)
        self._epoll.register(sock, select.EPOLLIN)
        return link

    def _heard(self, peer: int, rail: int, header: Header, view: memoryview) -> None:
        message = json.loads(bytes(view))
        state = self._peers[peer]
        if header.seq == 0:
            self._listener.said(peer, rail, message)
        elif header.seq > state.heard:
            state.early[header.seq] = message
            while state.heard + 1 in state.early:
                state.heard += 1
                self._listener.said(peer, rail, state.early.pop(state.heard))

    def _forget(self, link: Framed) -> None:
        if self._by_fd.pop(link.sock.fileno(), None) is not None:
            self._epoll.unregister(link.sock)
        link.sock.close()

    def _accept(self) -> None:
        for listener in self._listeners.values():
            with suppress(BlockingIOError):
                while True:
                    self._nameless.append(tuned(listener.accept()[0]))

    def _greet(self) -> None:
        for sock in list(self._nameless):
            try:
                said = heard_hello(sock)
            except OSError:
                said, known = None, False
            else:
                if said is None:
                    continue
                known = said.rail in self._joiners and self._joiners[said.rail].came(said, sock)
            self._nameless.remove(sock)
            if not known:
                sock.close()

    def _joiner(self, rail: int) -> Joiner:
        me, size, tree = self.rank, self.layout.size, self.layout.aggregators[rail]
        addresses = self.layout.nodes[rail]
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
            return Hello(self.layout.group, rail, me, purpose, self.incarnations[rail])

        return Joiner(hello, dials, expects, self._make, addresses[me][0])
