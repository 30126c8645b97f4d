"""Connections that carry frames, each with the pace of its rail, served by one thread.

What goes out is a queue of views of the callers' buffers; what comes in is received into the view that the reader names
after it saw the header. Only what comes together with a header, 2 KB at most, is copied there.
"""

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from railyard.workloads.allreduce.tasks import Copies

Message = dict[str, Any]  # control message, as JSON on the wire
# that a sender which ran late may catch up: a rail's own processor would not have been late
CATCH_UP_S: Final = 0.005
# over a link that is the bottleneck: what its TCP window holds (topologies/multirail/commands.py)
LEAD_S: Final = 0.03
DATA = 1
CONTROL = 2
# that the kernel holds before they go out (TCP_NOTSENT_LOWAT): more would only wait
UNSENT_BYTES: Final = 64 * 1024
_HEADER: Final = struct.Struct("!BBHIIIII")
_MAX_VIEWS: Final = 16  # of one system call
# after that the kernel tells when it takes more
_MAX_SEND_BYTES: Final = UNSENT_BYTES // 2
_STAGING_BYTES: Final = 2048
# of a frame that long, the kernel wakes when so much more has come
_MAX_LOW_WATER_BYTES: Final = 32 * 1024
# after that the other connections have their turn
_MAX_READ_BYTES: Final = 1 << 18
# FD_SETSIZE: select refuses file numbers from here on
_SELECT_MAX_FDS: Final = 1024


@dataclass
class Pacer:
    """Pace of one connection's sending end: the set-up of each message, and the cost of each byte. Pure.

    Source: Nezha Eq. 2 and section 2.3. `free_at` is when the slower of processor and link has finished all that it was
    given. A message's set-up begins then.
    """

    setup_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    link_s_per_byte: float = 0.0
    free_at: float = 0.0
    _setup_ends_at: float = 0.0

    @property
    def next_send_at(self) -> float:
        """Time from which the next bytes may be sent."""
        # Bytes may be sent as the processor finishes them, and earlier where the link is the slower one, so that the
        # link does not idle when a sender is late.
        lead_s = LEAD_S if self.link_s_per_byte >= self.cpu_s_per_byte else 0.0
        return max(self._setup_ends_at, self.free_at - lead_s)

    def start_message(self, ready_at: float) -> None:
        """Begin the set-up of a message that could be sent from `ready_at` on, after all that is ahead of it."""
        self._setup_ends_at = self.free_at = max(self.free_at, ready_at) + self.setup_s

    def note_sent(self, size: int, now: float) -> None:
        """Note that bytes were sent."""
        self.free_at = max(self.free_at, now - CATCH_UP_S) + size * max(self.cpu_s_per_byte, self.link_s_per_byte)


class Broken(Exception):
    """End of a connection: the other end is gone, or closed it."""


