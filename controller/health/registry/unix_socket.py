"""The embedded registry: a server thread in the controller, on a unix socket, and the link to it.

A client's first byte is its request: `p` to publish (lines; each is answered by a line's end once it is stored), `f` to
follow (the current document, then the newest whenever the last one has been sent, so a slow follower misses some). A
unix socket is found in the file system, from every network namespace.
"""

import socket
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer


class UnixServer(ThreadingUnixStreamServer):
    """Server on a unix socket, with a daemon thread for each connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # a full queue refuses a unix socket's call at once; 5 is soon full


class _Server(UnixServer):
    """The last document, and its number among all."""

    def __init__(self, path: Path) -> None:
        self.condition = threading.Condition()
        self.number = 0
        self.line = b""
        self.stopped = False
        self.connections: set[socket.socket] = set()
        super().__init__(str(path), _Handler)


class _Handler(StreamRequestHandler):
    """One connection, in a thread of its own."""

    server: _Server

    def handle(self) -> None:
        server = self.server
        number = 0
        server.connections.add(self.connection)
        # the client has gone, or the server stops
        with suppress(OSError):
            request = self.rfile.read(1)
            for line in self.rfile if request == b"p" else ():
                with server.condition:
                    server.number = server.number + 1
                    server.line = line
                    server.condition.notify_all()
                self.wfile.write(b"\n")
            while request == b"f":
                with server.condition:
                    while server.number == number and not server.stopped:
                        server.condition.wait()
                    if server.stopped:
                        break
                    number = server.number
                    line = server.line
                self.wfile.write(line)
        server.connections.discard(self.connection)


class SocketServer:
    """Server on `path` from `start` to `stop`, and again. Its document is lost when it stops."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self._path = path
        self._server: _Server | None = None

    def start(self) -> None:
        """OSError if the path can't be used, such as one of more than 107 bytes."""
        # of one that was killed
        self._path.unlink(missing_ok=True)
        self._server = _Server(self._path)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="registry-server", daemon=True).start()

    def stop(self) -> None:
        """Close all connections."""
        server = self._server
        self._server = None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        with server.condition:
            server.stopped = True
            server.condition.notify_all()
        for connection in list(server.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._path.unlink(missing_ok=True)


class SocketLink:
    """A link to a SocketServer (client.py)."""

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

    def follow(self, timeout_s: float) -> Generator[bytes, None, None]:
        """Yield the documents of the server."""
        with self._connect(b"f", timeout_s) as connection, connection.makefile("rb") as lines:
            self._following = connection
            yield from lines

    def interrupt(self) -> None:
        """End waiting calls of both, from another thread."""
        for connection in filter(None, (self._publishing, self._following)):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection that is kept."""
        if self._publishing:
            self._publishing.close()
            self._publishing = None

    def _connect(self, request: bytes, timeout_s: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(self._path)
            connection.sendall(request)
        except OSError:
            connection.close()
            raise
        return connection
