"""A node's side of every rail's rendezvous: its listeners, who calls them, and the rails that are joining."""

import errno
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Literal

from railyard.core.errors import BadInput
from railyard.topologies.multirail.commands import CONTROL_TOS
from railyard.workloads.allreduce.engine.jobs import Address, Layout, SocketMaker
from railyard.workloads.allreduce.transport.links import UNSENT_BYTES, Header

Purpose = Literal["data", "control"]

AGGREGATOR: Final = 0xFFFF
_HELLO: Final = struct.Struct("!4sIHHHI")
_MAGIC: Final = b"RYMR"
_ACK: Final = b"+"
_ATTEMPT_TIMEOUT_S: Final = 0.25
_RETRY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Hello:
    """Who calls, for what."""

    group: int
    rail: int
    rank: int
    purpose: Purpose
    incarnation: int

    def pack(self) -> bytes:
        code = ("data", "control").index(self.purpose)
        return _HELLO.pack(_MAGIC, self.group, self.rail, self.rank, code, self.incarnation)


def read_hello(sock: socket.socket) -> Hello | None:
    """What a caller said, None if it hasn't yet. ConnectionError if it's gone, or no node of ours."""
    try:
        hello = sock.recv(_HELLO.size, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    if not hello or not _MAGIC.startswith(hello[: len(_MAGIC)]):
        raise ConnectionError("no hello")
    if len(hello) < _HELLO.size:
        return None
    _, group, rail, rank, code, incarnation = _HELLO.unpack(sock.recv(_HELLO.size))
    if code > 1:
        raise ConnectionError("no hello")
    return Hello(group, rail, rank, "control" if code else "data", incarnation)


def send_ack(sock: socket.socket) -> None:
    """Tell a caller that it is known."""
    sock.send(_ACK)


def configure_socket(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return sock


def set_tos(sock: socket.socket, purpose: Purpose) -> socket.socket:
    """Where the network has a lane for control messages, they take it: a beat mustn't wait behind data."""
    if purpose == "control":
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONTROL_TOS)
    return sock


def accept_pending(listener: socket.socket) -> Iterator[socket.socket]:
    """Whoever calls now. Where accepting fails (the NIC is gone, say) nobody does: a caller tries again."""
    with suppress(OSError):
        while True:
            yield configure_socket(listener.accept()[0])


def listening_socket(make: SocketMaker, rail: int, address: Address) -> socket.socket:
    """A listening socket of a node, or of an aggregator. BadInput for an address that isn't this one's, or is taken."""
    try:
        with ExitStack() as opened:
            sock = opened.enter_context(make(rail))
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(128)
            opened.pop_all()
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise BadInput(f"rails.{rail}", ":".join(map(str, address)), f"can't be listened at: {why}") from problem
    return sock


@dataclass
class _Attempt:
    """A connection on its way."""

    sock: socket.socket
    since: float
    hello: bool = False


class RailConnections:
    """One rail's connections until all stand. `dials` and `expects`: purpose and rank; `step` is called often."""

    def __init__(
        self,
        hello: Callable[[Purpose], Hello],
        dials: Mapping[tuple[Purpose, int], Address],
        expects: Sequence[tuple[Purpose, int]],
        make: SocketMaker,
        own_ip: str,
    ) -> None:
        self._hello, self._dials, self._expects = hello, dict(dials), list(expects)
        self._make, self._own_ip = make, own_ip
        self._attempts: dict[tuple[Purpose, int], _Attempt] = {}
        self._retry_at: dict[tuple[Purpose, int], float] = {}
        self.dialled: dict[tuple[Purpose, int], socket.socket] = {}
        self.accepted: dict[tuple[Purpose, int], socket.socket] = {}
        self._answered_peers: set[int] = set()

    @property
    def never_answered(self) -> list[int]:
        """Of those that are missing, the ones that never answered: who did and is gone again has given up on them."""
        return [peer for peer in self.missing if peer not in self._answered_peers] or self.missing

    @property
    def missing(self) -> list[int]:
        """Ranks (or AGGREGATOR) with which a connection is still missing."""
        return sorted(
            {peer for _, peer in self._dials.keys() - self.dialled.keys()}
            | {peer for _, peer in set(self._expects) - self.accepted.keys()}
        )

    def accept_connection(self, hello: Hello, sock: socket.socket) -> bool:
        """A caller: kept if it's one that we wait for, in this life of the rail."""
        key = (hello.purpose, hello.rank)
        if hello != Hello(*_fields(self._hello(hello.purpose), hello.rank)) or key not in self._expects:
            return False
        try:
            send_ack(set_tos(configure_socket(sock), hello.purpose))
        except OSError:
            return False
        if key in self.accepted:
            self.accepted[key].close()
        self.accepted[key] = sock
        return True

    def step(self) -> None:
        """Go on with every call; begin those that are due."""
        now = time.monotonic()
        for key in [key for key, sock in self.dialled.items() if _is_closed(sock)]:
            self.dialled.pop(key).close()
        for key in self._dials.keys() - self.dialled.keys():
            attempt = self._attempts.get(key)
            if attempt is None:
                if now >= self._retry_at.get(key, 0.0):
                    self._dial(key, now)
            elif self._answered(key, attempt):
                self.dialled[key] = self._attempts.pop(key).sock
                self._answered_peers.add(key[1])
            elif key in self._attempts and now - attempt.since > _ATTEMPT_TIMEOUT_S:
                self._give_up(key)

    def close(self) -> None:
        for attempt in self._attempts.values():
            attempt.sock.close()
        for sock in (*self.dialled.values(), *self.accepted.values()):
            sock.close()
        self._attempts.clear()
        self.dialled.clear()
        self.accepted.clear()

    def _dial(self, key: tuple[Purpose, int], now: float) -> None:
        hello = self._hello(key[0])
        try:
            sock = self._make(hello.rail)
        except OSError:  # the NIC is gone; it may come back, and the other rails go on meanwhile
            self._retry_at[key] = now + _RETRY_S
            return
        try:
            set_tos(configure_socket(sock), hello.purpose)
            sock.bind((self._own_ip, 0))
            problem = sock.connect_ex(self._dials[key])
        except OSError as error:
            problem = error.errno or errno.EIO
        self._attempts[key] = _Attempt(sock, now)
        if problem not in (0, errno.EINPROGRESS):
            self._give_up(key)

    def _answered(self, key: tuple[Purpose, int], attempt: _Attempt) -> bool:
        poller = select.poll()
        poller.register(attempt.sock, select.POLLIN if attempt.hello else select.POLLOUT)
        if not poller.poll(0):
            return False
        try:
            if not attempt.hello:
                attempt.sock.send(self._hello(key[0]).pack())
                attempt.hello = True
                return False
            if attempt.sock.recv(1) == _ACK:
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # refused, or gone again: the next call may do better
        self._give_up(key)
        return False

    def _give_up(self, key: tuple[Purpose, int]) -> None:
        self._attempts.pop(key).sock.close()
        self._retry_at[key] = time.monotonic() + _RETRY_S


def _is_closed(sock: socket.socket) -> bool:
    """Whether the other end has; what it may have sent stays to be read."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _fields(hello: Hello, rank: int) -> tuple[int, int, int, Purpose, int]:
    return hello.group, hello.rail, rank, hello.purpose, hello.incarnation


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
