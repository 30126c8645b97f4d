"""Child processes: their answers, events and deadlines, and how they end."""

import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core import watch, worker
from railyard.core.crash import WorkerCrashed
from railyard.core.errors import RailyardError
from railyard.core.wait import poll
from railyard.core.worker import ANSWER_S, Pipe, Ready, Worker
from railyard.topologies.multirail.plan import make_multirail_plan
from railyard.topologies.multirail.spec import parse_multirail
from railyard.workloads.allreduce import engine_kind
from railyard.workloads.allreduce.engine.jobs import RankReport, Report, Timeouts
from railyard.workloads.allreduce.engines.railyard import Ranks
from tests.unit.core.echo_messages import Do, Echo

ECHO = """
import os, sys, threading, time
from tests.unit.core.echo_messages import Do, Echo
from railyard.core.worker import Failed, Parent, Ready
parent = Parent(Do)
for command in parent:
    for event in command.events:
        parent.emit(event, {"pair": ("a", "b")})
    if command.send is not None:
        parent.send(Echo(value=command.send) if not command.raw else command.send)
    if command.partial:
        os.write(parent.fileno(), (1000).to_bytes(8, "big") + b"x" * 10)
    if command.fail:
        parent.send(Failed(why=command.fail))
    if command.end:
        print("what went wrong", file=sys.stderr)
        sys.exit(1)
    if command.crash:
        raise ZeroDivisionError(command.crash)
    if command.lacks:
        threading.Thread(target=os.open, args=("/no/folder", os.O_RDONLY)).start()  # is only printed
        threading.Thread(target=exec, args=(f"raise {command.lacks}",)).start()
    if command.busy_s:
        time.sleep(command.busy_s)
"""


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setattr(worker, "PROJECT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    started: list[Worker] = []

    def begin(name: str = "it", **options: Any) -> Worker:
        started.append(Worker("echo", name, Echo, Report, **options))
        return started[-1]

    yield begin
    for process in started:
        process.end()


@pytest.mark.parametrize("has_events", [False, True])
def test_answers_come_whole_and_in_order(start: Start, has_events: bool) -> None:
    process = start(on_event=lambda *_: None) if has_events else start()
    answers = ["short", b"x" * 1_000_000, list(range(100_000)), {("a", 1): None}, ""]
    assert [process.ask(Do(send=answer), Echo).value for answer in answers] == answers
    for number in range(20):
        process.send(Do(send=number))
    assert [process.receive(Echo).value for _ in range(20)] == list(range(20))


def test_each_answer_makes_the_process_readable(start: Start) -> None:
    process = start()
    for number in range(3):
        process.send(Do(send=number))
    for number in range(3):
        assert wait([process.fileno()], 60)
        assert process.receive(Echo).value == number
    assert not wait([process.fileno()], 0)


def test_events_reach_the_callback_and_awaited_ones_the_queue(start: Start) -> None:
    events: list[tuple[int, str, dict[str, Any]]] = []
    process = start(on_event=lambda *event: events.append(event), awaited=("ready", "learned"))
    before_ns = time.monotonic_ns()
    process.send(Do(events=("other", "learned", "ready"), send=1))
    detail = {"pair": ["a", "b"]}
    assert process.await_events({"ready", "learned"}) == {"ready": detail, "learned": detail}
    assert process.receive(Echo).value == 1
    assert [what for _, what, _ in events] == ["other", "learned", "ready"]
    assert before_ns < events[0][0] <= events[2][0] < time.monotonic_ns()


SOON_S = 0.05
FAILURES = {
    "failed command": (Do(fail="no route"), ANSWER_S),
    "exception": (Do(crash="by chance"), ANSWER_S),
    "memory of a thread": (Do(lacks="MemoryError"), ANSWER_S),
    "open files of a thread": (Do(lacks="OSError(24, 'x')"), ANSWER_S),
    "another kind of message": (Do(send=1), ANSWER_S),
    "unknown message": (Do(send=Do(), raw=True), ANSWER_S),
    "no answer": (Do(), SOON_S),
    "half an answer": (Do(partial=True), SOON_S),
}


def test_failures_of_a_child_are_named(start: Start, data_regression: DataRegressionFixture) -> None:
    messages: dict[str, str] = {}
    for case, (command, timeout_s) in FAILURES.items():
        process = start()
        process.ask(Do(send=0), Echo)
        with pytest.raises(RailyardError) as caught:
            process.ask(command, Ready, timeout_s=timeout_s)
        messages[case] = f"exit status {caught.value.exit_status}: {caught.value}"
        if isinstance(caught.value, WorkerCrashed):
            assert "raise ZeroDivisionError(command.crash)" in caught.value.report
        process.end()
    data_regression.check(messages)


def test_an_awaited_event_has_a_deadline(start: Start) -> None:
    process = start(on_event=lambda *_: None, awaited=("ready",))
    process.send(Do(events=("other",)))
    with pytest.raises(RailyardError, match=r"^it didn't answer in "):
        process.await_events({"ready"}, timeout_s=0.2)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("has_events", [False, True])
def test_a_dead_process_is_named_with_its_last_output(start: Start, has_events: bool, partial: bool) -> None:
    process = start(on_event=lambda *_: None) if has_events else start()
    process.send(Do(partial=partial, end=True))
    for _ in range(2):
        with pytest.raises(RailyardError, match=r"^it died: what went wrong$"):
            process.receive(Echo)
    with pytest.raises(RailyardError, match=r"^it died: what went wrong$"):
        process.send(Do())


def test_last_output_is_named_though_the_thread_is_late(start: Start) -> None:
    process = start(on_event=lambda *_: time.sleep(2 * watch.STEP_S))
    process.send(Do(events=("slow",), end=True))
    with pytest.raises(RailyardError, match=r"^it died: what went wrong$"):
        process.receive(Echo)


@pytest.mark.parametrize("called", [os.mkdir, eval, Worker, "railyard.core.worker os.mkdir", "antigravity geohash"])
def test_a_pickle_that_calls_a_function_is_refused(called: object, tmp_path: Path) -> None:
    """Named in it as pickle does, or by a name with a dot, or from a module that is not imported yet."""
    ours, theirs = socket.socketpair()
    name = called if isinstance(called, str) else f"{called.__module__} {called.__name__}"  # type: ignore[attr-defined]
    code = (
        b"\x80\x04c" + name.replace(" ", "\n").encode() + b"\n" + pickle.dumps((str(tmp_path / "made"),))[2:-1] + b"R."
    )
    with ours, theirs:
        theirs.sendall(len(code).to_bytes(8, "big") + code)
        with pytest.raises(pickle.UnpicklingError, match=r" is no class"):
            Pipe(ours, [Echo]).receive()
    assert list(tmp_path.iterdir()) == []


def test_a_busy_child_ends_when_its_parent_closes_the_connection(start: Start) -> None:
    process = start()
    process.ask(Do(send=0, busy_s=60), Echo)
    child = psutil.Process(process.pid)
    process._pipe.socket.close()
    assert poll(lambda: child.status() == psutil.STATUS_ZOMBIE, within_s=30)


class Net:
    plan = make_multirail_plan(
        parse_multirail({"kind": "multi-rail", "nodes": 4, "rails": [{"kind": "tcp", "rate": "100Mbit"}]})
    )


def test_silent_ranks_have_a_deadline_from_the_first_report_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_kind, "SLACK_S", 0.2)
    ranks = Ranks(Net(), "equal", Timeouts(operation_s=0.3))
    ranks.processes = processes = [start(f"rank {rank}") for rank in range(4)]
    processes[1].send(Do(end=True))  # a dead rank counts as one that has reported
    processes[2].send(Do(send=Report(report=RankReport(2, wrong=5)), raw=True))
    assert all(wait([processes[rank].fileno()], 60) for rank in (1, 2))
    reports = ranks.finish()
    assert [report.rank for report in reports] == [0, 1, 2, 3]
    silent = "rank {} didn't answer in 0.5 s"
    died = "rank 1 died: what went wrong"
    assert [report.errors for report in reports] == [[silent.format(0)], [died], [], [silent.format(3)]]
    assert reports[2].wrong == 5
