"""A node's connections on all rails: data to the next of the ring or to the aggregator, control between rank 0 and all.

Source: Nezha section 3.3. A control message goes over every live rail and carries a number: whichever copy comes first
counts, in order, and a rail that joins later is sent the latest ones again. So it arrives as long as one rail does. It
has connections of its own, so it never waits behind data but in a NIC, where the kernel keeps little of either
(frames.UNSENT_BYTES).
"""

import json
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from railyard.workloads.allreduce.engine.jobs import Layout, SocketMaker
from railyard.workloads.allreduce.engine.tasks import Copies
from railyard.workloads.allreduce.transport.links import CONTROL, Broken, Framed, Header, Links, Message, Pacer
from railyard.workloads.allreduce.transport.rendezvous import AGGREGATOR, Purpose, Rendezvous

_MAX_UNACKNOWLEDGED: Final = 64


@dataclass
class ReliableChannel:
    """One peer's. Number 0 is a beat's: it counts at once, and isn't kept."""

    _sent: int = 0
    _unacknowledged: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_MAX_UNACKNOWLEDGED))
    _last_received: int = 0
    _out_of_order: dict[int, Message] = field(default_factory=dict)

    def write(self, message: Message) -> tuple[int, bytes]:
        """Its number and text, which are kept for rails that join later."""
        self._sent += 1
        self._unacknowledged.append((self._sent, json.dumps(message).encode()))
        return self._unacknowledged[-1]

    @property
    def last_received(self) -> int:
        """The number up to which all of the peer's messages came."""
        return self._last_received

    def acknowledge(self, number: int) -> None:
        """The peer has these: no rail needs them any more."""
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            self._unacknowledged.popleft()

    def unacknowledged(self) -> tuple[tuple[int, bytes], ...]:
        return tuple(self._unacknowledged)

    def received(self, number: int, text: bytes) -> Iterator[Message]:
        """What can be listened to now: nothing for a copy of what was, or while an earlier one is missing."""
        if number == 0:
            yield json.loads(text)
        elif number > self._last_received:
            self._out_of_order[number] = json.loads(text)
            while self._last_received + 1 in self._out_of_order:
                self._last_received += 1
                yield self._out_of_order.pop(self._last_received)


_JOIN_POLL_S: Final = 0.003


class Listener(Protocol):
    """Who is told what comes in."""

    def buffer_for(self, rail: int, header: Header) -> memoryview: ...

    def on_received(self, rail: int, header: Header, view: memoryview) -> None: ...

    def on_message(self, peer: int, rail: int, message: Message) -> None: ...

    def on_disconnect(self, rail: int, why: str) -> None: ...


@dataclass
class _Rail:
    """A live rail's connections. On a tree `outgoing` and `incoming` are one."""

    outgoing: Framed
    incoming: Framed
    control: dict[int, Framed]

    @property
    def moved_bytes(self) -> int:
        return self.outgoing.sent_bytes + self.incoming.received_bytes


