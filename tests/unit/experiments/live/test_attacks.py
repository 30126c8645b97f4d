"""Attacks on the live page by who may connect: what a request, a click or a connection can't do."""

import json
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from railyard.core.safe_files import Folder
from railyard.core.wait import wait_until
from railyard.experiments.live import access, page, page_state, server
from railyard.experiments.live.controls import ACTIONS, Controls
from railyard.experiments.live.launch import opened_page
from railyard.experiments.live.recorded import RECORD, write_page
from railyard.experiments.live.traffic import STARTABLE
from railyard.experiments.run import observers
from railyard.results.runs.records import LIVE_PAGE
from tests.unit.experiments.live.test_server import Served
from tests.unit.stand_ins import plan_of

WITHIN_S = 10.0
LARGE = "x" * 40_000
UNREAD = b"a" * (1 << 20)
OTHER_METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")


def served_with(mode: str) -> Iterator[Served]:
    with opened_page(mode, None) as opened:
        assert opened.task
        task = opened.task | {name: os.dup(opened.task[name]) for name in ("listener", "diagnosis")}
        with page.served(task, {"name": "quickstart"}) as served_page:
            assert served_page is not None
            yield Served(task["port"], task["token"], served_page)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    yield from served_with("control")


@pytest.fixture(scope="module")
def read_only() -> Iterator[Served]:
    yield from served_with("")


def open_stream(served: Served) -> socket.socket:
    """Ask for the events, with a small buffer, and read nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((access.HOST, served.port))
    connection.settimeout(WITHIN_S)
    connection.sendall(served.head("/events").encode())
    return connection


def status_of_stream(served: Served) -> str:
    """Return the status line of a stream that is read."""
    with open_stream(served) as connection:
        return connection.recv(100).decode().partition("\r\n")[0]


def test_streams_that_do_not_read_are_ended_and_hold_no_memory(served: Served) -> None:
    """They take all places of pages. What they don't read is not kept for them, and their places are free again."""
    process = psutil.Process(served.page._worker.pid)
    deadline = time.monotonic() + WITHIN_S

    def await_true(condition: Callable[[], bool]) -> None:
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with ExitStack() as stack:
        for _ in range(page_state.MAX_PAGES):
            stack.enter_context(open_stream(served))
        await_true(lambda: "503" in status_of_stream(served))
        for _ in range(4 * page_state.MAX_QUEUED):
            served.page.show(time.monotonic_ns(), "large", {"text": LARGE})
            time.sleep(0.001)
        await_true(lambda: len(process.net_connections("inet")) < page_state.MAX_PAGES / 2)
        before = process.memory_info().rss
        for _ in range(page_state.MAX_PAGES):  # each is to get all events so far, 10 MB
            stack.enter_context(open_stream(served))
        await_true(lambda: "503" in status_of_stream(served))
        assert process.memory_info().rss - before < 10 * page_state.MAX_QUEUED * len(LARGE)


def test_input_on_an_event_stream_is_not_read(served: Served) -> None:
    with open_stream(served) as connection:
        connection.settimeout(0.2)
        sent = 0
        with suppress(TimeoutError, ConnectionError):
            while sent < 64 * len(UNREAD):
                sent += connection.send(UNREAD)
        assert sent < 32 * len(UNREAD)
    assert served.get("/metrics")[0] == 200


def test_a_flood_of_clicks_is_refused_and_does_not_queue_up(served: Served) -> None:
    """While the run works on one, so many wait at most; the others are refused at once."""
    body = '{"do": "resume"}'
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
    more = 5
    with ExitStack() as stack:
        with served.page.controls._lock:
            clicks = [
                stack.enter_context(socket.create_connection((access.HOST, served.port), timeout=WITHIN_S))
                for _ in range(server.MAX_CLICKS + more)
            ]
            for click in clicks:
                click.sendall((served.head("/control", *headers, method="POST") + body).encode())
            time.sleep(0.3)
            refused, _, _ = select.select(clicks, [], [], 0)
        statuses = [click.recv(100).split()[1] for click in clicks]
    assert len(refused) == statuses.count(b"503") == more
    assert statuses.count(b"200") == server.MAX_CLICKS


