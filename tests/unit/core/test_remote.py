"""Connections between machines: a caller without the token is refused; a vital worker that ends stops every wait."""

import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from railyard.core import remote, watch
from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.installation import PROJECT, module_command
from railyard.core.remote import (
    TOKEN_VARIABLE,
    NotAuthentic,
    RemoteWorker,
    authenticate,
    read_line,
    read_token,
    relay,
    send_line,
)
from railyard.core.worker import Ready

TOKEN = b"0123456789abcdef"


def both(caller: bytes, listener: bytes) -> tuple[BaseException | None, BaseException | None]:
    """Authenticate two ends with these tokens; return what each raises."""
    a, b = socket.socketpair()
    with a, b, ThreadPoolExecutor(2) as pool:
        ends = pool.submit(authenticate, a, caller, True), pool.submit(authenticate, b, listener, False)
        return ends[0].exception(), ends[1].exception()


def test_both_ends_refuse_another_token() -> None:
    assert both(TOKEN, TOKEN) == (None, None)
    refused = both(TOKEN, TOKEN[::-1])
    assert [type(error) for error in refused] == [NotAuthentic, NotAuthentic]


def test_a_response_that_is_sent_back_is_refused() -> None:
    a, b = socket.socketpair()

    def mirror() -> None:
        while data := b.recv(64):
            b.sendall(data)

    with a, b:
        mirrored = threading.Thread(target=mirror, daemon=True)
        mirrored.start()
        with pytest.raises(NotAuthentic):
            authenticate(a, TOKEN, caller=True)
        a.shutdown(socket.SHUT_RDWR)
        mirrored.join()  # or it would read from a closed socket


def test_a_caller_that_sends_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "GREETING_S", 0.4)
    a, b = socket.socketpair()
    with a, b, ThreadPoolExecutor(1) as pool:
        end = pool.submit(authenticate, b, TOKEN, False)
        sent = 0
        while not end.done() and sent < 1000:  # each byte comes in time
            a.send(b"x")
            sent += 1
            time.sleep(0.05)
        assert isinstance(end.exception(), TimeoutError)
    assert sent < 64, "the nonce and the response have 64 bytes"


def test_greeting_is_read_and_no_byte_after() -> None:
    a, b = socket.socketpair()
    with a, b:
        send_line(a, {"role": "join"})
        a.sendall(b"more")
        assert read_line(b) == {"role": "join"}
        assert b.recv(10) == b"more"
        a.sendall(b"[1]\n")
        with pytest.raises(NotAuthentic):
            read_line(b)


def test_a_relay_copies_both_ways_and_ends_with_either() -> None:
    (a, b), (c, d) = socket.socketpair(), socket.socketpair()
    with a, b, c, d:
        relay(b, c)
        a.sendall(b"there")
        assert d.recv(10) == b"there"
        d.sendall(b"back")
        assert a.recv(10) == b"back"
        d.close()
        assert a.recv(10) == b""


@pytest.mark.parametrize("token", ["", "short"])
def test_a_missing_or_short_token_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises((BadInput, MissingRequirement), match=TOKEN_VARIABLE) as caught:
        read_token()
    assert not token or token not in str(caught.value)


def test_a_token_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN.decode())
    assert read_token() == TOKEN
    assert TOKEN_VARIABLE not in os.environ


def test_a_vital_worker_that_ends_stops_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = watch._Watcher()
    monkeypatch.setattr(watch, "_watcher", watcher)
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    worker = RemoteWorker(near, "machine 2", Ready, on_event=lambda *_: None, is_vital=True)
    watch.check()
    far.close()
    with pytest.raises(watch.ProcessMissing, match="machine 2 died"):
        worker.receive(Ready, 10.0)
    worker.end()
    with pytest.raises(watch.ProcessMissing, match="machine 2 died"):
        watch.check()
    assert len(watch.since(0)) == 1


def test_a_child_ends_when_its_tcp_connection_closes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with far:
        argv = module_command("railyard.workloads.replay.worker", str(far.fileno()))
        process = subprocess.Popen(argv, cwd=PROJECT, pass_fds=[far.fileno()])
    near.close()
    assert process.wait(20) == 0