class Header(NamedTuple):
    """Header of a frame: `op` and `task` name what the bytes belong to, `seq` the piece; `digest` the operation's call.

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
        """Return the bytes on the wire."""
        return _HEADER.pack(*self)


class Framed:
    """Frames over a connected, non-blocking socket.

    `buffer_for(header)` returns the view to receive into (exactly `length` bytes); `on_received(header, view)` is
    called when it is full. `next_send_at`: when there is something to send, the time from which `flush` may send it.
    """

    def __init__(
        self,
        sock: socket.socket,
        buffer_for: Callable[[Header], memoryview],
        on_received: Callable[[Header, memoryview], None],
        pacer: Pacer | None = None,
        copies: Copies | None = None,
    ) -> None:
        self.sock = sock
        self.next_send_at = 0.0
        self.received_bytes = self.sent_bytes = 0
        self._copies = copies or Copies()
        self._buffer_for = buffer_for
        self._on_received = on_received
        self._pacer = pacer
        self._queue: deque[memoryview] = deque()
        # so far, with what was sent
        self._queued_bytes = 0
        # byte of each message's start, since when it is ready
        self._message_starts: deque[tuple[int, float]] = deque()
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._staged_bytes = 0
        # of the frame that is received into `_target`, `_filled_bytes` so far
        self._header: Header | None = None
        self._target = self._staging
        self._filled_bytes = 0
        self._low_water = 1

    @property
    def idle(self) -> bool:
        """True if nothing waits to be sent."""
        return not self._queue

    def put(self, header: Header, payload: memoryview | bytes, starts_message: bool = False) -> None:
        """Queue a frame. `payload` must not change until it is sent. `starts_message`: it waits for a set-up."""
        if self._pacer is not None:
            now = time.monotonic()
            if not self._queue:
                # nothing waited until now
                self._pacer.free_at = max(self._pacer.free_at, now)
            if starts_message:
                self._message_starts.append((self._queued_bytes, now))
        self._queue.append(memoryview(header.pack()))
        self._queued_bytes += _HEADER.size + header.length
        if header.length:
            self._queue.append(memoryview(payload))

    def flush(self) -> None:
        """Send a turn's bytes, or what the kernel takes, or what may go by now. Broken if the other end is gone."""
        budget = _MAX_SEND_BYTES
        if self._pacer is not None:
            self._start_next_message()
            if self.next_send_at > time.monotonic():
                return
            if self._message_starts:
                budget = min(budget, self._message_starts[0][0] - self.sent_bytes)
        if not budget or not self._queue:
            return
        try:
            sent = self.sock.sendmsg(self._views(budget))
        except BlockingIOError:
            return
        except OSError as problem:
            raise Broken(problem.strerror or str(problem)) from problem
        self.sent_bytes += sent
        if self._pacer is not None:
            self._pacer.note_sent(sent, time.monotonic())
            self._start_next_message()
        while self._queue and sent >= len(self._queue[0]):
            sent -= len(self._queue.popleft())
        if sent:
            self._queue[0] = self._queue[0][sent:]

    def _views(self, budget: int) -> list[memoryview]:
        """Return the first bytes of the queue: at most `budget`, in as many parts as one call may have."""
        views = []
        for view in self._queue:
            views.append(view[:budget])
            budget -= len(view)
            if budget <= 0 or len(views) == _MAX_VIEWS:
                break
        return views

    def read(self) -> None:
        """Receive what there is. Broken at its end."""
        budget = _MAX_READ_BYTES
        while budget > 0:
            target = self._target[self._filled_bytes :]
            if self._header is None:
                target = self._staging[self._staged_bytes :]
            try:
                count = self.sock.recv_into(target)
            except BlockingIOError:
                break
            except OSError as problem:
                raise Broken(problem.strerror or str(problem)) from problem
            if count == 0:
                raise Broken("closed by the other end")
            self.received_bytes += count
            budget -= count
            if self._header is None:
                self._staged_bytes += count
                self._unpack()
            else:
                self._filled_bytes += count
                self._finish_if_full()
            if count < len(target):
                # that was all; the poller tells of more
                break
        missing = 0 if self._header is None else self._header.length - self._filled_bytes
        # let the kernel wake this process for a good part of what is missing, not for every packet
        low_water = min(missing, _MAX_LOW_WATER_BYTES) if missing >= _MAX_LOW_WATER_BYTES // 2 else 1
        if low_water != self._low_water:
            # sockets that can't (MPTCP of an older kernel) wake it more often
            with suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water

    def _start_next_message(self) -> None:
        assert self._pacer is not None
        if self._message_starts and self._message_starts[0][0] == self.sent_bytes:
            self._pacer.start_message(self._message_starts.popleft()[1])
        self.next_send_at = self._pacer.next_send_at

    def _unpack(self) -> None:
        """Take the frames out of the staging buffer; no more once a frame has led to closing the connection."""
        at = 0
        while self._staged_bytes - at >= _HEADER.size and self._header is None and self.sock.fileno() >= 0:
            self._header = header = Header._make(_HEADER.unpack_from(self._staging, at))
            at += _HEADER.size
            self._target, self._filled_bytes = self._buffer_for(header), min(header.length, self._staged_bytes - at)
            self._target[: self._filled_bytes] = self._staging[at : at + self._filled_bytes]
            self._copies.staged += self._filled_bytes
            at += self._filled_bytes
            self._finish_if_full()
        unread = self._staged_bytes - at
        if unread:
            self._staging[:unread] = bytes(self._staging[at : self._staged_bytes])
        self._staged_bytes = unread

    def _finish_if_full(self) -> None:
        if self._header is not None and self._filled_bytes == self._header.length:
            header = self._header
            view = self._target
            self._header = None
            self._on_received(header, view)


