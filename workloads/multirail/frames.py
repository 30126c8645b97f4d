"""Frames on a connection: a header, then its bytes, read to where they belong and sent from where they are.

Nothing is copied here: what goes out is a queue of views of somebody's buffer, what comes in is received into the view
that the reader names after it saw the header.
"""

import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DATA: Final = 1
CONTROL: Final = 2
_HEADER: Final = struct.Struct("!BBHIIIII")
_AT_ONCE: Final = 16  # views for one system call
_FAIR_BYTES: Final = 1 << 20  # then it's another connection's turn


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
    """

    def __init__(
        self,
        sock: socket.socket,
        place: Callable[[Header], memoryview],
        took: Callable[[Header, memoryview], None],
    ) -> None:
        self.sock = sock
        self.moved_bytes = 0
        self._place, self._took = place, took
        self._queue: deque[memoryview] = deque()
        self._head = memoryview(bytearray(_HEADER.size))
        self._header: Header | None = None
        self._into, self._at = self._head, 0

    @property
    def idle(self) -> bool:
        """Nothing waits to be sent."""
        return not self._queue

    def put(self, header: Header, payload: memoryview | bytes) -> None:
        """Queue a frame. `payload` must stay as it is until sent."""
        self._queue.append(memoryview(header.pack()))
        if header.length:
            self._queue.append(memoryview(payload))

    def flush(self) -> None:
        """Send what the kernel takes. Broken if the other end is gone."""
        while self._queue:
            views = [self._queue[i] for i in range(min(_AT_ONCE, len(self._queue)))]
            try:
                sent = self.sock.sendmsg(views)
            except BlockingIOError:
                return
            except OSError as problem:
                raise Broken(problem.strerror or str(problem)) from problem
            self.moved_bytes += sent
            while self._queue and sent >= len(self._queue[0]):
                sent -= len(self._queue.popleft())
            if sent:
                self._queue[0] = self._queue[0][sent:]

    def read(self) -> None:
        """Receive what there is. Broken at its end."""
        budget = _FAIR_BYTES
        while budget > 0:
            try:
                count = self.sock.recv_into(self._into[self._at :])
            except BlockingIOError:
                return
            except OSError as problem:
                raise Broken(problem.strerror or str(problem)) from problem
            if count == 0:
                raise Broken("closed by the other end")
            self.moved_bytes += count
            self._at += count
            budget -= count
            if self._at == len(self._into):
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