class Transport:
    """`poll` serves all; the rest only queues and sends what may go at once."""

    def __init__(self, rank: int, layout: Layout, make: SocketMaker, listener: Listener, copies: Copies) -> None:
        self.rank, self.layout, self._listener, self._copies = rank, layout, listener, copies
        self._rendezvous = Rendezvous(rank, layout, make)
        self._links = Links(self._lost)
        for sock in self._rendezvous.listeners:
            self._links.listen(sock)
        self._link_peers: dict[Framed, tuple[int, str]] = {}  # rail, and who is at the other end
        self._live: dict[int, _Rail] = {}
        self._moved_before = dict.fromkeys(range(len(layout.rails)), 0)
        self._channels = {peer: ReliableChannel() for peer in (range(1, layout.size) if rank == 0 else (0,))}
        self._own_messages: deque[Message] = deque()

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
        return all(rail.outgoing.idle for rail in self._live.values())

    def unreachable_peers(self) -> list[int]:
        """Peers that no live rail leads to."""
        return [peer for peer in self._channels if not any(peer in rail.control for rail in self._live.values())]

    # going out

    def send(self, rail: int, header: Header, view: memoryview, starts_message: bool) -> None:
        """Data, on a rail; to one that isn't live it's dropped, since what it was for will be done again."""
        if rail in self._live:
            self._links.put(self._live[rail].outgoing, header, view, starts_message)

    def send_control(self, peer: int, message: Message) -> None:
        """A message to a node, or from rank 0 to itself: that waits its turn, lest it overtake what goes out."""
        if peer == self.rank:
            self._own_messages.append(message)
            return
        number, text = self._channels[peer].write(message)
        self._send_on_all_rails(peer, Header(CONTROL, seq=number, length=len(text)), text)

    def heartbeat(self, message: Message) -> None:
        """To all peers, on all live rails; without a number, and never sent again. It also says up to where each peer's
        messages came: all that is kept goes out again on a rail that joins, and beats would wait behind it.
        """
        received = {str(peer): channel.last_received for peer, channel in self._channels.items()}
        text = json.dumps(
            message | {"received": received}, separators=(",", ":")
        ).encode()  # there are hundreds a second
        for peer in self._channels:
            self._send_on_all_rails(peer, Header(CONTROL, length=len(text)), text)

    # rails come and go

    def close_rail(self, rail: int, incarnation: int) -> None:
        """Close all that a rail has, and begin to join its next life."""
        if rail in self._live:
            state = self._live.pop(rail)
            self._moved_before[rail] += state.moved_bytes
            for link in {state.outgoing, state.incoming, *state.control.values()}:
                self._links.remove(link)
                self._link_peers.pop(link, None)
                link.sock.close()
        self._rendezvous.begin(rail, incarnation)

    def install(self, rail: int) -> None:
        """Use a rail that has joined."""
        connections, rail_spec = self._rendezvous.take(rail), self.layout.rails[rail]
        dialled = {
            key: self._framed(rail, sock, key) for key, sock in connections.dialled.items() if key[0] == "control"
        }
        accepted = {key: self._framed(rail, sock, key) for key, sock in connections.accepted.items()}
        control = {peer: link for (purpose, peer), link in {**accepted, **dialled}.items() if purpose == "control"}
        incoming = next((link for (purpose, _), link in accepted.items() if purpose == "data"), None)
        data_key = next(key for key in connections.dialled if key[0] == "data")  # every rail is dialled for data
        pacer = Pacer(rail_spec.setup_s, rail_spec.cpu_s_per_byte, 1 / rail_spec.rate)
        outgoing = self._framed(rail, connections.dialled[data_key], data_key, pacer)
        self._live[rail] = _Rail(outgoing, incoming or outgoing, control)
        for peer, channel in self._channels.items():
            for number, text in channel.unacknowledged():
                self._links.put(control[peer], Header(CONTROL, seq=number, length=len(text)), text)

    def close(self) -> None:
        for link in list(self._link_peers):
            self._links.remove(link)
            link.sock.close()
        self._rendezvous.close()
        self._links.close()

    def abandon(self, why: str) -> None:
        """Before all have joined: tell those whose control connection stands."""
        text = json.dumps({"type": "abort", "why": why}).encode()
        self._rendezvous.send_control(Header(CONTROL, seq=1, length=len(text)), text)

    # coming in

    def poll(self, timeout_s: float) -> None:
        """Serve what comes within `timeout_s` seconds."""
        if self._own_messages:
            timeout_s = 0  # what rank 0 suspects by itself, nobody else may tell it
        if self._links.poll(min(timeout_s, _JOIN_POLL_S) if self._rendezvous.busy else timeout_s):
            self._rendezvous.accept()
        if self._rendezvous.busy:
            self._rendezvous.step()
        self.deliver_own()

    def wake(self) -> None:
        """From another thread: let `poll` return."""
        self._links.wake()

    def deliver_own(self) -> None:
        """Take what rank 0 told itself."""
        while self._own_messages:
            self._listener.on_message(self.rank, -1, self._own_messages.popleft())

    def _lost(self, link: Framed, why: str) -> None:
        """One connection is gone; the rest of its rail stays until all have agreed that it's dead."""
        rail, peer_name = self._link_peers[link]
        with suppress(Broken):
            link.read()  # what came before the end: rank 0 may have said why
        state = self._live.get(rail)
        if state is not None:
            state.control = {peer: other for peer, other in state.control.items() if other is not link}
            if link not in (state.outgoing, state.incoming):
                del self._link_peers[link]
                link.sock.close()
        self._listener.on_disconnect(rail, f"{peer_name}: {why}")

    def _send_on_all_rails(self, peer: int, header: Header, text: bytes) -> None:
        for rail in self.live:
            if rail in self._live and peer in self._live[rail].control:
                self._links.put(self._live[rail].control[peer], header, text)

    def _framed(self, rail: int, sock: socket.socket, key: tuple[Purpose, int], pacer: Pacer | None = None) -> Framed:
        purpose, peer = key

        def buffer_for(header: Header) -> memoryview:
            return (
                memoryview(bytearray(header.length))
                if purpose == "control"
                else self._listener.buffer_for(rail, header)
            )

        def on_received(header: Header, view: memoryview) -> None:
            if purpose == "control":
                for message in self._channels[peer].received(header.seq, bytes(view)):
                    self._channels[peer].acknowledge(message.get("received", {}).get(str(self.rank), 0))
                    self._listener.on_message(peer, rail, message)
            else:
                self._listener.on_received(rail, header, view)

        link = Framed(sock, buffer_for, on_received, pacer, self._copies if purpose == "data" else None)
        self._link_peers[link] = rail, "its aggregator" if peer == AGGREGATOR else f"rank {peer}"
        self._links.add(link)
        return link
