"""The embedded registry: a server thread in the controller, on a unix socket, and the link to it.

A client's first byte is its request: `p` to publish (lines; each is answered by a line's end once it is stored), `f` to
follow (the current document, then the newest whenever the last one has been sent, so a slow follower misses some). A
unix socket is found in the file system, from every network namespace.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import Any


class _Handler(StreamRequestHandler):
    """One connection, in a thread of its own."""

    server: "_Server"

    def handle(self) -> None:
        with suppress(OSError):  # the client has gone, or the server stops
            match self.rfile.read(1):
                case b"p":
                    for line in self.rfile:
                        self.server.store(line)
                        self.wfile.write(b"\n")
                case b"f":
                    number = 0
                    while found := self.server.newer_than(number):
                        number, line = found
                        self.wfile.write(line)


class _Server(ThreadingUnixStreamServer):
    """The last document, and its number among all."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, path: Path) -> None:
        self._condition = threading.Condition()
        self._number = 0
        self._line = b""
        self._stopped = False
        self._connections: set[socket.socket] = set()
        super().__init__(str(path), _Handler)

    def store(self, line: bytes) -> None:
        with self._condition:
            self._number, self._line = self._number + 1, line
            self._condition.notify_all()

    def newer_than(self, number: int) -> tuple[int, bytes] | None:
        """Wait for a document after this one; None when the server stops."""
        with self._condition:
            self._condition.wait_for(lambda: self._number > number or self._stopped)
            return None if self._stopped else (self._number, self._line)

    def finish_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            self._connections.discard(request)

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class SocketServer:
    """Server on `path` from `start` to `stop`, and again. Its document is lost when it stops."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self._path = path
        self._server: _Server | None = None

    def start(self) -> None:
        """OSError if the path can't be used, such as one of more than 107 bytes."""
        self._path.unlink(missing_ok=True)  # of one that was killed
        self._server = _Server(self._path)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="registry-server", daemon=True).start()

    def stop(self) -> None:
        """Close all connections."""
        if self._server:
            self._server.stop()
            self._server = None
            self._path.unlink(missing_ok=True)


class SocketLink:
    """A `registry.Link` to a SocketServer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._publishing: socket.socket | None = None
        self._following: socket.socket | None = None

    def publish(self, document: bytes, timeout_s: float) -> None:
        """Send the document, over a connection that is kept."""
        try:
            if self._publishing is None:
                self._publishing = self._connect(b"p", timeout_s)
            self._publishing.sendall(document + b"\n")
            if not self._publishing.recv(1):
                raise ConnectionResetError("the registry has gone")
        except OSError:
            self.close()
            raise

    def follow(self, timeout_s: float) -> Iterator[bytes]:
        """Yield the documents of the server."""
        with self._connect(b"f", timeout_s) as connection, connection.makefile("rb") as lines:
            self._following = connection
            yield from lines

    def interrupt(self) -> None:
        """End waiting calls."""
        for connection in (self._publishing, self._following):
            if connection:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self._publishing:
            self._publishing.close()
            self._publishing = None

    def _connect(self, request: bytes, timeout_s: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        with ExitStack() as on_error:
            on_error.callback(connection.close)
            connection.settimeout(timeout_s)
            connection.connect(self._path)
            connection.sendall(request)
            on_error.pop_all()
        return connection
