"""Connections that the other machines of a run make to the first: of their agents, workers and switches.

They are accepted in the first machine's own network namespace, of which the sandbox has an open file.
"""

import queue
import socket
import threading
from contextlib import suppress
from typing import Any, Final

from railyard.controller.processes.clients import ADDRESS
from railyard.core.errors import BadInput, RailyardError
from railyard.core.remote import NotAuthentic, authenticate, read_line, relay, tuned
from railyard.topologies.build import namespaces

WORKER_S: Final = 30.0
MAX_GREETINGS: Final = 64
"""Connections that are being authenticated: further ones wait, so that strangers can't use up files and threads."""


class Server:
    """Takes connections of the other machines: of agents, which wait in `joining`, of workers, and of switches."""

    def __init__(self, address: tuple[str, int], machine_net: int, token: bytes) -> None:
        self._token = token
        self.joining: queue.Queue[tuple[socket.socket, dict[str, Any]]] = queue.Queue()
        self._workers: dict[int, queue.Queue[socket.socket]] = {}
        # number of callers without the token
        self.strangers = 0
        self._greetings = threading.Semaphore(MAX_GREETINGS)
        with namespaces.inside_machine(machine_net):
            try:
                self._listener = socket.create_server(address)
            except OSError as error:
                raise BadInput(
                    "underlay.port", address[1], f"can't be used at {address[0]}: {error.strerror}"
                ) from None
        threading.Thread(target=self._accept, name="accepts machines", daemon=True).start()

    def worker(self, number: int) -> socket.socket:
        """Return the connection of the worker of that number."""
        try:
            return self._workers.setdefault(number, queue.Queue()).get(timeout=WORKER_S)
        except queue.Empty:
            raise RailyardError(f"a replay worker on another machine did not connect in {WORKER_S:g} s") from None

    def close(self) -> None:
        """Accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        # the connection may be closed
        with suppress(OSError):
            while True:
                self._greetings.acquire()
                sock, _ = self._listener.accept()
                threading.Thread(target=self._greet, args=(sock,), daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        try:
            authenticate(sock, self._token, caller=False)
            greeting = read_line(sock)
            tuned(sock)
            match greeting.get("role"):
                case "join":
                    self.joining.put((sock, greeting))
                case "worker":
                    self._workers.setdefault(int(greeting["number"]), queue.Queue()).put(sock)
                case "openflow":
                    relay(sock, tuned(socket.create_connection(ADDRESS)))
                case _:
                    sock.close()
        except (OSError, RailyardError) as error:
            self.strangers += isinstance(error, NotAuthentic)
            sock.close()
        finally:
            self._greetings.release()
