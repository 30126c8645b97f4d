"""Discovery of live runs: a run's launcher listens on an abstract Unix socket.

Such a socket has no file, and the kernel closes it with its process: nothing goes stale, and `kill -9` leaves nothing.
Any user may listen under such a name, so the name proves nothing; what counts is the listening user, whom the kernel
reports (SO_PEERCRED). Only the same user and root get an answer.
"""

import os
import re
import secrets
import select
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from railyard.core.sandbox.front import is_stopped

_NAME: Final = re.compile(rb"@(railyard/(\d{1,10})/[0-9a-f]{16})$")
_CREDENTIALS: Final = struct.Struct("iII")
_SO_PEERPIDFD: Final = 77  # since Linux 6.5
_LONGEST: Final = 8192
_MOST: Final = 512
# a user who listens more often than this only hides runs of that user
_MOST_OF_A_USER: Final = 64
_OWN_S: Final = 5.0
# a process of another user could delay commands of root for longer
_OTHERS_S: Final = 1.0


class RunSocket:
    """Context in which other commands can find the run. They receive `text`; if it is empty, there is no socket."""

    def __init__(self, text: str) -> None:
        self._text = text.encode(errors="surrogateescape")[:_LONGEST]
        self._listener: socket.socket | None = None

    def __enter__(self) -> "RunSocket":
        if self._text:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._listener.bind(f"\0railyard/{os.geteuid()}/{secrets.token_hex(8)}")
            self._listener.listen(128)
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener:
            self._listener.close()

    @property
    def waiting(self) -> list[socket.socket]:
        """Sockets to wait for with `select`; then call `answer`."""
        return [self._listener] if self._listener else []

    def answer(self) -> None:
        """Answer one process. It never blocks: the text fits into the socket's buffer."""
        if not self._listener:
            return
        with suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                if _peer(connection)[1] in (0, os.geteuid()):
                    connection.send(self._text, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A process that listens. `pid`, `pidfd`, `uid` and `gid` are from the kernel, `text` is from the process.

    It has no text if it is stopped.
    """

    pid: int
    pidfd: int
    uid: int
    gid: int
    text: str


def announcements() -> list[Announcement]:
    """Return this user's live runs; for root, all users' runs. The caller closes the pidfds."""
    matches = filter(None, map(_NAME.search, Path("/proc/net/unix").read_bytes().splitlines()))
    # with the user that each claims
    names = sorted({(b"\0" + match[1], int(match[2])) for match in matches})
    user = os.geteuid()
    own_names = [name for name, claimed in names if claimed == user]
    other_names: list[bytes] = []
    if user == 0:
        other_names = [name for name, claimed in names if claimed != user]
    return _ask(own_names, _OWN_S) + _ask(other_names, _OTHERS_S)


def _ask(names: list[bytes], within_s: float) -> list[Announcement]:
    """Ask all at once. A process is left out whose user is another than its name claims, or which doesn't answer."""
    waiting: dict[socket.socket, Announcement] = {}
    answered: list[Announcement] = []
    counts: Counter[int] = Counter()
    for name in names:
        if len(waiting) >= _MOST:
            break
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            announcement = _connect(sock, name, counts)
        except OSError:
            sock.close()
            continue
        if is_stopped(announcement.pid):
            answered.append(announcement)
            sock.close()
        else:
            waiting[sock] = announcement
    return answered + _answers(waiting, time.monotonic() + within_s)


def _connect(sock: socket.socket, name: bytes, counts: Counter[int]) -> Announcement:
    """Connect to a process. PermissionError if its user isn't the one that its name claims, or has too many.

    `counts`: how many each user has so far.
    """
    sock.connect(name)
    pid, uid, gid = _peer(sock)
    if pid <= 0 or name.split(b"/")[1] != str(uid).encode():
        raise PermissionError(name)
    counts[uid] += 1
    if counts[uid] > _MOST_OF_A_USER and uid != os.geteuid():
        raise PermissionError(name)
    return Announcement(pid, _peer_pidfd(sock, pid), uid, gid, "")


def _answers(waiting: dict[socket.socket, Announcement], deadline_s: float) -> list[Announcement]:
    """Return those that have sent a whole text by the deadline. All sockets are closed, and the pidfds of others."""
    texts = dict.fromkeys(waiting, b"")
    answered = []
    while waiting and (remaining_s := deadline_s - time.monotonic()) > 0:
        for sock in select.select(list(waiting), [], [], remaining_s)[0]:
            part = b""
            with suppress(OSError):
                part = sock.recv(_LONGEST + 1)
            texts[sock] += part
            if part and len(texts[sock]) <= _LONGEST:
                continue
            announcement = waiting.pop(sock)
            sock.close()
            if texts[sock] and not part:
                text = texts[sock].decode(errors="surrogateescape")
                answered.append(replace(announcement, text=text))
            else:
                os.close(announcement.pidfd)
    for sock, announcement in waiting.items():
        sock.close()
        os.close(announcement.pidfd)
    return answered


def _peer(sock: socket.socket) -> tuple[int, int, int]:
    """PID, user and group of the process at the other end."""
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


def _peer_pidfd(sock: socket.socket, pid: int) -> int:
    with suppress(OSError):
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    return os.pidfd_open(pid)
