"""Frames on a connection: a header, then its bytes, read to where they belong and sent from where they are.

Nothing is copied here: what goes out is a queue of views of somebody's buffer, what comes in is received into the view
that the reader names after it saw the header.
"""

import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from workloads.multirail.pace import Pacer

DATA: Final = 1
CONTROL: Final = 2
UNSENT_BYTES: Final = 64 * 1024
"""What the kernel holds of a connection before it goes out (TCP_NOTSENT_LOWAT): more would only wait there, unseen."""
_HEADER: Final = struct.Struct("!BBHIIIII")
_AT_ONCE: Final = 16  # views for one system call
_TURN_BYTES: Final = UNSENT_BYTES // 2  # then the kernel says when it wants more
_FAIR_BYTES: Final = 1 << 18  # then it's another connection's turn


class Broken(Exception):
    """The other end is gone, or closed."""


@dataclass(frozen=True, slots=True)
class Header:
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
        return _HEADER.pack(self.kind, self.dtype, self.parts, self.op, self.task, self.seq, self.digest, self.length)


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
    ) -> None:
        self.sock = sock
        self.due = 0.0
        self.received_bytes = self.sent_bytes = 0
        self._place, self._took = place, took
        self._pacer = pacer
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0  # so far, what was sent included
        self._openings: deque[tuple[int, float]] = deque()  # at which byte a message begins, since when it could go
        self._head = memoryview(bytearray(_HEADER.size))
        self._header: Header | None = None
        self._into, self._at = self._head, 0

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
            self.due = self._pacer.free_at
        while self._queue and sent >= len(self._queue[0]):
            sent -= len(self._queue.popleft())
        if sent:
            self._queue[0] = self._queue[0][sent:]

    def _allowed(self) -> int:
        """Bytes that may go now."""
        assert self._pacer is not None
        if self._openings and self._openings[0][0] == self.sent_bytes:
            self._pacer.opened(self._openings.popleft()[1])
        self.due = self._pacer.free_at
        if self.due > time.monotonic():
            return 0
        return min(_TURN_BYTES, self._openings[0][0] - self.sent_bytes) if self._openings else _TURN_BYTES

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
        budget = _FAIR_BYTES
        while budget > 0:
            wanted = len(self._into) - self._at
            try:
                count = self.sock.recv_into(self._into[self._at :])
            except BlockingIOError:
                return
            except OSError as problem:
                raise Broken(problem.strerror or str(problem)) from problem
            if count == 0:
                raise Broken("closed by the other end")
            self.received_bytes += count
            self._at += count
            budget -= count
            if count < wanted:
                return  # that was all: the poller tells of more
            self._filled()

    def _filled(self) -> None:
        if self._header is None:
            header = Header(*_HEADER.unpack(self._head))
            if header.length:
                self._header, self._into, self._at = header, self._place(header), 0
                return
            self._into, self._at = self._head, 0
            self._place(header)
            self._took(header, memoryview(bytearray()))
        else:
            header, view = self._header, self._into
            self._header, self._into, self._at = None, self._head, 0
            self._took(header, view)
