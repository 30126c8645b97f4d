"""Connections of a node on all rails: data to the next of the ring or the aggregator, control between rank 0 and all.

Source: Nezha section 3.3. A control message goes over every live rail: its first copy counts, and a rail that joins
later gets the latest ones again. Control messages have connections of their own, so they wait behind data only in a
NIC, where the kernel keeps little of either (links.UNSENT_BYTES).
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from railyard.workloads.allreduce.engine.jobs import Layout, SocketMaker
from railyard.workloads.allreduce.engine.operation import PieceRouter
from railyard.workloads.allreduce.tasks import scratch
from railyard.workloads.allreduce.transport.links import CONTROL, Broken, Framed, Header, Links, Message, Pacer
from railyard.workloads.allreduce.transport.rendezvous import AGGREGATOR, Rendezvous

_MAX_UNACKNOWLEDGED: Final = 64
_JOIN_POLL_S: Final = 0.003


@dataclass
class ReliableChannel:
    """Numbered messages with one peer, which arrive once and in order. Number 0, a heartbeat's, is not kept. Pure."""

    last_received: int = 0
    unacknowledged: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_MAX_UNACKNOWLEDGED))
    _sent: int = 0
    _out_of_order: dict[int, Message] = field(default_factory=dict)

    def write(self, message: Message) -> tuple[int, bytes]:
        """Return a message's number and text, which are kept for rails that join later."""
        self._sent += 1
        self.unacknowledged.append((self._sent, json.dumps(message).encode()))
        return self.unacknowledged[-1]

    def acknowledge(self, number: int) -> None:
        """Forget the messages up to a number, which the peer has."""
        while self.unacknowledged and self.unacknowledged[0][0] <= number:
            self.unacknowledged.popleft()

    def received(self, number: int, text: bytes) -> Iterator[Message]:
        """Yield the messages that are due now: none for a copy, or while an earlier one is missing."""
        if number == 0:
            yield json.loads(text)
        elif number > self.last_received:
            self._out_of_order[number] = json.loads(text)
            while self.last_received + 1 in self._out_of_order:
                self.last_received += 1
                yield self._out_of_order.pop(self.last_received)


@dataclass
class _Rail:
    """Connections of a live rail. On a tree `outgoing` and `incoming` are one."""

    outgoing: Framed
    incoming: Framed
    control: dict[int, Framed]

    @property
    def moved_bytes(self) -> int:
        return self.outgoing.sent_bytes + self.incoming.received_bytes


