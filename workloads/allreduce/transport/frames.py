"""Frames on a connection: a header, then its bytes, read to where they belong and sent from where they are.

What goes out is a queue of views of somebody's buffer, what comes in is received into the view that the reader names
after it saw the header. Only what comes together with a header, 2 KB at most, is copied there (and counted): so a small
frame is one system call.
"""

import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from railyard.workloads.allreduce.engine.buffers import Copies
from railyard.workloads.allreduce.engine.pace import Pacer

DATA: Final = 1
CONTROL: Final = 2
UNSENT_BYTES: Final = 64 * 1024
"""What the kernel holds of a connection before it goes out (TCP_NOTSENT_LOWAT): more would only wait there, unseen."""
_HEADER: Final = struct.Struct("!BBHIIIII")
_AT_ONCE: Final = 16  # views for one system call
_TURN_BYTES: Final = UNSENT_BYTES // 2  # then the kernel says when it wants more
_STAGE_BYTES: Final = 2048
_WORTH_WAKING: Final = 32 * 1024  # of a frame that long, the kernel tells when so much more has come (SO_RCVLOWAT)
_FAIR_BYTES: Final = 1 << 18  # then it's another connection's turn


class Broken(Exception):
    """The other end is gone, or closed."""


class Header(NamedTuple):
    """`op` and `task` say what the bytes belong to, `seq` which piece; `digest` is that of the operation.

    `dtype` is the code of the elements; `parts`: how many nodes' pieces an aggregator adds up to one.
    """

    kind: int
    dtype: int = 0
    parts: int = 0
    op: int = 0
    task: int = 0
    seq: int = 0
    digest: int = 0
    length: int = 0

    def pack(self) -> bytes:
        return _HEADER.pack(*self)


class Framed:
    """A connected, non-blocking socket.

    `place` is told a header and names the view to receive into (exactly `length` bytes); `took` is told when it's full.
    `due`: when there is something to send, the time from which on `flush` may send it.
    """

    def __init__(
        self,
        sock: socket.socket,
        place: Callable[[Header], memoryview],
        took: Callable[[Header, memoryview], None],
        pacer: Pacer | None = None,
        copies: Copies | None = None,
    ) -> None:
        self.sock = sock
        self.due = 0.0
        self.received_bytes = self.sent_bytes = 0
        self._copies = copies or Copies()
        self._place, self._took = place, took
        self._pacer = pacer
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0  # so far, what was sent included
        self._openings: deque[tuple[int, float]] = deque()  # at which byte a message begins, since when it could go
        self._stage, self._staged = memoryview(bytearray(_STAGE_BYTES)), 0
        self._header: Header | None = (
            None  # of the frame that is on its way into `_into`, of which `_at` bytes are there
        )
        self._into, self._at = self._stage, 0
        self._told_from = 1

    @property
    def idle(self) -> bool:
        """Nothing waits to be sent."""
        return not self._queue

    def put(self, header: Header, payload: memoryview | bytes, opens: bool = False) -> None:
        """Queue a frame. `payload` must stay as it is until sent. `opens`: it begins a message, which is set up."""
        if self._pacer is not None:
            now = time.monotonic()
            if not self._queue:
                self._pacer.rested(now)
            if opens:
                self._openings.append((self._queued_bytes, now))
        self._queue.append(memoryview(header.pack()))
        self._queued_bytes += _HEADER.size + header.length
        if header.length:
            self._queue.append(memoryview(payload))

    def flush(self) -> None:
        """Send a turn's bytes, or what the kernel takes, or what may go by now. Broken if the other end is gone."""
        left = _TURN_BYTES if self._pacer is None else self._allowed()
        if not left or not self._queue:
            return
        try:
            sent = self.sock.sendmsg(self._first(left))
        except BlockingIOError:
            return
        except OSError as problem:
            raise Broken(problem.strerror or str(problem)) from problem
        self.sent_bytes += sent
        if self._pacer is not None:
            self._pacer.spent(sent, time.monotonic())
            self._open_next()
        while self._queue and sent >= len(self._queue[0]):
            sent -= len(self._queue.popleft())
        if sent:
            self._queue[0] = self._queue[0][sent:]

    def _allowed(self) -> int:
        """Bytes that may go now."""
        self._open_next()
        if self.due > time.monotonic():
            return 0
        return min(_TURN_BYTES, self._openings[0][0] - self.sent_bytes) if self._openings else _TURN_BYTES

    def _open_next(self) -> None:
        """Begin the set-up of the message whose turn has come."""
        assert self._pacer is not None
        if self._openings and self._openings[0][0] == self.sent_bytes:
            self._pacer.opened(self._openings.popleft()[1])
        self.due = self._pacer.due

    def _first(self, size: int) -> list[memoryview]:
        """Views of the first `size` bytes of the queue, or somewhat less."""
        views = []
        for view in self._queue:
            views.append(view[:size])
            size -= len(view)
            if size <= 0 or len(views) == _AT_ONCE:
                break
        return views

    def read(self) -> None:
        """Receive what there is. Broken at its end."""
        self._receive()
        self._tell_from(0 if self._header is None else self._header.length - self._at)

    def _receive(self) -> None:
        budget = _FAIR_BYTES
        while budget > 0:
            into = self._stage[self._staged :] if self._header is None else self._into[self._at :]
            try:
                count = self.sock.recv_into(into)
            except BlockingIOError:
                return
            except OSError as problem:
                raise Broken(problem.strerror or str(problem)) from problem
            if count == 0:
                raise Broken("closed by the other end")
            self.received_bytes += count
            budget -= count
            if self._header is None:
                self._staged += count
                self._unpack()
            else:
                self._at += count
                self._look_if_full()
            if count < len(into):
                return  # that was all: the poller tells of more

    def _tell_from(self, missing: int) -> None:
        """Let the kernel wake us for a good part of what is missing, not for every packet."""
        wanted = min(missing, _WORTH_WAKING) if missing >= _WORTH_WAKING // 2 else 1
        if wanted != self._told_from:
            with suppress(OSError):  # sockets that can't (MPTCP of an older kernel) wake us more often
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._told_from = wanted

    def _unpack(self) -> None:
        """Take frames, and the beginning of one, out of the stage; no more once the connection was closed over one."""
        at = 0
        while self._staged - at >= _HEADER.size and self._header is None and self.sock.fileno() >= 0:
            self._header = header = Header._make(_HEADER.unpack_from(self._stage, at))
            at += _HEADER.size
            self._into, self._at = self._place(header), min(header.length, self._staged - at)
            self._into[: self._at] = self._stage[at : at + self._at]
            self._copies.staged += self._at
            at += self._at
            self._look_if_full()
        left = self._staged - at
        if left:
            self._stage[:left] = bytes(self._stage[at : self._staged])
        self._staged = left

    def _look_if_full(self) -> None:
        if self._header is not None and self._at == self._header.length:
            header, view = self._header, self._into
            self._header = None
            self._took(header, view)
