"""Rendezvous: all of a node's connections on one rail, the first time and each time the rail comes back.

Who dials whom is fixed: the next of the ring (data), rank 0 (control), or the rail's aggregator (data). The caller says
who it is (`Hello`), and a connection counts once the other end has answered with a byte, so both ends know that the
way there and back works. A caller tries again until it does, and where the other end hangs up before the rail is used
(another's call was stale, so an aggregator began anew); the later of two calls from the same node is the one kept.
`incarnation` says how often the rail has come back: a call from another life of it is refused.
"""

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
from railyard.topologies.multirail.shapers import CONTROL_TOS
from railyard.workloads.allreduce.transport.frames import UNSENT_BYTES

Purpose = Literal["data", "control"]
Address = tuple[str, int]
SocketMaker = Callable[[int], socket.socket]
"""Makes a socket for a rail, by its number: the place to enter a namespace first."""

AGGREGATOR: Final = 0xFFFF
_HELLO: Final = struct.Struct("!4sIHHHI")
_MAGIC: Final = b"RYMR"
_WELCOME: Final = b"+"
_TRY_S: Final = 0.25
_AGAIN_S: Final = 0.02


def plain_socket(_rail: int) -> socket.socket:
    """A socket where this process is."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


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


def heard_hello(sock: socket.socket) -> Hello | None:
    """What a caller said, None if it hasn't yet. ConnectionError if it's gone, or no node of ours."""
    try:
        said = sock.recv(_HELLO.size, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    if not said or not _MAGIC.startswith(said[: len(_MAGIC)]):
        raise ConnectionError("no hello")
    if len(said) < _HELLO.size:
        return None
    _, group, rail, rank, code, incarnation = _HELLO.unpack(sock.recv(_HELLO.size))
    if code > 1:
        raise ConnectionError("no hello")
    return Hello(group, rail, rank, "control" if code else "data", incarnation)


def welcome(sock: socket.socket) -> None:
    """Tell a caller that it is known."""
    sock.send(_WELCOME)


def tuned(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return sock


def lane(sock: socket.socket, purpose: Purpose) -> socket.socket:
    """Where the network has a lane for control messages, they take it: a beat mustn't wait behind data."""
    if purpose == "control":
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONTROL_TOS)
    return sock


def callers(listener: socket.socket) -> Iterator[socket.socket]:
    """Whoever calls now. Where accepting fails (the NIC is gone, say) nobody does: a caller tries again."""
    with suppress(OSError):
        while True:
            yield tuned(listener.accept()[0])


def listening(make: SocketMaker, rail: int, address: Address) -> socket.socket:
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
class _Call:
    """A connection on its way."""

    sock: socket.socket
    since: float
    said: bool = False


class Joiner:
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
        self._calls: dict[tuple[Purpose, int], _Call] = {}
        self._again_at: dict[tuple[Purpose, int], float] = {}
        self.dialled: dict[tuple[Purpose, int], socket.socket] = {}
        self.accepted: dict[tuple[Purpose, int], socket.socket] = {}
        self._came: set[int] = set()

    @property
    def never_came(self) -> list[int]:
        """Of those that are missing, the ones that never answered: who did and is gone again has given up on them."""
        return [peer for peer in self.missing if peer not in self._came] or self.missing

    @property
    def missing(self) -> list[int]:
        """Ranks (or AGGREGATOR) with which a connection is still missing."""
        return sorted(
            {peer for _, peer in self._dials.keys() - self.dialled.keys()}
            | {peer for _, peer in set(self._expects) - self.accepted.keys()}
        )

    def came(self, said: Hello, sock: socket.socket) -> bool:
        """A caller: kept if it's one that we wait for, in this life of the rail."""
        key = (said.purpose, said.rank)
        if said != Hello(*_fields(self._hello(said.purpose), said.rank)) or key not in self._expects:
            return False
        try:
            welcome(lane(tuned(sock), said.purpose))
        except OSError:
            return False
        if key in self.accepted:
            self.accepted[key].close()
        self.accepted[key] = sock
        return True

    def step(self) -> None:
        """Go on with every call; begin those that are due."""
        now = time.monotonic()
        for key in [key for key, sock in self.dialled.items() if _hung_up(sock)]:
            self.dialled.pop(key).close()
        for key in self._dials.keys() - self.dialled.keys():
            call = self._calls.get(key)
            if call is None:
                if now >= self._again_at.get(key, 0.0):
                    self._dial(key, now)
            elif self._answered(key, call):
                self.dialled[key] = self._calls.pop(key).sock
                self._came.add(key[1])
            elif key in self._calls and now - call.since > _TRY_S:
                self._give_up(key)

    def close(self) -> None:
        for call in self._calls.values():
            call.sock.close()
        for sock in (*self.dialled.values(), *self.accepted.values()):
            sock.close()
        self._calls.clear()
        self.dialled.clear()
        self.accepted.clear()

    def _dial(self, key: tuple[Purpose, int], now: float) -> None:
        hello = self._hello(key[0])
        try:
            sock = self._make(hello.rail)
        except OSError:  # the NIC is gone; it may come back, and the other rails go on meanwhile
            self._again_at[key] = now + _AGAIN_S
            return
        try:
            lane(tuned(sock), hello.purpose)
            sock.bind((self._own_ip, 0))
            problem = sock.connect_ex(self._dials[key])
        except OSError as error:
            problem = error.errno or errno.EIO
        self._calls[key] = _Call(sock, now)
        if problem not in (0, errno.EINPROGRESS):
            self._give_up(key)

    def _answered(self, key: tuple[Purpose, int], call: _Call) -> bool:
        poller = select.poll()
        poller.register(call.sock, select.POLLIN if call.said else select.POLLOUT)
        if not poller.poll(0):
            return False
        try:
            if not call.said:
                call.sock.send(self._hello(key[0]).pack())
                call.said = True
                return False
            if call.sock.recv(1) == _WELCOME:
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # refused, or gone again: the next call may do better
        self._give_up(key)
        return False

    def _give_up(self, key: tuple[Purpose, int]) -> None:
        self._calls.pop(key).sock.close()
        self._again_at[key] = time.monotonic() + _AGAIN_S


def _hung_up(sock: socket.socket) -> bool:
    """Whether the other end has; what it may have sent stays to be read."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _fields(hello: Hello, rank: int) -> tuple[int, int, int, Purpose, int]:
    return hello.group, hello.rail, rank, hello.purpose, hello.incarnation
