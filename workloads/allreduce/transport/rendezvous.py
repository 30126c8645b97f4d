"""Rendezvous: a node's listeners, and its connections on each rail until all of them stand.

It happens at the start and each time a rail returns. A node dials the next of the ring (data), rank 0 (control), or the
rail's aggregator (data). It sends a `Hello`, again until the other end has answered with a byte, and again where the
other end hangs up before the rail is used. Of two connections from the same node the later one is kept. `incarnation`
counts how often a rail has returned: a Hello of another one is refused.
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from railyard.core.errors import BadInput
from railyard.topologies.multirail.commands import CONTROL_TOS
from railyard.workloads.allreduce.engine.jobs import Address, Layout, SocketMaker
from railyard.workloads.allreduce.transport.links import CONTROL, DATA, UNSENT_BYTES

Key = tuple[int, int]
"""Purpose of a connection, DATA or CONTROL as its frames, and the rank (or AGGREGATOR) at its other end."""
AGGREGATOR: Final = 0xFFFF
_HELLO: Final = struct.Struct("!4sIHHHI")
_MAGIC: Final = b"RYMR"
ACK: Final = b"+"  # answer to a Hello
_ATTEMPT_TIMEOUT_S: Final = 0.25
_RETRY_S: Final = 0.02
_MISSING_AGGREGATOR: Final = "its aggregator, or a rank that this waits for,"


class Hello(NamedTuple):
    """First bytes of a connection: which node dials, for what."""

    group: int
    rail: int
    rank: int
    purpose: int
    incarnation: int


def configure_socket(sock: socket.socket, purpose: int = DATA) -> socket.socket:
    """Set a connection's options; control messages get the network's lane for them, if it has one."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    if purpose == CONTROL:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONTROL_TOS)
    return sock


class HelloListener:
    """Listening sockets of a process, and the connections whose Hello has not come yet.

    `addresses` by rail. BadInput for one that is not this machine's, or is taken.
    """

    def __init__(self, make: SocketMaker, addresses: Mapping[int, Address]) -> None:
        self.sockets: list[socket.socket] = []
        self.unidentified: list[socket.socket] = []
        for rail, address in addresses.items():
            try:
                sock = make(rail)
                self.sockets.append(sock)
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
                sock.listen(128)
            except OSError as problem:
                self.close()
                why = f"can't be listened at: {problem.strerror or problem}"
                raise BadInput(f"rails.{rail}", ":".join(map(str, address)), why) from problem

    def accept(self) -> None:
        """Accept all connections that wait."""
        for listener in self.sockets:
            # where accepting fails (the NIC is gone, say) peers retry
            with suppress(OSError):
                while True:
                    self.unidentified.append(configure_socket(listener.accept()[0]))

    def identify(self, keep: Callable[[Hello, socket.socket], bool]) -> None:
        """Hand each connection whose Hello has come to `keep`; close those that it refuses, or that are lost."""
        for sock in list(self.unidentified):
            try:
                start = sock.recv(_HELLO.size, socket.MSG_PEEK)
                if 0 < len(start) < _HELLO.size and _MAGIC.startswith(start[: len(_MAGIC)]):
                    # the rest is on its way
                    continue
                is_hello = start.startswith(_MAGIC)
                is_kept = is_hello and keep(Hello(*_HELLO.unpack(sock.recv(_HELLO.size))[1:]), sock)
            except BlockingIOError:
                continue
            except OSError:
                is_kept = False
            self.unidentified.remove(sock)
            if not is_kept:
                sock.close()

    def close(self) -> None:
        """Close all sockets that are not kept."""
        for sock in (*self.unidentified, *self.sockets):
            sock.close()


@dataclass
class _Attempt:
    """Connection that is not answered yet."""

    sock: socket.socket
    since: float
    hello_sent: bool = False


