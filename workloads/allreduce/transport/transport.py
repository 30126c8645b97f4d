"""A node's connections on all rails: data to the next of the ring or to the aggregator, control between rank 0 and all.

Source: Nezha section 3.3. A control message goes over every live rail and carries a number: whichever copy comes first
counts, in order, and a rail that joins later is sent the latest ones again. So it arrives as long as one rail does. It
has connections of its own, so it never waits behind data but in a NIC, where the kernel keeps little of either
(frames.UNSENT_BYTES).
"""

import json
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from railyard.workloads.allreduce.engine.buffers import Copies
from railyard.workloads.allreduce.engine.pace import Pacer
from railyard.workloads.allreduce.transport.connections import AGGREGATOR, Purpose, SocketMaker
from railyard.workloads.allreduce.transport.frames import CONTROL, Broken, Framed, Header
from railyard.workloads.allreduce.transport.layout import Layout
from railyard.workloads.allreduce.transport.links import Links
from railyard.workloads.allreduce.transport.reliable_channel import Mailbox, Message
from railyard.workloads.allreduce.transport.rendezvous import Rendezvous

_JOIN_PAUSE_S: Final = 0.003


class Listener(Protocol):
    """Who is told what comes in."""

    def place(self, rail: int, header: Header) -> memoryview: ...

    def took(self, rail: int, header: Header, view: memoryview) -> None: ...

    def said(self, peer: int, rail: int, message: Message) -> None: ...

    def broke(self, rail: int, why: str) -> None: ...


@dataclass
class _Rail:
    """A live rail's connections. On a tree `forth` and `back` are one."""

    forth: Framed
    back: Framed
    control: dict[int, Framed]

    @property
    def moved_bytes(self) -> int:
        return self.forth.sent_bytes + self.back.received_bytes


