"""Connections between the machines of a run: both ends show that they know the run's token, and a worker at the far
end is used as one on this machine.

The token authenticates; it encrypts nothing. The network between the machines has to be one that only they use.
"""

import hmac
import json
import os
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from railyard.core import watch
from railyard.core.errors import BadInput, MissingRequirement, RailyardError
from railyard.core.worker import ANSWER_S, Event, Failed, Message, OnEvent, Pipe, Worker

TOKEN_VARIABLE: Final = "RAILYARD_TOKEN"
MIN_TOKEN: Final = 16
GREETING_S: Final = 5.0
_NONCE: Final = 32
_MAX_LINE: Final = 4096
_TCP_USER_TIMEOUT: Final = 18  # <linux/tcp.h>


class NotAuthentic(RailyardError):
    """The other end has another token, or is another program."""


def read_token() -> bytes:
    """Return the token and take it out of the environment."""
    # programs of a run inherit the environment, and need not see it
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not token:
        remedy = f"set {TOKEN_VARIABLE} to the same secret on all machines: openssl rand -hex 16"
        raise MissingRequirement("several machines need a token", remedy)
    if len(token) < MIN_TOKEN:
        raise BadInput(TOKEN_VARIABLE, "*" * len(token), f"must have {MIN_TOKEN} characters or more")
    return token.encode()


def tuned(sock: socket.socket) -> socket.socket:
    """Let a connection send small messages at once, and end within 2 s after its other machine does."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        sock.setsockopt(socket.IPPROTO_TCP, option, 1)
    # also instead of a number of keepalive probes
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, 2000)
    return sock


def authenticate(sock: socket.socket, token: bytes, caller: bool) -> None:
    """Show each other, by challenge and response, that both ends know the token. NotAuthentic, OSError if they don't.

    `caller`: this end has connected.
    """
    sock.settimeout(GREETING_S)
    # for all of it together, however slowly the other end sends
    deadline = time.monotonic() + GREETING_S
    # the side is part of the response: an end that doesn't know the token could send our own response back
    our_side = b"caller" if caller else b"listener"
    other_side = b"listener" if caller else b"caller"
    mine = os.urandom(_NONCE)
    sock.sendall(mine)
    theirs = _read(sock, _NONCE, deadline)
    sock.sendall(hmac.digest(token, our_side + mine + theirs, "sha256"))
    expected = hmac.digest(token, other_side + theirs + mine, "sha256")
    if not hmac.compare_digest(_read(sock, 32, deadline), expected):
        raise NotAuthentic("the other end has another token")
    sock.settimeout(GREETING_S)


def send_line(sock: socket.socket, data: dict[str, Any]) -> None:
    """Send a greeting."""
    sock.sendall(json.dumps(data).encode() + b"\n")


def read_line(sock: socket.socket) -> dict[str, Any]:
    """Return a greeting, reading nothing after it. NotAuthentic if it is none."""
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > _MAX_LINE:
            raise NotAuthentic("the other end sends no greeting")
        line += _read(sock, 1)
    try:
        data: dict[str, Any] = json.loads(line)
        return dict(data)
    except (ValueError, TypeError):
        raise NotAuthentic("the other end sends no greeting") from None


def _read(sock: socket.socket, size: int, deadline: float | None = None) -> bytes:
    data = b""
    while len(data) < size:
        if deadline is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the other end has closed the connection")
        data += part
    return data


def relay(first: socket.socket, second: socket.socket) -> None:
    """Copy what each of two connections sends to the other, in threads, until either ends; then both do."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    for ends in ((first, second), (second, first)):
        threading.Thread(target=copy, args=ends, daemon=True).start()


class RemoteWorker(Worker):
    """A worker on another machine, at the other end of a connection. It ends when the connection does.

    `is_vital`: the run can't go on without it, so every wait ends with its name once the connection is gone.
    `watched`: what its machine says of its process.
    """

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        *replies: type[Message],
        on_event: OnEvent | None = None,
        awaited: Collection[str] = (),
        is_vital: bool = False,
        watched: watch.WatchedElsewhere | None = None,
    ) -> None:
        self.name, self._on_event, self._awaited = name, on_event, frozenset(awaited)
        self._pipe = Pipe(sock, [*replies, Event, Failed], reads_ahead=on_event is not None, deadline_s=ANSWER_S)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - nothing: its output is on its machine
        self._answers: queue.Queue[Message | None] = queue.Queue()
        self._is_vital = is_vital
        self._is_ending = False
        self.watched = watched or watch.WatchedElsewhere()  # type: ignore[assignment]
        self._reader = threading.Thread(target=self._read, name=f"reads {name}", daemon=True) if on_event else None
        if self._reader:
            self._reader.start()

    def kill(self) -> None:
        """Close the connection, at which the process ends. What it has sent can still be received."""
        self._is_ending = True
        self.watched.release()
        with suppress(OSError):
            self._pipe.socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, deadline: float | None) -> Message | None:
        try:
            message = super()._receive(deadline)
        except OSError:
            if deadline is not None:
                raise
            # its machine doesn't answer
            message = None
        if message is None and self._is_vital and not self._is_ending:
            # before anyone sees that there is no answer
            watch.lose(self.name, "died, or its connection did")
        return message
