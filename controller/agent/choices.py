"""Choices of the agents at the moment, served over a unix socket to programs in the run's sandbox: a line each way."""

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path as File
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import Any, Final

from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.forwarding import Path, Shares

SOCKET: Final = File("/run/railyard/choices.sock")
ANSWER_S: Final = 5.0

Chosen = Callable[[Gpu, Gpu], Shares | None]


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128  # a full queue refuses a unix socket's call at once; 5 is soon full


class ChoiceServer:
    """Server of what `chosen(src, dst)` returns: None while no policy steers."""

    def __init__(self, chosen: Chosen) -> None:
        class Handler(StreamRequestHandler):
            def handle(self) -> None:
                src, dst = map(gpu_of_name, self.rfile.readline().decode().split())
                shares = chosen(src, dst)
                answer = None if shares is None else [[share.path.kind, share.path.rail] for share in shares]
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._handler: type[StreamRequestHandler] = Handler

    def start(self) -> None:
        """Listen, and answer from a thread."""
        SOCKET.parent.mkdir(parents=True, exist_ok=True)
        SOCKET.unlink(missing_ok=True)
        server = _Server(str(SOCKET), self._handler)
        threading.Thread(target=server.serve_forever, name="choices", daemon=True).start()


def ask(src: Gpu, dst: Gpu) -> list[Path] | None:
    """Return the paths that `src` chose for `dst`, () if there is none; None while no policy steers."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        try:
            sock.connect(str(SOCKET))
            sock.sendall(f"{src.name} {dst.name}\n".encode())
            line = sock.makefile().readline()
        except (FileNotFoundError, ConnectionError):  # there are no agents, or they die while they are asked
            return None
    answer: list[Any] | None = json.loads(line or "null")
    return None if answer is None else [Path(kind, rail) for kind, rail in answer]
