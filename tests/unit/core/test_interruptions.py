"""Interrupted processes in a run's records: the interval is invalid, and the run goes on where it can."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from railyard.core import watch
from railyard.core.records import IntervalId
from railyard.core.watch import ProcessMissing
from railyard.experiments.measures.steering.records import BACKGROUND_SENT
from railyard.experiments.run.session import record_interruptions, surviving_interruptions
from railyard.results.analysis.fidelity import judge
from railyard.results.runs.records import PROCESS, Event
from tests.unit.sample_runs import sample_run
from tests.unit.stand_ins import run_of

WHERE = IntervalId("one", "moe", "rd", repeat=2)


class Helper:
    """A watched process that can be killed."""

    def __init__(self) -> None:
        watch.take()
        self.process = subprocess.Popen(["sleep", "60"])
        self.watched = watch.add("the helper", self.process.pid)

    def fail(self) -> None:
        """Die, and have an error that follows from it."""
        self.process.send_signal(signal.SIGKILL)
        while not self.watched.has_ended:
            time.sleep(0.01)
        raise OSError("no answer")


@pytest.fixture
def helper() -> Iterator[Helper]:
    helper = Helper()
    yield helper
    helper.watched.release()
    helper.process.kill()
    helper.process.wait()


def test_an_interruption_is_an_event_of_its_interval(helper: Helper) -> None:
    run = run_of()
    with pytest.raises(OSError, match="no answer"):
        helper.fail()
    record_interruptions(run, WHERE)
    record_interruptions(run, IntervalId("one"))
    (event,) = run.events
    assert (event.source, IntervalId.of(event.detail)) == (PROCESS, WHERE)
    assert event.detail["text"] == "the helper died (signal 9)"


def test_an_error_whose_process_is_not_needed_is_survived(helper: Helper) -> None:
    run = run_of()
    with surviving_interruptions(run, WHERE):
        try:
            helper.fail()
        finally:
            helper.watched.release()
    assert [event.what for event in run.events] == ["interrupted", "interval-failed"]
    assert run.events[-1].detail["text"] == "the helper died (signal 9): no answer"


def test_error_names_a_process_once(helper: Helper) -> None:
    run = run_of()
    with surviving_interruptions(run, WHERE):
        try:
            helper.fail()
        except OSError as error:
            helper.watched.release()
            raise ProcessMissing("the helper died (signal 9)") from error
    assert run.events[-1].detail["text"] == "the helper died (signal 9)"


def test_an_error_whose_process_is_still_missing_is_raised(helper: Helper) -> None:
    with pytest.raises(ProcessMissing, match=r"^the helper died"), surviving_interruptions(run_of(), WHERE):
        helper.fail()


def test_an_error_without_an_interruption_is_raised() -> None:
    with pytest.raises(OSError, match="of another kind"), surviving_interruptions(run_of(), WHERE):
        raise OSError("of another kind")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 0.5])
def test_background_that_was_not_sent_is_a_finding(share: float) -> None:
    run = sample_run()
    where = run.loads[0].interval
    counts = {"requested": 1000, "sent": round(1000 * (1 - share))}
    run.events.append(Event(1, PROCESS, BACKGROUND_SENT, {**where.as_dict(), **counts}))
    (found,) = (f for f in judge(run).evidence if f.limit.quantity == "background not sent")
    assert found.verdict == {0.0: "ok", 0.02: "ok", 0.05: "degraded", 0.5: "invalid"}[share]


def test_an_interval_with_an_interruption_is_invalid() -> None:
    run = sample_run()
    where = run.loads[0].interval
    other = run.loads[-1].interval
    before = judge(run).intervals
    run.events.append(Event(1, PROCESS, "interrupted", {**where.as_dict(), "text": "REASON"}))
    after = judge(run)
    assert (after.intervals[where], after.verdict) == ("invalid", "invalid")
    assert after.intervals[other] == before[other]
    assert "REASON" in " ".join(after.reasons)


def test_a_run_that_failed_is_never_ok() -> None:
    run = sample_run()
    run.fabrics = run.fabrics[:1]
    run.links = [link for link in run.links if link.fabric == run.fabrics[0].label]
    run.loads, run.measurements, run.bytes, run.events = [], [], [], []
    before = judge(run).verdict
    run.failed = "REASON"
    after = judge(run)
    assert (before, after.verdict) == ("ok", "degraded")
    assert "REASON" in " ".join(after.reasons)


def test_a_death_is_noted_though_its_connection_closed_before() -> None:
    begun_ns = time.monotonic_ns()
    code = "import os, time; os.close(1); time.sleep(0.3); os.kill(os.getpid(), 9)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        watched = watch.add("it", process.pid)
        assert process.stdout
        assert not process.stdout.read()
        watched.await_end(20.0)
        assert [str(one) for one in watch.since(begun_ns)] == ["it died (signal 9)"]
        watched.release()
