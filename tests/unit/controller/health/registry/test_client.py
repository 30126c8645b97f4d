"""The registry's client over a link made of Python alone, its document, and what a watch of etcd may say."""

import io
import json
import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.health.policy import Scores
from railyard.controller.health.registry import etcd
from railyard.controller.health.registry.client import Document, Link, Registry, View, connect, decode, encode
from railyard.controller.health.registry.etcd import EtcdServer
from railyard.controller.health.registry.unix_socket import SocketServer
from railyard.core.errors import MissingRequirement
from tests.emulation.fabrics import eventually

STALE_S = 0.1
whole = st.integers(0, 100)


def scores(version: int, rail: int = 50) -> Scores:
    return Scores((rail, 100), (100, 90), 80, version)


class FakeLink:
    """A server for one. `lost`: it can't be reached; `gate`: publishing waits for it."""

    def __init__(self) -> None:
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.sent: list[bytes] = []
        self.lost = False
        self.gate = threading.Event()
        self.gate.set()

    def publish(self, document: bytes, timeout_s: float) -> None:
        self.gate.wait()
        if self.lost:
            raise ConnectionRefusedError
        self.sent.append(document)
        self.lines.put(document)

    def follow(self, timeout_s: float) -> Generator[bytes, None, None]:
        while True:
            try:
                line = self.lines.get(timeout=timeout_s)
            except queue.Empty:
                raise TimeoutError from None
            if line is None or self.lost:
                raise ConnectionResetError
            yield line

    def say(self, writer: int, reported: Scores) -> None:
        self.lines.put(encode(Document(writer, reported)))

    def interrupt(self) -> None:
        self.gate.set()
        self.lines.put(None)

    def close(self) -> None:
        pass


class Client:
    """A registry's client, and every view that it has called back with."""

    def __init__(self, stale_s: float = STALE_S) -> None:
        self.link, self.views = FakeLink(), list[View]()
        self.registry = Registry(cast(Link, self.link), stale_s)
        self.registry.watch(self.views.append)

    def versions(self) -> list[tuple[int, bool]]:
        return [(view.scores.version, view.stale) for view in self.views if view.scores]

    def close(self) -> None:
        self.registry.close()


@pytest.fixture
def client() -> Iterator[Client]:
    with closing(Client()) as one:
        yield one


@given(st.lists(whole, min_size=2, max_size=8), st.lists(whole, min_size=2, max_size=8), whole, st.integers(0, 10**6))
def test_document_survives_writing_and_reading(rails: list[int], domains: list[int], spine: int, version: int) -> None:
    reported = Scores(tuple(rails), tuple(domains), spine, version)
    document = decode(encode(Document(9, reported)))
    assert document == Document(9, reported)
    assert document.scores.sorted_rails == reported.sorted_rails
    assert b"\n" not in encode(document)
    assert json.loads(encode(document))["sorted"] == [rail for _, rail in reported.sorted_rails]


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"7", b"{}", b'{"writer": 1, "version": 1, "rails": [101], "domains": [1], "spine": 1}']
)
def test_invalid_document_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_repeated_documents_call_no_callback(client: Client) -> None:
    assert client.registry.get() == View(None, stale=True)
    assert client.views == []
    client.registry.put(scores(1))
    eventually(lambda: len(client.link.sent) >= 4)
    assert len(set(client.link.sent)) == 1
    assert client.versions() == [(1, False)]
    assert client.registry.get() == View(scores(1), stale=False)


def test_put_never_waits_and_skips_overtaken_documents(client: Client) -> None:
    client.link.gate.clear()
    for version in range(1, 101):
        client.registry.put(scores(version))
    client.link.gate.set()
    eventually(lambda: client.versions()[-1:] == [(100, False)])
    assert len(set(client.link.sent)) <= 2  # the one that waited at the gate, and the last


def test_a_cache_without_word_keeps_its_scores_and_says_so_once(client: Client) -> None:
    client.link.say(1, scores(1))
    eventually(lambda: len(client.views) == 2)
    client.link.say(1, scores(1))
    eventually(lambda: len(client.views) == 3)
    client.link.say(1, scores(2))
    eventually(lambda: len(client.views) >= 4)
    assert client.versions()[:4] == [(1, False), (1, True), (1, False), (2, False)]


def test_a_link_that_ends_is_not_staleness_yet() -> None:
    with closing(Client(stale_s=60.0)) as client:
        client.link.say(1, scores(1))
        client.link.lines.put(None)
        client.link.say(1, scores(2))
        eventually(lambda: len(client.views) == 2)
        assert client.versions() == [(1, False), (2, False)]


def test_old_documents_change_nothing_and_writers_start_at_zero(client: Client) -> None:
    for writer, version in ((1, 5), (1, 4), (1, 5), (1, 6), (2, 0), (1, 7), (2, 0), (2, 1)):
        client.link.say(writer, scores(version))
    eventually(lambda: len(client.views) >= 4)
    assert client.versions()[:4] == [(5, False), (6, False), (0, False), (1, False)]


def test_rubbish_is_no_word(client: Client) -> None:
    client.link.say(1, scores(1))
    eventually(lambda: client.versions() == [(1, False)])
    client.link.lines.put(b"rubbish")
    eventually(lambda: client.registry.get() == View(scores(1), stale=True))
    client.link.say(1, scores(2))
    eventually(lambda: client.versions()[-1] == (2, False))


def test_unsent_documents_are_sent_after_the_servers_return(client: Client) -> None:
    client.link.lost = True
    for version in range(3):
        client.registry.put(scores(version))
    assert client.registry.get() == View(None, stale=True)
    client.link.lost = False
    eventually(lambda: client.registry.get() == View(scores(2), stale=False))


def test_watch_begins_with_the_stored_documents(client: Client) -> None:
    client.link.say(1, scores(3))
    eventually(lambda: client.views)
    late: list[View] = []
    client.registry.watch(late.append)
    assert late == [View(scores(3), stale=False)]


def test_a_closed_client_has_no_threads_left() -> None:
    before = set(threading.enumerate())  # threads of tests before this one may end meanwhile
    client = Client()
    client.registry.put(scores(1))
    eventually(lambda: client.views)
    assert len(set(threading.enumerate()) - before) == 2
    client.close()
    assert set(threading.enumerate()) <= before


def test_an_address_of_neither_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unix:PATH or etcd:HOST:PORT"):
        connect("zookeeper:127.0.0.1:2181")


def test_socket_server_replaces_a_killed_server(tmp_path: Path) -> None:
    server = SocketServer(tmp_path / "registry")
    (tmp_path / "registry").touch()
    server.start()
    with closing(connect(server.address)) as client:
        client.put(scores(1))
        eventually(lambda: client.get().scores == scores(1))
    server.stop()
    assert list(tmp_path.iterdir()) == []


def test_missing_etcd_names_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd, "SEARCH_PATH", "/nowhere")
    with pytest.raises(MissingRequirement, match="lacks etcd; sudo script/bootstrap"):
        EtcdServer(tmp_path).start()


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b'{"error": {"grpc_code": 14, "message": "transport is closing"}}\n',
        b'{"result": {"header": {"revision": "9"}, "canceled": true, "compact_revision": "7"}}\n',
    ],
)
def test_a_watch_that_ends_says_so(last: bytes) -> None:
    message = b'{"result": {"created": true}}\n{"result": {"events": [{"kv": {"value": "eA=="}}]}}\n'
    events = etcd._events(cast(Any, io.BytesIO(message + last)))
    assert [next(events), next(events)] == [[], [{"kv": {"value": "eA=="}}]]
    with pytest.raises(OSError, match="watch has ended"):
        next(events)
