"""A process that is told things and tells things: it answers, it tells unasked, it ends, or it says nothing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from railyard.core import json_process
from railyard.core.errors import RailyardError
from railyard.core.json_process import JsonProcess

ECHO = """
import json, sys
from railyard.core.events import EventWriter
tell = EventWriter()
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "end":
        print("what went wrong", file=sys.stderr)
        raise SystemExit(1)
    for what in command["tell"]:
        tell(what, {"about": command["do"]})
"""
Event = tuple[int, str, dict[str, Any]]


@contextmanager
def running(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str = ECHO, **more: Any) -> Iterator[JsonProcess]:
    """A child of a module that isn't Railyard's, with its log where anybody may write."""
    (folder / "echo.py").write_text(program)
    monkeypatch.setattr(json_process, "LOGS", folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    process = JsonProcess("echo", ("answer", "other"), **more)
    try:
        yield process
    finally:
        process.stop()


def test_what_is_awaited_is_answered_and_all_is_heard_but_what_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Event] = []
    before_ns = time.monotonic_ns()
    with running(tmp_path, monkeypatch, on_event=lambda *event: heard.append(event), unreported=("other",)) as process:
        process.send({"do": "this", "tell": ["aside", "other", "answer"]})
        found = process.await_all({"answer", "other"})
    assert found == {"answer": {"about": "this"}, "other": {"about": "this"}}
    assert [what for _, what, _ in heard] == ["aside", "answer"]
    assert before_ns < heard[0][0] <= heard[1][0] < time.monotonic_ns()


def test_answers_come_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch) as process:
        for n in range(20):
            process.send({"do": str(n), "tell": ["answer"]})
        deadline = time.monotonic() + 10
        assert [process.next_reply(deadline)[1]["about"] for _ in range(20)] == [str(n) for n in range(20)]


def test_one_that_ends_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch) as process:
        process.send({"do": "end"})
        for _ in range(2):  # and it stays so
            with pytest.raises(RailyardError, match=r"^echo ended: what went wrong$"):
                process.await_all({"answer"})
        with pytest.raises(RailyardError, match=r"^echo ended: what went wrong$"):
            process.send({"do": "this", "tell": []})


def test_one_that_says_nothing_is_not_awaited_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_process, "ANSWER_S", 0.2)
    with running(tmp_path, monkeypatch) as process:
        process.send({"do": "this", "tell": ["aside"]})
        with pytest.raises(RailyardError, match=r"^echo did not answer in 0\.2 s$"):
            process.await_all({"answer"})
