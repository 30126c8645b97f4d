"""What scripts share with other programs of a machine: their turns in its queue, and what it was measured to carry."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest

from railyard.core.sandbox import run_queue
from railyard.core.wait import wait_until
from railyard.experiments.api.machine import SharedCapacity, Turn


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a queue that other tests don't use, which has one place."""
    name = f"railyard-test-{uuid4().hex[:8]}"
    monkeypatch.setattr(run_queue, "turn", partial(run_queue.turn, prefix=name))
    monkeypatch.setattr(run_queue, "runs_at_once", lambda *_: 1)
    yield name
    assert run_queue.tickets(name) == []


def test_turn_within_itself_is_one_place(queue: str) -> None:
    turn = Turn()
    with turn:
        with turn:
            assert len(run_queue.tickets(queue)) == 1
        assert turn.is_held
        assert len(run_queue.tickets(queue)) == 1
    assert not turn.is_held


def test_script_waits_for_another_run_and_says_so(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    turn, entered = Turn(), list[bool]()

    def measure() -> None:
        with turn:
            entered.append(True)

    thread, shown = Thread(target=measure), list[str]()

    def has_line() -> bool:
        shown.append(capsys.readouterr().err)
        return any(shown)

    with run_queue.turn("recovery", 1):
        thread.start()
        wait_until(has_line, "a line", 10.0)
        assert not entered
    thread.join()
    assert entered
    line = "".join(shown)
    assert line.startswith("place 1 in the queue")
    assert "recovery (no_queue=True " in line


def test_processes_of_a_session_share_a_measured_capacity(tmp_path: Path) -> None:
    first, second = SharedCapacity(), SharedCapacity()
    first.file = second.file = tmp_path / "capacity"
    with first.shared():
        assert first.measured is None
        first.measured = (2, 3e-4, 1e-4, 4e-5, 0.0)
    with second.shared():
        assert second.measured == first.measured
