"""Both registries, the embedded one and the real etcd, by the same tests: real processes, killed, stopped and slow.

writer ── put ──> server (a process) ──> reader, reader, ...
"""

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from railyard.controller.health.policy import Scores
from railyard.controller.health.registry.client import Registry, View, connect
from railyard.controller.health.registry.etcd import EtcdServer
from railyard.core import watch
from tests.emulation.deadlines import scaled
from tests.emulation.fabrics import eventually

pytestmark = pytest.mark.sandbox

Kind = Literal["embedded", "etcd"]
ROOT = Path(__file__).parents[2]
STALE_S = 0.4
SERVE = """
import pathlib, sys, threading
from railyard.controller.health.registry.unix_socket import SocketServer
SocketServer(pathlib.Path(sys.argv[1])).start()
threading.Event().wait()
"""


class Server(Protocol):
    address: str
    process: Any

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Embedded:
    """The embedded server in a process of its own, as if that were the controller."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self._path = path

    def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, "-c", SERVE, str(self._path)], cwd=ROOT)
        eventually(self._path.exists)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Reader:
    """An agent, and all updates from its cache."""

    def __init__(self, server: Server, stale_s: float = STALE_S) -> None:
        self.registry = connect(server.address, stale_s)
        self.views: list[View] = []
        self.registry.watch(self.views.append)

    def versions(self) -> list[int]:
        """Return the distinct updates. One that is repeated after a lost connection counts once."""
        reported = [view.scores.version for view in self.views if view.scores and not view.stale]
        return [version for version, _ in groupby(reported)]

    def has(self, version: int) -> bool:
        view = self.registry.get()
        return view.scores == scores(version) and not view.stale


def scores(version: int) -> Scores:
    return Scores((version % 101, 100, 7), (100, 90), 80, version)


def start(kind: Kind) -> Server:
    """A server that runs, in this test's own /run."""
    server = Embedded(Path("/run/registry.sock")) if kind == "embedded" else EtcdServer(Path("/run/etcd"))
    server.start()
    return server


