"""Discovery of a live run: by the user who listens, not by the socket's name."""

import os
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from railyard.core.safe_files import account_of
from railyard.core.sandbox import entry, run_socket
from railyard.core.sandbox.run_socket import RunSocket, announcements


@contextmanager
def answering(found: RunSocket) -> Iterator[None]:
    """Answer in a thread, as the outer process does between signals."""
    stop, stopped = os.pipe()

    def answer() -> None:
        watched: list[int | socket.socket] = [stop, *found.waiting]
        while stop not in select.select(watched, [], [])[0]:
            found.answer()

    thread = threading.Thread(target=answer)
    with found:
        thread.start()
        try:
            yield
        finally:
            os.close(stopped)
            thread.join()
    os.close(stop)


def texts() -> list[str]:
    """Return what the sockets of this process say, and nothing of runs that are alive meanwhile."""
    found = announcements()
    for item in found:
        os.close(item.pidfd)
    return sorted(item.text for item in found if (item.pid, item.uid) == (os.getpid(), os.geteuid()))


def test_a_run_is_found_while_its_socket_is_open() -> None:
    with answering(RunSocket("one /tmp/one")), answering(RunSocket("two /tmp/b\udcffad")):
        assert texts() == ["one /tmp/one", "two /tmp/b\udcffad"]
    assert texts() == []


def test_a_run_without_a_name_is_not_found() -> None:
    with answering(RunSocket("")):
        assert texts() == []


def test_silence_delays_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_socket, "_OWN_S", 0.2)
    with RunSocket("silent /tmp/silent"), answering(RunSocket("one /tmp/one")):
        assert texts() == ["one /tmp/one"]


class Claim(RunSocket):
    """A socket with the name of one of another user's."""

    def __enter__(self) -> "Claim":
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0railyard/{os.geteuid() + 1}/0123456789abcdef")
        self._listener.listen()
        return self


def test_a_name_that_claims_another_user_is_left_out() -> None:
    with answering(Claim("claim /tmp/claim")), answering(RunSocket("one /tmp/one")):
        assert texts() == ["one /tmp/one"]


def test_more_than_a_name_can_be_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RunSocket("x" * 100)
    monkeypatch.setattr(run_socket, "_LONGEST", 99)
    with answering(found):
        assert texts() == []


class OfUser(RunSocket):
    """A socket of another user's, as the kernel has it."""

    def __init__(self, uid: int) -> None:
        super().__init__("their /tmp/their")
        self._uid = uid

    def __enter__(self) -> "RunSocket":
        os.seteuid(self._uid)
        try:
            return super().__enter__()
        finally:
            os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the runs of others")
def test_a_user_with_many_sockets_hides_no_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_socket, "_MOST_OF_A_USER", 4)
    with ExitStack() as stack:
        for uid in (*[1234] * 10, 1235):
            stack.enter_context(answering(OfUser(uid)))
        found = announcements()
    for item in found:
        os.close(item.pidfd)
    users = Counter(item.uid for item in found)
    assert (users[1234], users[1235]) == (4, 1)


def test_a_look_into_a_run_ends_though_its_child_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits for a user's FUSE file system may ignore SIGKILL."""
    killed = list[int]()
    kill = os.kill
    monkeypatch.setattr(entry, "_LOOK_S", 0.1)
    monkeypatch.setattr(entry, "_END_S", 0.1)
    monkeypatch.setattr(entry, "_enter", lambda *_: time.sleep(60))
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    own = entry.Entry(os.getpid(), -1, account_of(os.geteuid()), {})
    began = time.monotonic()
    assert entry.nodes(own) == []
    assert time.monotonic() - began < 10
    kill(killed[0], signal.SIGKILL)
    os.waitpid(killed[0], 0)