class Transport:
    """All connections of a node. `poll` serves them; everything else only queues, and sends what may go at once.

    `on_message(peer, rail, message)` gets control messages; `on_disconnect(rail, why, peers)` each lost connection of a
    live rail, and the peers that no live rail leads to any more.
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        make: SocketMaker,
        on_message: Callable[[int, int, Message], None],
        on_disconnect: Callable[[int, str, list[int]], None],
    ) -> None:
        self.rank = rank
        self.layout = layout
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        self._rendezvous = Rendezvous(rank, layout, make)
        self.incarnations = self._rendezvous.incarnations
        self.joined = self._rendezvous.joined
        self.missing = self._rendezvous.missing
        self._links = Links(self._lost, self._rendezvous.listener.sockets)
        self.wake = self._links.wake
        # rail, and name of the peer at the other end
        self._link_peers: dict[Framed, tuple[int, str]] = {}
        self._live: dict[int, _Rail] = {}
        self._moved_before = dict.fromkeys(range(len(layout.rails)), 0)
        # rank 0 coordinates: it has a channel to every other rank, and those have one to it
        peers = range(1, layout.size) if rank == 0 else range(1)
        self._channels = {peer: ReliableChannel() for peer in peers}
        self._own_messages: deque[Message] = deque()

    @property
    def live(self) -> list[int]:
        """Live rails."""
        return sorted(self._live)

    def moved(self) -> tuple[int, ...]:
        """Return the bytes of data by rail so far, both ways."""
        now = {rail: state.moved_bytes for rail, state in self._live.items()}
        return tuple(before + now.get(rail, 0) for rail, before in self._moved_before.items())

    def flushed(self) -> bool:
        """Return whether all data is sent."""
        return all(rail.outgoing.idle for rail in self._live.values())

    def send(self, rail: int, header: Header, view: memoryview, starts_message: bool) -> None:
        """Send data on a rail."""
        # what is for a rail that is not live is dropped: its job will be done again
        if rail in self._live:
            self._links.put(self._live[rail].outgoing, header, view, starts_message)

    def send_control(self, peer: int, message: Message) -> None:
        """Send a message to a node, which may be this one."""
        if peer == self.rank:
            # rank 0's message to itself waits its turn, so that it does not overtake what goes out
            self._own_messages.append(message)
            return
        number, text = self._channels[peer].write(message)
        self._send_on_all_rails(peer, Header(CONTROL, seq=number, length=len(text)), text)

    def heartbeat(self, message: Message) -> None:
        """Send a heartbeat to all peers on all live rails, without a number: it is never sent again."""
        # it also acknowledges each peer's messages, which would else go out again on a rail that joins
        received = {str(peer): channel.last_received for peer, channel in self._channels.items()}
        # without spaces: there are hundreds a second
        text = json.dumps(message | {"received": received}, separators=(",", ":")).encode()
        for peer in self._channels:
            self._send_on_all_rails(peer, Header(CONTROL, length=len(text)), text)

    def close_rail(self, rail: int, incarnation: int) -> None:
        """Close all connections of a rail, and begin to join its next incarnation."""
        if rail in self._live:
            state = self._live.pop(rail)
            self._moved_before[rail] += state.moved_bytes
            for link in {state.outgoing, state.incoming, *state.control.values()}:
                self._links.remove(link)
                self._link_peers.pop(link, None)
                link.sock.close()
        self._rendezvous.begin(rail, incarnation)

    def install(self, rail: int, router: PieceRouter) -> None:
        """Use a rail that has joined, with `router` for the data that comes in."""
        connections = self._rendezvous.connections.pop(rail)
        spec = self.layout.rails[rail]
        data: list[Framed] = []
        control: dict[int, Framed] = {}
        for is_dialled, sockets in ((True, connections.dialled), (False, connections.accepted)):
            for (purpose, peer), sock in sockets.items():
                if purpose == CONTROL:
                    receive = partial(self._receive_control, peer, rail)
                    link = control[peer] = Framed(sock, lambda header: scratch(header.length), receive)
                else:
                    pacer = Pacer(spec.setup_s, spec.cpu_s_per_byte, 1 / spec.rate) if is_dialled else None
                    buffer_for = partial(router.buffer_for, rail)
                    receive = partial(router.on_received, rail)
                    link = Framed(sock, buffer_for, receive, pacer, router.copies)
                    data.append(link)
                peer_name = "its aggregator" if peer == AGGREGATOR else f"rank {peer}"
                self._link_peers[link] = rail, peer_name
                self._links.add(link)
        self._live[rail] = _Rail(data[0], data[-1], control)
        for peer, channel in self._channels.items():
            for number, text in tuple(channel.unacknowledged):
                self._links.put(control[peer], Header(CONTROL, seq=number, length=len(text)), text)

    def close(self) -> None:
        """Close everything."""
        for link in list(self._link_peers):
            self._links.remove(link)
            link.sock.close()
        self._rendezvous.close()
        self._links.close()

    def abandon(self, why: str) -> None:
        """Before all rails have joined: abort the group on the nodes that can be reached."""
        text = json.dumps({"type": "abort", "why": why}).encode()
        for connections in self._rendezvous.connections.values():
            for (purpose, _), sock in connections.accepted.items():
                if purpose == CONTROL:
                    with suppress(OSError):
                        sock.sendmsg([Header(CONTROL, seq=1, length=len(text)).pack(), text])

    def poll(self, timeout_s: float) -> None:
        """Serve what comes within `timeout_s` seconds."""
        if self._own_messages:
            timeout_s = 0
        if self._rendezvous.busy:
            # connections that are joining are not among the polled links
            timeout_s = min(timeout_s, _JOIN_POLL_S)
        if self._links.poll(timeout_s):
            self._rendezvous.listener.accept()
        if self._rendezvous.busy:
            self._rendezvous.step()
        self.deliver_own()

    def deliver_own(self) -> None:
        """Deliver rank 0's messages to itself."""
        while self._own_messages:
            self._on_message(self.rank, -1, self._own_messages.popleft())

    def _lost(self, link: Framed, why: str) -> None:
        """Handle that a connection is gone."""
        # the rest of its rail stays until all nodes agree that the rail is dead
        rail, peer_name = self._link_peers[link]
        with suppress(Broken):
            # what came before the end: rank 0 may have sent the reason
            link.read()
        state = self._live.get(rail)
        if state is not None:
            state.control = {peer: control for peer, control in state.control.items() if control is not link}
            if link not in (state.outgoing, state.incoming):
                del self._link_peers[link]
                link.sock.close()
        reachable: set[int] = set()
        for live_rail in self._live.values():
            reachable |= live_rail.control.keys()
        unreachable = [peer for peer in self._channels if peer not in reachable]
        self._on_disconnect(rail, f"{peer_name}: {why}", unreachable)

    def _send_on_all_rails(self, peer: int, header: Header, text: bytes) -> None:
        for rail in self.live:
            if rail in self._live and peer in self._live[rail].control:
                self._links.put(self._live[rail].control[peer], header, text)

    def _receive_control(self, peer: int, rail: int, header: Header, view: memoryview) -> None:
        for message in self._channels[peer].received(header.seq, bytes(view)):
            self._channels[peer].acknowledge(message.get("received", {}).get(str(self.rank), 0))
            self._on_message(peer, rail, message)
