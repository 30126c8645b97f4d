"""The live page's server: what it refuses, and what it serves, over real connections."""

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core import watch
from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.core.wait import wait_until
from railyard.experiments.live import access, launch, page
from railyard.experiments.live.gate import HEAD_S
from railyard.experiments.live.launch import allowed_users, opened_page
from railyard.experiments.run import observers

NO_FABRIC = "no fabric is up at the moment"
NO_OBJECT = "a request is a JSON object"


@dataclass(frozen=True)
class Served:
    """A page that is served: its port and token, and the run's end of it."""

    port: int
    token: str
    page: page.Page

    def send(self, data: str) -> tuple[int, str]:
        """Send bytes, and return the status and text of what is answered at once."""
        with socket.create_connection((access.HOST, self.port), timeout=10) as connection:
            connection.sendall(data.encode("latin-1"))
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.read().decode()

    def head(self, path: str, *headers: str, method: str = "GET") -> str:
        """The head of a request with the page's token."""
        lines = (f"{method} /{self.token}{path} HTTP/1.1", f"Host: {access.HOST}:{self.port}", *headers, "", "")
        return "\r\n".join(lines)

    def get(self, path: str = "/", token: str | None = None, method: str = "GET", **headers: str) -> tuple[int, str]:
        """Return the status and text of an answer; `headers` with `_` for `-`."""
        connection = http.client.HTTPConnection(access.HOST, self.port, timeout=10)
        body = headers.pop("body", None)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"/{self.token if token is None else token}{path}", body, names)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


