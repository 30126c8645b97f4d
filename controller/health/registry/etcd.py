"""The registry on etcd: the real server, started privately, and the link to it by its JSON gateway (etcd 3.4 or later).

Plain HTTP from the standard library: a put is one request, a watch one whose answer goes on, a line of JSON each time.
(etcd3gw speaks the same gateway, but its watch doesn't say when the connection has ended, waits for ever on a server
that hangs, and importing it imports eventlet where that is installed, as it is with os-ken.)
"""

import base64
import http.client
import json
import os
import socket
import subprocess
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import psutil

from railyard.core import watch
from railyard.core.errors import MissingRequirement, RailyardError
from railyard.core.host import SEARCH_PATH
from railyard.core.installation import INSTALL
from railyard.core.wait import poll

KEY: Final = "/railyard/scores"
PORTS: Final = range(2379, 2479)
START_S: Final = 10.0
OPTIONS: Final = (
    # one server alone is its own majority: an election that is due soon only makes it start sooner
    *("--heartbeat-interval", "20", "--election-timeout", "200"),
    # a document is put many times a second, and old ones are not needed
    *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"),
)


class EtcdServer:
    """A private etcd on 127.0.0.1, in the network namespace of its starter, with its data in `folder`.

    One that a crashed controller left running is ended first, and its successor takes over its data and address. `stop`
    kills it, as a crash would; `start` after that has the same address and data. The sandbox ends it with the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid_file: Final = folder / "pid"
        port = _kill_previous(self._pid_file)
        if port is None or not poll(partial(_is_free, port), START_S):
            # etcd's usual port, or the next that is free. Not one that the kernel gives: it draws clients' ports from
            # the same range, and a client that draws a stopped server's port connects to itself, and keeps it out
            port = next(filter(_is_free, PORTS), None)
        if port is None:
            raise RailyardError(f"no port from {PORTS.start} to {PORTS.stop - 1} of 127.0.0.1 is free for etcd")
        self._port: Final = port
        self._endpoint: Final = f"127.0.0.1:{self._port}"
        self.address = f"etcd:{self._endpoint}"
        self.process: subprocess.Popen[bytes] | None = None
        self._watched: watch.Watched | None = None

    def start(self) -> None:
        """Return when it answers. RailyardError with its last output, or MissingRequirement without an etcd."""
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        # 3.4 starts on 64-bit ARM only with this variable; other machines ignore it
        environment |= {"PATH": SEARCH_PATH, "ETCD_UNSUPPORTED_ARCH": "arm64"}
        # there is no other member to find it
        peer = "http://127.0.0.1:1"
        argv = ["etcd", "--data-dir", str(self._folder / "data"), "--listen-client-urls", f"http://{self._endpoint}"]
        argv += ["--advertise-client-urls", f"http://{self._endpoint}", "--listen-peer-urls", "http://127.0.0.1:0"]
        argv += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", *OPTIONS]
        log_file = self._folder / "etcd.log"
        with log_file.open("ab") as log:
            try:
                self.process = process = subprocess.Popen(
                    argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
            except FileNotFoundError:
                raise MissingRequirement("this machine lacks etcd", INSTALL) from None
        self._watched = watched = watch.add("etcd", process.pid)
        self._pid_file.write_text(f"{process.pid} {self._port}")
        if poll(lambda: self._answers() or watched.is_over(), START_S) and not watched.is_over():
            return
        self.stop()
        log_tail = log_file.read_text(errors="replace").strip().splitlines()[-1:]
        raise RailyardError(f"etcd did not start: {' '.join(log_tail)}")

    def stop(self) -> None:
        """SIGKILL. What it has acknowledged is on its disk."""
        if self._watched:
            self._watched.release()
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None
            self._pid_file.unlink(missing_ok=True)

    def _answers(self) -> bool:
        with suppress(OSError):
            _request(self._endpoint, "maintenance/status", {}, START_S)
            return True
        return False


def _kill_previous(pid_file: Path) -> int | None:
    """SIGKILL to the etcd whose process id is noted there; the port that it had, once its data is free."""
    with suppress(FileNotFoundError, psutil.NoSuchProcess):
        pid, port = map(int, pid_file.read_text().split())
        previous = psutil.Process(pid)
        if previous.name() != "etcd":
            return None
        previous.kill()
        # there may be no parent that reaps it
        poll(lambda: previous.status() == psutil.STATUS_ZOMBIE, START_S)
        return port
    return None


def _is_free(port: int) -> bool:
    """Whether a port can be bound: the last threads of a dead process keep its sockets for a moment."""
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


class EtcdLink:
    """A link to the etcd at `endpoint` (host:port)."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._publishing: http.client.HTTPConnection | None = None
        self._watching: http.client.HTTPConnection | None = None

    def publish(self, document: bytes, timeout_s: float) -> None:
        """Put the document, over a connection that is kept."""
        if self._publishing is None:
            self._publishing = http.client.HTTPConnection(self._endpoint, timeout=timeout_s)
        try:
            _post(self._publishing, "kv/put", {"key": _b64(KEY.encode()), "value": _b64(document)}).read()
        except OSError:
            self.close()
            raise

    def follow(self, timeout_s: float) -> Generator[bytes, None, None]:
        """Yield the documents of a watch, which begins before the first document is read: none is missed."""
        key = {"key": _b64(KEY.encode())}
        with closing(http.client.HTTPConnection(self._endpoint, timeout=timeout_s)) as connection:
            self._watching = connection
            events = _events(_post(connection, "watch", {"create_request": key}))
            next(events)  # none: it is there
            for entry in _request(self._endpoint, "kv/range", key, timeout_s).get("kvs", []):
                yield base64.b64decode(entry["value"])
            for batch in events:
                # only the last document of a batch counts: it replaces the earlier ones
                if batch:
                    yield base64.b64decode(batch[-1]["kv"].get("value", ""))

    def interrupt(self) -> None:
        """End waiting calls."""
        for connection in (self._publishing, self._watching):
            if connection and connection.sock:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection that is kept."""
        if self._publishing:
            self._publishing.close()
            self._publishing = None


def _post(connection: http.client.HTTPConnection, method: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    """Return the answer to a request. OSError if there is none, or its status is an error.

    `method`: path of the API below /v3, such as "kv/put".
    """
    try:
        connection.request("POST", f"/v3/{method}", json.dumps(body))
        answer = connection.getresponse()
    except http.client.HTTPException as error:
        raise OSError(f"etcd: {method}: {error!r}") from error
    if answer.status != http.client.OK:
        raise OSError(f"etcd: {method}: {answer.status} {answer.read(200)!r}")
    return answer


def _request(endpoint: str, method: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the answer to one request, over a connection of its own."""
    with closing(http.client.HTTPConnection(endpoint, timeout=timeout_s)) as connection:
        answer: dict[str, Any] = json.loads(_post(connection, method, body).read())
        return answer


def _events(answer: http.client.HTTPResponse) -> Iterator[list[dict[str, Any]]]:
    """The events of a watch, by line. OSError when it ends, which it never does by itself."""
    while True:
        try:
            line = answer.readline()
        except http.client.HTTPException as error:
            raise OSError(f"etcd: watch: {error!r}") from error
        result = _result(line)
        if not result or result.get("canceled"):
            raise OSError(f"etcd: the watch has ended: {line[:200]!r}")
        yield result.get("events", [])


@lru_cache(maxsize=4)
def _result(line: bytes) -> dict[str, Any]:
    """The result in a line of a watch; nothing if it is none. All watches of a process get the same line."""
    if not line:
        return {}
    result: dict[str, Any] = json.loads(line).get("result", {})
    return result


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
