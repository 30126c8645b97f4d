"""Many connections served by one thread: what comes in is read, what may go out is sent, each in turn."""

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Final

from railyard.workloads.allreduce.transport.frames import Broken, Framed, Header

_SELECT_MAX_FDS: Final = 1024
"""FD_SETSIZE: select refuses file numbers from here on."""


class Links:
    """`broke(link, why)` is told of a connection that is gone, when it is no longer served."""

    def __init__(self, on_disconnect: Callable[[Framed, str], None]) -> None:
        self._on_disconnect = on_disconnect
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._links: dict[int, Framed] = {}  # by file number
        self._writing: set[int] = set()
        self._delayed: dict[int, Framed] = {}  # have something to send that may not go yet

    def listen(self, sock: socket.socket) -> None:
        """`poll` returns True when somebody calls."""
        self._epoll.register(sock, select.EPOLLIN)

    def add(self, link: Framed) -> None:
        self._links[link.sock.fileno()] = link
        self._epoll.register(link.sock, select.EPOLLIN)

    def remove(self, link: Framed) -> bool:
        """Serve it no longer; False if it wasn't served. It stays open."""
        fd = link.sock.fileno()
        if self._links.get(fd) is not link:
            return False
        del self._links[fd]
        self._writing.discard(fd)
        self._delayed.pop(fd, None)
        self._epoll.unregister(link.sock)
        return True

    def put(self, link: Framed, header: Header, view: memoryview | bytes, starts_message: bool = False) -> None:
        """Queue a frame, and send what may go at once; nothing of a connection that is gone."""
        if self._links.get(link.sock.fileno()) is link:
            was_idle = link.idle
            link.put(header, view, starts_message)
            if was_idle:
                self._flush(link)

    def poll(self, timeout_s: float) -> bool:
        """Serve what comes within `timeout_s` seconds. Whether somebody called a listener."""
        called = False
        for fd, events in self._events(timeout_s):
            link = self._links.get(fd)
            if link is None:
                if fd == self._wake:
                    os.eventfd_read(fd)
                else:
                    called = True
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
            for link in [link for link in self._delayed.values() if link.next_send_at <= now]:
                self._flush(link)
        return called

    def wake(self) -> None:
        """From another thread: let `poll` return."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wake)

    def _events(self, timeout_s: float) -> list[tuple[int, int]]:
        if not self._delayed:
            return self._epoll.poll(timeout_s)
        timeout_s = min(timeout_s, min(link.next_send_at for link in self._delayed.values()) - time.monotonic())
        if (
            self._epoll.fileno() >= _SELECT_MAX_FDS
        ):  # of a process with many files open: what is held waits a bit longer
            return self._epoll.poll(max(0.0, timeout_s))
        if timeout_s > 0 and not select.select([self._epoll], [], [], timeout_s)[0]:
            return []  # epoll counts in whole milliseconds, select in microseconds
        return self._epoll.poll(0)

    def _flush(self, link: Framed) -> None:
        try:
            link.flush()
        except Broken as problem:
            self._drop(link, str(problem))
            return
        fd = link.sock.fileno()
        delayed = not link.idle and link.next_send_at > time.monotonic()
        if delayed:
            self._delayed[fd] = link
        else:
            self._delayed.pop(fd, None)
        writes = not link.idle and not delayed
        if writes != (fd in self._writing):
            (self._writing.add if writes else self._writing.discard)(fd)
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if writes else 0))

    def _drop(self, link: Framed, why: str) -> None:
        if self.remove(link):
            self._on_disconnect(link, why)