@pytest.mark.parametrize("mode", ["served", "read_only"])
def test_only_a_post_is_a_click(mode: str, request: pytest.FixtureRequest) -> None:
    place: Served = request.getfixturevalue(mode)
    for method in OTHER_METHODS:
        assert place.get("/control", method=method, Content_Type="application/json", body='{"do": "pause"}')[0] == 405
    for path in ("/", "/events", "/metrics", "/path", "/static/main.js"):
        assert place.get(path, method="POST", body='{"do": "pause"}')[0] == 405


def test_no_click_of_a_read_only_page_reaches_the_run(read_only: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[dict[str, Any]]()
    monkeypatch.setattr(read_only.page._worker, "_on_event", lambda ns, what, detail: asked.append(detail))
    for act in ACTIONS:
        body = json.dumps({"do": act, "kind": "link-down", "target": "d0g1", "what": "workload", "text": "{}"})
        for path in ("/control", "/control?control=true", "//control", "/control/"):
            status, _ = read_only.get(path, method="POST", Content_Type="application/json", body=body)
            assert status in (403, 404, 307), (path, status)
    assert asked == []


@pytest.mark.parametrize(
    ("path", "method"), [("/", "GET"), ("/events", "HEAD"), ("/none", "GET"), ("/control", "GET"), ("/metrics", "GET")]
)
def test_no_answer_lets_a_browser_pass_the_address_on(served: Served, path: str, method: str) -> None:
    """The token is in the address: no Referer, no cache, and no answer repeats it."""
    with socket.create_connection((access.HOST, served.port), timeout=WITHIN_S) as connection:
        connection.sendall(served.head(path, "Connection: close", method=method).encode())
        answer = connection.recv(1 << 16).decode()
    head = answer.lower().partition("\r\n\r\n")[0]
    assert "referrer-policy: no-referrer" in head
    assert "cache-control: no-store" in head
    assert served.token not in answer


def test_refusal_does_not_repeat_the_request(served: Served) -> None:
    status, text = served.get(f"/{served.token}/<script>", token="guess")
    assert (status, text) == (403, "refused: wrong token\n")


def test_no_process_has_the_token_in_its_arguments_or_variables(served: Served) -> None:
    token, own = served.token.encode(), psutil.Process()
    for process in (own, *own.children(recursive=True)):
        for name in ("cmdline", "environ"):
            assert token not in Path(f"/proc/{process.pid}/{name}").read_bytes(), (process, name)


def test_no_file_of_a_run_has_the_token(tmp_path: Path) -> None:
    """Others may read the folder, as the umask has it, and it is copied elsewhere."""
    with opened_page("control", None) as opened, Folder(tmp_path) as folder:
        assert opened.task
        task = opened.task | {name: os.dup(opened.task[name]) for name in ("listener", "diagnosis")}
        with page.served(task, {"name": "quickstart"}, folder) as served_page:
            assert served_page is not None
            served = Served(task["port"], task["token"], served_page)
            assert served.get("/metrics")[0] == 200
            observers.show("step", {"text": "building"})
            wait_until(lambda: "building" in (tmp_path / RECORD).read_text(), "the record", WITHIN_S)
        write_page(folder)
        assert {RECORD, LIVE_PAGE} == {path.name for path in tmp_path.iterdir()}
        for path in tmp_path.iterdir():
            assert task["token"] not in path.read_text(), path
            assert path.stat().st_mode & 0o133 == 0, path


def test_pipelined_requests_are_answered_in_their_order(served: Served) -> None:
    with socket.create_connection((access.HOST, served.port), timeout=WITHIN_S) as connection:
        connection.sendall((served.head("/metrics") * 40 + served.head("/none", "Connection: close")).encode())
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200"] * 40 + [b"404"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(("kind", "target", "what", "text", "rate", "repair", "at", "__class__", "", "\x1b[2J", "down"))
CLICKS = st.dictionaries(NAMES, VALUES | st.sampled_from(("link-slow", *STARTABLE)), max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(act=st.sampled_from(tuple(a for a in ACTIONS if a not in ("pause", "resume"))) | VALUES, click=CLICKS)
def test_no_click_is_more_than_a_line(act: object, click: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """A click that makes no sense is answered in one line, without control characters, and is no defect."""
    control = Controls(lambda *_: None, {"name": "two"})
    with control.on(SimpleNamespace(plan=plan_of()), lambda *_: None):  # type: ignore[arg-type]
        answer = control.carry_out({"do": act, **click})
    assert capfd.readouterr().err == ""
    error = answer["error"]
    assert error.isprintable(), error
    assert len(error) < 10_000