def all_threads_stopped(pid: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def writer(server: Server) -> Registry:
    return connect(server.address, STALE_S)


@pytest.fixture(params=["embedded", "etcd"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_agents_get_scores_in_order_and_a_late_agent_the_last(kind: Kind) -> None:
    """An agent that takes its time holds up no other, and a thousand puts end with the last."""
    server = start(kind)
    healthd, early, sleeper = writer(server), Reader(server), Reader(server)
    wake = threading.Event()

    def sleep(view: View) -> None:
        wake.wait(120)

    sleeper.registry.watch(sleep)
    for version in range(1, 21):
        healthd.put(scores(version))
        eventually(lambda version=version: early.has(version))  # type: ignore[misc]
    assert early.versions() == list(range(1, 21))
    late = Reader(server)
    eventually(lambda: late.has(20))
    assert late.versions() == [20]
    assert late.registry.get().scores.sorted_rails == scores(20).sorted_rails  # type: ignore[union-attr]
    assert len(sleeper.versions()) == 1
    wake.set()
    eventually(lambda: sleeper.has(20))

    for version in range(21, 1021):
        healthd.put(scores(version))
    eventually(lambda: early.has(1020))
    versions = early.versions()
    assert versions == sorted(set(versions))


def test_killed_server_leaves_last_scores_and_agents_reconnect(kind: Kind) -> None:
    server = start(kind)
    healthd, reader = writer(server), Reader(server)
    healthd.put(scores(1))
    eventually(lambda: reader.has(1))
    server.stop()
    healthd.put(scores(2))
    assert reader.registry.get().scores == scores(1)
    eventually(lambda: reader.registry.get().stale)
    eventually(lambda: reader.views[-1] == View(scores(1), stale=True))
    server.start()
    eventually(lambda: reader.has(2))
    assert reader.versions() == [1, 2]


def test_scores_go_on_when_a_server_was_away_for_long_and_often(kind: Kind) -> None:
    server = start(kind)
    healthd, reader = writer(server), Reader(server)
    for version in range(1, 6):
        healthd.put(scores(version))
        eventually(lambda version=version: reader.has(version))  # type: ignore[misc]
        server.stop()
        time.sleep(0.1 * version)
        server.start()


def test_hanging_server_blocks_no_client_and_continues(kind: Kind) -> None:
    server = start(kind)
    healthd, reader = writer(server), Reader(server)
    healthd.put(scores(1))
    eventually(lambda: reader.has(1))
    watch.send_signal(server.process.pid, signal.SIGSTOP)
    eventually(lambda: all_threads_stopped(server.process.pid))  # until then one may still pass on a put
    before_s = time.monotonic()
    for version in range(2, 102):
        healthd.put(scores(version))
    assert time.monotonic() - before_s < scaled(2.0)  # if one waited, a hundred would take far longer
    eventually(lambda: reader.views[-1] == View(scores(1), stale=True))
    time.sleep(3 * STALE_S)  # while everybody tries again and again
    watch.send_signal(server.process.pid, signal.SIGCONT)
    eventually(lambda: reader.has(101))


def test_64_agents_have_every_change(kind: Kind) -> None:
    server = start(kind)
    healthd = writer(server)
    readers = [Reader(server, stale_s=5.0) for _ in range(64)]
    for version in range(1, 6):
        healthd.put(scores(version))
        eventually(lambda version=version: all(reader.has(version) for reader in readers))  # type: ignore[misc]
    assert {tuple(reader.versions()) for reader in readers} == {(1, 2, 3, 4, 5)}
    for client in (healthd, *(reader.registry for reader in readers)):
        client.close()
    mine = {"MainThread", watch.THREAD_NAME}
    eventually(lambda: {thread.name for thread in threading.enumerate()} <= mine)


def test_without_writer_scores_are_stale_until_the_next_writer(kind: Kind) -> None:
    server = start(kind)
    first, reader = writer(server), Reader(server)
    first.put(scores(40))
    eventually(lambda: reader.has(40))
    first.close()
    eventually(lambda: reader.views[-1] == View(scores(40), stale=True))
    second = writer(server)
    second.put(scores(1))
    eventually(lambda: reader.has(1))


def test_etcd_keeps_the_last_scores_over_a_kill() -> None:
    server = EtcdServer(Path("/run/etcd"))
    server.start()
    healthd = writer(server)
    healthd.put(scores(7))
    eventually(lambda: healthd.get().scores == scores(7))
    healthd.close()
    server.stop()
    server.start()
    late = Reader(server)
    eventually(lambda: late.has(7))


def test_new_etcd_takes_address_and_data_of_the_old_etcd() -> None:
    """As when a controller crashes, and comes back."""
    server = EtcdServer(Path("/run/etcd"))
    server.start()
    healthd = writer(server)
    healthd.put(scores(1))
    eventually(lambda: healthd.get().scores == scores(1))
    healthd.close()
    successor = EtcdServer(Path("/run/etcd"))
    assert successor.address == server.address
    successor.start()
    assert len({each.process.pid for each in (server, successor) if each.process}) == 2
    late = Reader(successor)
    eventually(lambda: late.has(1))


def test_foreign_etcd_is_left_alone() -> None:
    """The port is another's, and so is what the environment says of etcd."""
    theirs = EtcdServer(Path("/run/theirs"))
    theirs.start()
    os.environ |= {"ETCD_DATA_DIR": "/run/theirs/data", "ETCD_LISTEN_CLIENT_URLS": f"http://{theirs.address}"}
    ours = EtcdServer(Path("/run/ours"))
    ours.start()
    their_reader, our_reader = Reader(theirs), Reader(ours)
    writer(ours).put(scores(1))
    eventually(lambda: our_reader.has(1))
    assert their_reader.views == []