class Transport:
    """`poll` serves all; the rest only queues and sends what may go at once."""

    def __init__(self, rank: int, layout: Layout, make: SocketMaker, listener: Listener, copies: Copies) -> None:
        self.rank, self.layout, self._listener, self._copies = rank, layout, listener, copies
        self._rendezvous = Rendezvous(rank, layout, make)
        self._links = Links(self._lost)
        for sock in self._rendezvous.listeners:
            self._links.listen(sock)
        self._names: dict[Framed, tuple[int, str]] = {}  # rail, and who is at the other end
        self._live: dict[int, _Rail] = {}
        self._moved_before = dict.fromkeys(range(len(layout.rails)), 0)
        self._mail = {peer: Mailbox() for peer in (range(1, layout.size) if rank == 0 else (0,))}
        self._to_self: deque[Message] = deque()

    # what is there

    @property
    def incarnations(self) -> dict[int, int]:
        return self._rendezvous.incarnations

    @property
    def live(self) -> list[int]:
        return sorted(self._live)

    def joined(self, rail: int) -> bool:
        """All connections of a rail that isn't live stand."""
        return self._rendezvous.joined(rail)

    def missing(self, rail: int) -> list[str]:
        """Whom a rail that isn't live still lacks."""
        return self._rendezvous.missing(rail)

    def moved(self) -> tuple[int, ...]:
        """Bytes by rail, both ways, data only."""
        now = {rail: state.moved_bytes for rail, state in self._live.items()}
        return tuple(before + now.get(rail, 0) for rail, before in self._moved_before.items())

    def flushed(self) -> bool:
        return all(rail.forth.idle for rail in self._live.values())

    def cut_off(self) -> list[int]:
        """Peers that no live rail leads to."""
        return [peer for peer in self._mail if not any(peer in rail.control for rail in self._live.values())]

    # going out

    def send(self, rail: int, header: Header, view: memoryview, opens: bool) -> None:
        """Data, on a rail; to one that isn't live it's dropped, since what it was for will be done again."""
        if rail in self._live:
            self._links.put(self._live[rail].forth, header, view, opens)

    def tell(self, peer: int, message: Message) -> None:
        """A message to a node, or from rank 0 to itself: that waits its turn, lest it overtake what goes out."""
        if peer == self.rank:
            self._to_self.append(message)
            return
        number, text = self._mail[peer].write(message)
        self._spread(peer, Header(CONTROL, seq=number, length=len(text)), text)

    def beat(self, message: Message) -> None:
        """To all peers, on all live rails; without a number, and never sent again. It also says up to where each peer's
        messages came: all that is kept goes out again on a rail that joins, and beats would wait behind it.
        """
        heard = {str(peer): mailbox.latest_heard for peer, mailbox in self._mail.items()}
        text = json.dumps(message | {"heard": heard}, separators=(",", ":")).encode()  # there are hundreds a second
        for peer in self._mail:
            self._spread(peer, Header(CONTROL, length=len(text)), text)

    # rails come and go

    def close_rail(self, rail: int, incarnation: int) -> None:
        """Close all that a rail has, and begin to join its next life."""
        if rail in self._live:
            state = self._live.pop(rail)
            self._moved_before[rail] += state.moved_bytes
            for link in {state.forth, state.back, *state.control.values()}:
                self._links.remove(link)
                self._names.pop(link, None)
                link.sock.close()
        self._rendezvous.begin(rail, incarnation)

    def install(self, rail: int) -> None:
        """Use a rail that has joined."""
        joiner, described = self._rendezvous.take(rail), self.layout.rails[rail]
        dialled = {key: self._framed(rail, sock, key) for key, sock in joiner.dialled.items() if key[0] == "control"}
        accepted = {key: self._framed(rail, sock, key) for key, sock in joiner.accepted.items()}
        control = {peer: link for (purpose, peer), link in {**accepted, **dialled}.items() if purpose == "control"}
        back = next((link for (purpose, _), link in accepted.items() if purpose == "data"), None)
        forward = next(key for key in joiner.dialled if key[0] == "data")  # every rail is dialled for data
        pacer = Pacer(described.setup_s, described.cpu_s_per_byte, 1 / described.rate)
        forth = self._framed(rail, joiner.dialled[forward], forward, pacer)
        self._live[rail] = _Rail(forth, back or forth, control)
        for peer, mailbox in self._mail.items():
            for number, text in mailbox.kept():
                self._links.put(control[peer], Header(CONTROL, seq=number, length=len(text)), text)

    def close(self) -> None:
        for link in list(self._names):
            self._links.remove(link)
            link.sock.close()
        self._rendezvous.close()
        self._links.close()

    def abandon(self, why: str) -> None:
        """Before all have joined: tell those whose control connection stands."""
        text = json.dumps({"is": "abort", "why": why}).encode()
        self._rendezvous.tell(Header(CONTROL, seq=1, length=len(text)), text)

    # coming in

    def poll(self, pause: float) -> None:
        """Serve what comes within `pause` seconds."""
        if self._to_self:
            pause = 0  # what rank 0 suspects by itself, nobody else may tell it
        if self._links.poll(min(pause, _JOIN_PAUSE_S) if self._rendezvous.busy else pause):
            self._rendezvous.accept()
        if self._rendezvous.busy:
            self._rendezvous.step()
        self.hear_self()

    def wake(self) -> None:
        """From another thread: let `poll` return."""
        self._links.wake()

    def hear_self(self) -> None:
        """Take what rank 0 told itself."""
        while self._to_self:
            self._listener.said(self.rank, -1, self._to_self.popleft())

    def _lost(self, link: Framed, why: str) -> None:
        """One connection is gone; the rest of its rail stays until all have agreed that it's dead."""
        rail, who = self._names[link]
        with suppress(Broken):
            link.read()  # what came before the end: rank 0 may have said why
        state = self._live.get(rail)
        if state is not None:
            state.control = {peer: other for peer, other in state.control.items() if other is not link}
            if link not in (state.forth, state.back):
                del self._names[link]
                link.sock.close()
        self._listener.broke(rail, f"{who}: {why}")

    def _spread(self, peer: int, header: Header, text: bytes) -> None:
        for rail in self.live:
            if rail in self._live and peer in self._live[rail].control:
                self._links.put(self._live[rail].control[peer], header, text)

    def _framed(self, rail: int, sock: socket.socket, key: tuple[Purpose, int], pacer: Pacer | None = None) -> Framed:
        purpose, peer = key

        def place(header: Header) -> memoryview:
            return memoryview(bytearray(header.length)) if purpose == "control" else self._listener.place(rail, header)

        def took(header: Header, view: memoryview) -> None:
            if purpose == "control":
                for message in self._mail[peer].heard(header.seq, bytes(view)):
                    self._mail[peer].forget_up_to(message.get("heard", {}).get(str(self.rank), 0))
                    self._listener.said(peer, rail, message)
            else:
                self._listener.took(rail, header, view)

        link = Framed(sock, place, took, pacer, self._copies if purpose == "data" else None)
        self._names[link] = rail, "its aggregator" if peer == AGGREGATOR else f"rank {peer}"
        self._links.add(link)
        return link
