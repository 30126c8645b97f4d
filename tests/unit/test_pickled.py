"""A process that answers in pickles: whole answers, one after the other; its death; and when it says nothing."""

import pickle
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from railyard.core import worker
from railyard.core.errors import RailyardError
from railyard.core.worker import WorkerProcess
from railyard.topologies.multirail.plan import make_multirail_plan
from railyard.topologies.multirail.spec import parse_multirail
from railyard.workloads.allreduce.engine import emulated
from railyard.workloads.allreduce.engine.emulated import Ranks
from railyard.workloads.allreduce.engine.jobs import RankReport
from railyard.workloads.allreduce.recovery.liveness import Timeouts

SAYS = """
import pickle, sys
while (told := pickle.load(sys.stdin.buffer)) is not None:
    sys.stdout.buffer.write(told)
    sys.stdout.buffer.flush()
"""
"""Whatever bytes it is told, it says; it ends at None."""
Start = Callable[[str], WorkerProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    (tmp_path / "says.py").write_text(SAYS)
    monkeypatch.setattr(worker, "PROJECT", tmp_path)
    started: list[WorkerProcess] = []

    def begin(name: str) -> WorkerProcess:
        started.append(WorkerProcess("says", name))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def test_answers_come_whole_one_by_one_and_who_waits_hears_of_each(start: Start) -> None:
    process = start("it")
    answers = ["short", b"x" * 1_000_000, list(range(100_000)), ""]
    process.send(b"".join(map(pickle.dumps, answers)))
    for answer in answers:
        assert wait([process.fileno()], 60)
        assert process.receive(60) == answer
    assert not wait([process.fileno()], 0)
    process.send(pickle.dumps(RuntimeError("no way")))
    with pytest.raises(RailyardError, match=r"^it: no way$"):
        process.receive()


def test_one_that_ends_in_mid_answer_has_died(start: Start) -> None:
    for said in (b"", pickle.dumps("all of it")[:-3]):
        process = start("it")
        process.send(said)
        process.send(None)
        with pytest.raises(RailyardError, match=r"^it died$"):
            process.receive()


def test_one_that_says_nothing_or_but_half_is_waited_for_no_longer_than_was_said(start: Start) -> None:
    process = start("it")
    with pytest.raises(RailyardError, match=r"^it didn't answer in 0\.05 s$"):
        process.receive(0.05)
    process.send(pickle.dumps(b"x" * 100_000)[:-1])
    with pytest.raises(RailyardError, match=r"^it didn't answer in 0\.5 s$"):
        process.receive(0.5)


class Net:
    plan = make_multirail_plan(
        parse_multirail({"kind": "multi-rail", "nodes": 4, "rails": [{"kind": "tcp", "rate": "100Mbit"}]})
    )


def test_ranks_that_dont_answer_are_waited_for_from_the_first_answer_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated, "_SLACK_S", 0.2)
    ranks = Ranks(Net(), "equal", Timeouts(operation_s=0.3))
    ranks._processes = processes = [start(f"rank {rank}") for rank in range(4)]
    processes[1].send(None)  # whoever dies has answered
    processes[2].send(pickle.dumps(RankReport(2, wrong=5)))
    assert all(wait([processes[rank].fileno()], 60) for rank in (1, 2))
    reports = ranks.finish()
    assert [report.rank for report in reports] == [0, 1, 2, 3]
    silent = "rank {} didn't answer in 0.5 s"
    assert [report.errors for report in reports] == [[silent.format(0)], ["rank 1 died"], [], [silent.format(3)]]
    assert reports[2].wrong == 5