class Links:
    """Many connections served by one thread, which also watches listening sockets.

    `on_disconnect(link, why)`: it is gone, and no longer served.
    """

    def __init__(self, on_disconnect: Callable[[Framed, str], None], listening: Iterable[socket.socket] = ()) -> None:
        self._on_disconnect = on_disconnect
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        for sock in listening:
            self._epoll.register(sock, select.EPOLLIN)
        self._links: dict[int, Framed] = {}  # by file number
        self._writing: set[int] = set()
        # have something to send that may not go yet
        self._delayed: dict[int, Framed] = {}

    def add(self, link: Framed) -> None:
        """Serve a connection."""
        self._links[link.sock.fileno()] = link
        self._epoll.register(link.sock, select.EPOLLIN)

    def remove(self, link: Framed) -> bool:
        """Stop serving a connection, which stays open. Return False if it was not served."""
        fd = link.sock.fileno()
        if self._links.get(fd) is not link:
            return False
        del self._links[fd]
        self._writing.discard(fd)
        self._delayed.pop(fd, None)
        self._epoll.unregister(link.sock)
        return True

    def put(self, link: Framed, header: Header, view: memoryview | bytes, starts_message: bool = False) -> None:
        """Queue a frame, and send what may go at once; do nothing for a connection that is gone."""
        if self._links.get(link.sock.fileno()) is link:
            was_idle = link.idle
            link.put(header, view, starts_message)
            if was_idle:
                self._flush(link)

    def poll(self, timeout_s: float) -> bool:
        """Serve what comes within `timeout_s` seconds. Return whether a connection waits at a listener."""
        has_waiting = False
        for fd, events in self._events(timeout_s):
            link = self._links.get(fd)
            if link is None:
                if fd == self._wake:
                    os.eventfd_read(fd)
                else:
                    has_waiting = True
                continue
            if events & ~select.EPOLLOUT:
                try:
                    link.read()
                except Broken as problem:
                    self._drop(link, str(problem))
            if events & select.EPOLLOUT and fd in self._writing:
                self._flush(link)
        if self._delayed:
            now = time.monotonic()
            for link in list(self._delayed.values()):
                if link.next_send_at <= now:
                    self._flush(link)
        return has_waiting

    def wake(self) -> None:
        """Let `poll` return; called from another thread."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Stop serving; connections stay open."""
        self._epoll.close()
        os.close(self._wake)

    def _events(self, timeout_s: float) -> list[tuple[int, int]]:
        if not self._delayed:
            return self._epoll.poll(timeout_s)
        next_send_at = min(link.next_send_at for link in self._delayed.values())
        timeout_s = min(timeout_s, next_send_at - time.monotonic())
        if self._epoll.fileno() >= _SELECT_MAX_FDS:
            # what is held waits a bit longer then
            return self._epoll.poll(max(0.0, timeout_s))
        if timeout_s > 0 and not select.select([self._epoll], [], [], timeout_s)[0]:
            # epoll counts in whole milliseconds, select in microseconds
            return []
        return self._epoll.poll(0)

    def _flush(self, link: Framed) -> None:
        try:
            link.flush()
        except Broken as problem:
            self._drop(link, str(problem))
            return
        fd = link.sock.fileno()
        idle = link.idle
        delayed = not idle and link.next_send_at > time.monotonic()
        if delayed:
            self._delayed[fd] = link
        else:
            self._delayed.pop(fd, None)
        writes = not idle and not delayed
        if writes != (fd in self._writing):
            events = select.EPOLLIN
            if writes:
                self._writing.add(fd)
                events |= select.EPOLLOUT
            else:
                self._writing.discard(fd)
            self._epoll.modify(fd, events)

    def _drop(self, link: Framed, why: str) -> None:
        if self.remove(link):
            self._on_disconnect(link, why)