@pytest.fixture(scope="module", params=["", "control"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with opened_page(request.param, None) as opened:
        assert opened.task
        task = opened.task | {name: os.dup(opened.task[name]) for name in ("listener", "diagnosis")}
        with page.served(task, {"name": "quickstart"}) as served_page:
            assert served_page is not None
            yield Served(task["port"], task["token"], served_page)


def test_a_page_that_is_closed_at_once_leaves_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the page began to look at its server after that had ended."""
    waiting: list[threading.Thread] = []
    errors: list[threading.ExceptHookArgs] = []
    start = threading.Thread.start

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "live page":
            waiting.append(thread)
        else:
            start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_later)
        with opened_page("", None) as opened:
            assert opened.task
            task = opened.task | {name: os.dup(opened.task[name]) for name in ("listener", "diagnosis")}
            with page.served(task, {"name": "quickstart"}):
                pass
    monkeypatch.setattr(threading, "excepthook", errors.append)
    for thread in waiting:
        thread.start()
        thread.join(timeout=10)
    assert [thread.is_alive() for thread in waiting] == [False] * 3
    assert errors == []


def test_the_page_is_served_with_its_token(served: Served) -> None:
    status, text = served.get()
    assert status == 200
    assert "<!doctype html>" in text


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Host": "railyard.example:80"}, "wrong host"),
        ({"Host": "127.0.0.1"}, "wrong host"),
        ({"Origin": "http://railyard.example"}, "wrong origin"),
        ({"Origin": "null"}, "wrong origin"),
        ({"Sec_Fetch_Site": "cross-site"}, "a request of "),
        ({"token": "guess"}, "wrong token"),
        ({"token": ""}, "wrong token"),
    ],
)
def test_a_request_from_elsewhere_is_refused(served: Served, headers: dict[str, str], why: str) -> None:
    for status, text in (served.get("/", **headers), served.get("/control", method="POST", **headers)):
        assert status == 403
        assert text.startswith(f"refused: {why}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_user_of_the_machine_is_refused(served: Served) -> None:
    ask = f"GET /{served.token}/ HTTP/1.1\\r\\nHost: 127.0.0.1:{served.port}\\r\\nConnection: close\\r\\n\\r\\n"
    code = (
        "import os, socket; os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        f"s = socket.create_connection(('127.0.0.1', {served.port})); s.send(b'{ask}'); print(s.makefile().read())"
    )
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "403" in answer
    assert "another user's connection" in answer


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_no_header_says_whose_a_connection_is(served: Served) -> None:
    with socket.create_connection((access.HOST, served.port)) as ours:
        request = served.head("/", f"X-Forwarded-For: {access.HOST}:{ours.getsockname()[1]}", "Connection: close")
        code = (
            "import os, socket; os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
            f"s = socket.create_connection(('127.0.0.1', {served.port})); s.send({request.encode()!r})\n"
            "print(s.makefile().read())"
        )
        answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "another user's connection" in answer


def test_no_other_address_of_the_machine_answers(served: Served) -> None:
    for address in ("127.0.0.2", "::1"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, served.port), timeout=5)


def test_a_connection_that_its_client_closed_has_no_owner() -> None:
    with socket.create_server((access.HOST, 0)) as server, access.diagnosis_socket() as diagnosis:
        client = socket.create_connection(server.getsockname())
        accepted, address = server.accept()
        assert access.owner_of(diagnosis, address, server.getsockname()) == os.geteuid()
        client.close()
        assert access.owner_of(diagnosis, address, server.getsockname()) is None
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()


def test_controls_need_their_mode_json_and_a_fabric(served: Served) -> None:
    def ask(content_type: str, body: str) -> tuple[int, str]:
        return served.get("/control", method="POST", Content_Type=content_type, body=body)

    fault = json.dumps({"do": "inject", "kind": "link-down", "target": "d0g1"})
    status, text = ask("application/json", fault)
    if status == 403:
        assert "read-only" in text
        return
    assert (status, json.loads(text)) == (400, {"error": NO_FABRIC})
    assert ask("text/plain", fault)[0] == 415
    assert ask("application/json", "{")[0] == 400
    assert ask("application/json", " " * 5000)[0] == 413


@pytest.mark.parametrize(
    "length_and_body",
    ["Content-Length: 1000000000000\r\n\r\n", f"Transfer-Encoding: chunked\r\n\r\n2000\r\n{' ' * 0x2000}\r\n"],
)
def test_a_large_request_is_refused_before_it_came(served: Served, length_and_body: str) -> None:
    head = served.head("/control", "Content-Type: application/json", method="POST").removesuffix("\r\n")
    status, text = served.send(head + length_and_body)
    assert status == 413 or (status == 403 and "read-only" in text)


@pytest.mark.parametrize("headers", [("X-Long: " + "x" * 60_000,), tuple(f"X-{n}: {'x' * 90}" for n in range(90))])
def test_a_request_with_large_headers_is_refused(served: Served, headers: tuple[str, ...]) -> None:
    status, _ = served.send(served.head("/", *headers))
    assert status in (400, 431)  # 400: it came in parts, and was refused before the last
    assert served.get()[0] == 200


@pytest.mark.parametrize("body", ["[" * 4000, '{"do": "\\ud800"}', '{"do": NaN}', "[1]", "{", "\xff"])
def test_a_request_that_is_no_json_object_is_refused(served: Served, body: str) -> None:
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    status, text = served.send(served.head("/control", *headers, method="POST") + body)
    assert (status, json.loads(text)) == (400, {"error": NO_OBJECT}) or "read-only" in text


def test_a_file_with_a_long_name_is_not_found(served: Served) -> None:
    assert served.get(f"/static/{'x' * 300}.js") == (404, "not found\n")
    assert served.get("/static/main.js")[0] == 200


def test_silent_clients_are_cut_off_and_block_no_other(served: Served) -> None:
    starts = ["", "GET /", served.head("/metrics")]
    if served.get("/control", method="POST")[0] != 403:
        starts.append(served.head("/control", "Content-Type: application/json", "Content-Length: 9", method="POST"))
    silent = [socket.create_connection((access.HOST, served.port), timeout=20) for _ in range(200)]
    for n, connection in enumerate(silent):
        connection.sendall(starts[n % len(starts)].encode())
    began = time.monotonic()
    assert served.get("/metrics")[0] == 200
    assert time.monotonic() - began < HEAD_S / 2
    slow = silent[1]  # a byte of a head now and then is no whole one
    with suppress(ConnectionError):
        while time.monotonic() - began < 2 * HEAD_S:
            slow.sendall(b"x")
            time.sleep(HEAD_S / 20)
    assert time.monotonic() - began < 1.5 * HEAD_S, "it was not cut off"
    for connection in silent:
        with connection, suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass
    assert time.monotonic() - began < 4 * HEAD_S


def test_bad_requests_are_not_kept(served: Served) -> None:
    for _ in range(3):
        assert served.send("\0\r\n\r\n")[0] == 400
        with socket.create_connection((access.HOST, served.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(served.head("/metrics").encode())  # and it is gone before it is accepted
    assert served.get("/metrics")[0] == 200
    assert os.fstat(served.page._worker._output.fileno()).st_size == 0


def test_events_begin_with_the_state_of_the_run(served: Served) -> None:
    observers.show(page.STEP, {"text": "building"})
    with socket.create_connection((access.HOST, served.port), timeout=10) as connection:
        host = f"{access.HOST}:{served.port}"
        connection.sendall(f"GET /{served.token}/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        received = b""
        while b"building" not in received:
            part = connection.recv(65536)
            assert part
            received += part
    assert b"event: fabric\ndata: null" in received


def test_metrics_have_help_and_type_of_each_name(served: Served) -> None:
    status, text = served.get("/metrics")
    assert status == 200
    assert "# TYPE railyard_gpus gauge\nrailyard_gpus 0\n" in text


class FullFolder(Folder):
    """A folder on a disk that is full: its files can be opened."""

    def open_to_append(self, name: str) -> int:
        return os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)


def test_full_disk_and_stopped_or_dead_server_end_no_run(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    announced = list[str]()
    watch.announce(lambda interruption: announced.append(str(interruption)))
    begun_ns = time.monotonic_ns()
    with opened_page("", None) as opened:
        assert opened.task
        task = opened.task | {name: os.dup(opened.task[name]) for name in ("listener", "diagnosis")}
        with FullFolder(tmp_path) as folder, page.served(task, {"name": "quickstart"}, folder):
            wait_until(lambda: len(announced) == 1, "its record", 10.0)
            (server,) = set(psutil.Process().children()) - before
            server.suspend()
            wait_until(lambda: len(announced) == 2, "its stop", 10.0)
            server.kill()
            wait_until(lambda: len(announced) == 3, "its end", 10.0)
            watch.check()
    watch.announce(lambda _: None)
    words = ["No space left", "is stopped", "died"]
    assert [word in line for word, line in zip(words, announced, strict=True)] == [True] * 3
    assert not watch.since(begun_ns)


def test_nothing_listens_after_the_page_is_closed() -> None:
    with opened_page("", None) as opened:
        assert opened.task
        task: dict[str, Any] = opened.task | {name: os.dup(opened.task[name]) for name in ("listener", "diagnosis")}
        with page.served(task, {"name": "quickstart"}):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((access.HOST, task["port"]), timeout=5)


@pytest.mark.parametrize(("environment", "users"), [({}, {0, os.geteuid()}), ({"SUDO_UID": "x"}, {0, os.geteuid()})])
def test_root_and_the_user_may_connect(environment: dict[str, str], users: set[int]) -> None:
    assert set(allowed_users(environment)) == users


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's SUDO_UID counts")
def test_the_user_of_sudo_may_connect() -> None:
    assert 1234 in allowed_users({"SUDO_UID": "1234"})


@pytest.mark.parametrize(
    ("mode", "script", "field"),
    [("on", None, "--live"), ("", "s.yaml", "--save-script"), (None, "s.yaml", "--save-script")],
)
def test_wrong_options_are_named(mode: str | None, script: str | None, field: str) -> None:
    with pytest.raises(BadInput, match=field), launch.opened_page(mode, Path(script) if script else None):
        pass


@given(path=st.text(), host=st.text(), origin=st.none() | st.text(), user=st.none() | st.integers(0, 9))
def test_only_the_whole_address_is_allowed(path: str, host: str, origin: str | None, user: int | None) -> None:
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    right = {"host": "127.0.0.1:80"}
    assert access.refusal(f"/{path}", headers, 80, "secret", user, (1,))
    assert access.refusal("/secret/", right, 80, "secret", 1, (1,)) == ""
    assert access.refusal("/secret/", right | {"origin": host}, 80, "secret", 1, (1,))