@dataclass
class RailConnections:
    """Connections of one rail until all stand. `dials` and `expects`: by purpose and rank; `step` is called often.

    `hello`: this node's, with any purpose.
    """

    hello: Hello
    dials: Mapping[Key, Address]
    expects: Sequence[Key]
    make: SocketMaker
    own_ip: str
    dialled: dict[Key, socket.socket] = field(default_factory=dict)
    accepted: dict[Key, socket.socket] = field(default_factory=dict)
    answered_peers: set[int] = field(default_factory=set)
    _attempts: dict[Key, _Attempt] = field(default_factory=dict)
    _retry_at: dict[Key, float] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """Ranks (or AGGREGATOR) with which a connection is missing."""
        missing = (self.dials.keys() - self.dialled.keys()) | (set(self.expects) - self.accepted.keys())
        return sorted({peer for _, peer in missing})

    def accept_connection(self, hello: Hello, sock: socket.socket) -> bool:
        """Keep an accepted connection if it is expected, in this incarnation; return whether it is. OSError if lost."""
        key = (hello.purpose, hello.rank)
        if hello != self.hello._replace(purpose=hello.purpose, rank=hello.rank) or key not in self.expects:
            return False
        configure_socket(sock, hello.purpose).send(ACK)
        if key in self.accepted:
            self.accepted[key].close()
        self.accepted[key] = sock
        return True

    def step(self) -> None:
        """Continue all attempts, and begin those that are due."""
        now = time.monotonic()
        for key, sock in list(self.dialled.items()):
            if _is_closed(sock):
                self.dialled.pop(key).close()
        for key in self.dials.keys() - self.dialled.keys():
            attempt = self._attempts.get(key)
            try:
                if attempt is None:
                    if now >= self._retry_at.get(key, 0.0):
                        self._dial(key, now)
                elif self._is_answered(key, attempt):
                    self.dialled[key] = self._attempts.pop(key).sock
                    self.answered_peers.add(key[1])
                elif now - attempt.since > _ATTEMPT_TIMEOUT_S:
                    raise TimeoutError
            except OSError:
                # refused, closed again, or the NIC is gone: the next attempt may succeed
                if failed := self._attempts.pop(key, None):
                    failed.sock.close()
                self._retry_at[key] = now + _RETRY_S

    def close(self) -> None:
        """Close all connections and attempts."""
        attempts = [attempt.sock for attempt in self._attempts.values()]
        for sock in (*attempts, *self.dialled.values(), *self.accepted.values()):
            sock.close()

    def _dial(self, key: Key, now: float) -> None:
        self._attempts[key] = _Attempt(self.make(self.hello.rail), now)
        sock = configure_socket(self._attempts[key].sock, key[0])
        sock.bind((self.own_ip, 0))
        with suppress(BlockingIOError):
            sock.connect(self.dials[key])

    def _is_answered(self, key: Key, attempt: _Attempt) -> bool:
        """Send the Hello once connected; return whether it was answered. OSError if it failed."""
        poller = select.poll()
        event = select.POLLIN if attempt.hello_sent else select.POLLOUT
        poller.register(attempt.sock, event)
        if not poller.poll(0):
            return False
        if attempt.hello_sent:
            if attempt.sock.recv(1) != ACK:
                raise ConnectionError
            return True
        attempt.sock.send(_HELLO.pack(_MAGIC, *self.hello._replace(purpose=key[0])))
        attempt.hello_sent = True
        return False


def _is_closed(sock: socket.socket) -> bool:
    """Whether the other end is closed; data that it sent before stays to be read."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Rendezvous:
    """Listeners of a node, and the `connections` of rails that are joining. `step` is called often while `busy`.

    `incarnations`: by rail, how often it has returned.
    """

    def __init__(self, rank: int, layout: Layout, make: SocketMaker) -> None:
        self._rank = rank
        self._layout = layout
        self._make = make
        rails = range(len(layout.rails))
        self.incarnations: dict[int, int] = {}
        self.listener = HelloListener(make, {rail: layout.nodes[rail][rank] for rail in rails})
        self.connections: dict[int, RailConnections] = {}
        for rail in rails:
            self.begin(rail, 0)

    @property
    def busy(self) -> bool:
        """True if a rail is joining or a Hello is awaited."""
        return bool(self.listener.unidentified or self.connections)

    def joined(self, rail: int) -> bool:
        """Return whether all connections stand of a rail that is joining."""
        return rail in self.connections and not self.connections[rail].missing

    def missing(self, rail: int) -> list[str]:
        """Return the names of the peers that a rail lacks: that never answered, or else all."""
        missing = self.connections[rail].missing
        answered = self.connections[rail].answered_peers
        # a peer that did answer and is gone again has given up on those that did not
        peers = [peer for peer in missing if peer not in answered] or missing
        names = []
        for peer in peers:
            names.append(_MISSING_AGGREGATOR if peer == AGGREGATOR else f"rank {peer}")
        return names

    def begin(self, rail: int, incarnation: int) -> None:
        """Join a rail's next incarnation."""
        if rail in self.connections:
            self.connections[rail].close()
        self.incarnations[rail] = incarnation
        rank = self._rank
        size = self._layout.size
        aggregator = self._layout.aggregators[rail]
        addresses = self._layout.nodes[rail]
        dials: dict[Key, Address] = {}
        expects: list[Key] = []
        if aggregator is not None:
            dials[DATA, AGGREGATOR] = aggregator
        else:
            dials[DATA, (rank + 1) % size] = addresses[(rank + 1) % size]
            expects.append((DATA, (rank - 1) % size))
        if rank == 0:
            expects += [(CONTROL, peer) for peer in range(1, size)]
        else:
            dials[CONTROL, 0] = addresses[0]
        hello = Hello(self._layout.group, rail, rank, DATA, incarnation)
        self.connections[rail] = RailConnections(hello, dials, expects, self._make, addresses[rank][0])

    def step(self) -> None:
        """Continue all connections that do not stand yet."""
        joining = self.connections
        self.listener.identify(
            lambda hello, sock: hello.rail in joining and joining[hello.rail].accept_connection(hello, sock)
        )
        for connections in joining.values():
            connections.step()

    def close(self) -> None:
        """Close everything."""
        for connections in self.connections.values():
            connections.close()
        self.listener.close()
