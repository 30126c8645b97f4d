"""Client of a registry of scores, for a controller or a GPU's agent: `put`, `watch`, `get`, `close`, and a local cache.

There are two kinds of server: embedded in the controller, on a unix socket (unix_socket.py), and etcd (etcd.py). A link
to either publishes a document and follows those that others publish; any failure is an OSError. docs/health-registry.md
has the protocol. All scores are one JSON document, replaced as a whole, since a decision compares scores of one moment:
{"writer": 81624593, "version": 7, "rails": [90, 12, 100], "domains": [100, 85], "spine": 100, "sorted": [1, 0, 2]}.
`writer`: when (monotonic ns) its writer began, so that the documents of a restarted controller are newer.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import lru_cache
from typing import Final, NamedTuple

from railyard.controller.health.policy import Scores
from railyard.controller.health.registry.etcd import EtcdLink
from railyard.controller.health.registry.unix_socket import SocketLink


class Document(NamedTuple):
    """One state of all scores. If there are two, the one with the later (writer, version) counts."""

    writer: int
    scores: Scores

    @property
    def order(self) -> tuple[int, int]:
        """Key that sorts documents from old to new."""
        return self.writer, self.scores.version


def encode(document: Document) -> bytes:
    """One line, without its end."""
    scores = document.scores
    data = {"writer": document.writer, "version": scores.version, "rails": scores.rails, "domains": scores.domains}
    data |= {"spine": scores.spine, "sorted": [rail for _, rail in scores.sorted_rails]}
    return json.dumps(data).encode()


@lru_cache(maxsize=4)
def decode(line: bytes) -> Document:
    """The inverse of `encode`. ValueError for anything else. All agents of a process share the result for a line."""
    try:
        data = json.loads(line)
        scores = Scores(tuple(data["rails"]), tuple(data["domains"]), data["spine"], data["version"])
        # kept by the cached property, so that it is sorted once
        vars(scores)["sorted_rails"] = tuple((scores.rails[rail], rail) for rail in data["sorted"])
        return Document(data["writer"], scores)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a document of scores: {line[:80]!r}") from error


# one may come late, and two be lost, before a cache is stale
REFRESHES_PER_TIMEOUT: Final = 4
FIRST_RETRY_S: Final = 0.01
LAST_RETRY_S: Final = 0.25


class View(NamedTuple):
    """State of a cache: the last scores (None before the first), and whether they are stale."""

    scores: Scores | None
    stale: bool


Link = SocketLink | EtcdLink


class Registry:
    """A client of a registry, with its cache.

    `stale_s`: seconds without a message after which it is stale.
    """

    def __init__(self, link: Link, stale_s: float = 1.0) -> None:
        self._link = link
        self._stale_s = stale_s
        self._writer = time.monotonic_ns()
        self._condition = threading.Condition()
        self._to_send: bytes | None = None
        self._sent: bytes | None = None
        self._closed = False
        # views reach callbacks one at a time, and none out of order
        self._callback_lock = threading.RLock()
        self._callbacks: list[Callable[[View], None]] = []
        self._last: Document | None = None
        self._received_s = -float("inf")
        self._reported_stale = True
        self._threads = [_start(self._follow_loop, "registry-follow")]

    def put(self, scores: Scores) -> None:
        """Publish these scores. Returns at once."""
        with self._condition:
            first = self._to_send is None
            self._to_send = encode(Document(self._writer, scores))
            self._condition.notify_all()
        if first:
            self._threads.append(_start(self._publish_loop, "registry-publish"))

    def watch(self, callback: Callable[[View], None]) -> None:
        """Call back with the current view, if there is one, and whenever scores or staleness change.

        The callback runs in a thread of the registry's, which receives nothing until it returns. It must not raise.
        """
        with self._callback_lock:
            self._callbacks.append(callback)
            if self._last is not None:
                callback(View(self._last.scores, self._reported_stale))

    def get(self) -> View:
        """Return the current view, without asking or waiting."""
        last = self._last
        return View(last.scores if last else None, time.monotonic() - self._received_s > self._stale_s)

    def close(self) -> None:
        """End both threads; unsent scores are lost. Not to be called from a callback."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._link.interrupt()
        for thread in self._threads:
            thread.join()
        self._link.close()

    def _follow_loop(self) -> None:
        wait_s = FIRST_RETRY_S
        while not self._closed:
            # a generator is closed where it was used: an exception on its way would keep its connection open
            with suppress(OSError, ValueError), closing(self._link.follow(self._stale_s)) as lines:
                for line in lines:
                    # a line that is no document is a failure, too
                    self._on_document(decode(line))
                    wait_s = FIRST_RETRY_S
            # the link has ended, but the cache may not be stale yet
            with self._callback_lock:
                if not self._reported_stale and self.get().stale:
                    self._reported_stale = True
                    self._notify()
            wait_s = self._backoff(wait_s)

    def _on_document(self, document: Document) -> None:
        with self._callback_lock:
            if self._last is not None and document.order < self._last.order:
                return
            changed = self._last is None or document.order > self._last.order or self._reported_stale
            self._last = document
            self._received_s = time.monotonic()
            self._reported_stale = False
            if changed:
                self._notify()

    def _notify(self) -> None:
        if self._last is not None:
            view = View(self._last.scores, self._reported_stale)
            for callback in self._callbacks:
                callback(view)

    def _publish_loop(self) -> None:
        wait_s = FIRST_RETRY_S
        refresh_s = self._stale_s / REFRESHES_PER_TIMEOUT
        while True:
            # until there is another document than the last, or a refresh is due
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._to_send != self._sent, refresh_s)
                document = self._to_send
            if self._closed or document is None:
                return
            try:
                self._link.publish(document, self._stale_s)
                self._sent = document
                wait_s = FIRST_RETRY_S
            except OSError:
                self._sent = None
                wait_s = self._backoff(wait_s)

    def _backoff(self, wait_s: float) -> float:
        """Wait before the next try, unless closed; how long to wait before the one after it."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed, wait_s)
        return min(LAST_RETRY_S, 2 * wait_s)


def connect(address: str, stale_s: float = 1.0) -> Registry:
    """A client of the server at `unix:PATH` or `etcd:HOST:PORT`, which is what a server has as its `address`."""
    kind, _, location = address.partition(":")
    if kind not in ("unix", "etcd"):
        raise ValueError(f"{address!r} is no address of a registry: write unix:PATH or etcd:HOST:PORT")
    return Registry(SocketLink(location) if kind == "unix" else EtcdLink(location), stale_s)


def _start(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
