"""Presence of processes, on real children that are killed, stopped and continued."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from subprocess import PIPE

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.wait import poll, wait_until
from railyard.core.watch import Interruption, ProcessMissing
from railyard.topologies.build import namespaces
from tests.unit.messages import messages


class Child:
    """A watched process that does nothing."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "60"])
        self.watched = watch.add("the sleeper", self.process.pid)
        self.since_ns = time.monotonic_ns()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def await_interruption(self) -> Interruption:
        """Return the only interruption, once it is over."""
        poll(lambda: [one for one in watch.since(self.since_ns) if "so far" not in one.what], 5)
        (found,) = watch.since(self.since_ns)
        return found


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.watched.release()
    child.process.kill()
    child.process.wait()


def test_a_killed_process_is_named_with_its_signal(child: Child) -> None:
    watch.take()
    watch.check()
    child.send(signal.SIGKILL)
    assert str(child.await_interruption()) == "the sleeper died (signal 9)"
    with pytest.raises(ProcessMissing, match=r"^the sleeper died \(signal 9\)$"):
        watch.check()
    with pytest.raises(ProcessMissing, match=r"^the sleeper died"):
        run("exec sleep 60")
    assert [str(interruption) for interruption in watch.take()] == ["the sleeper died (signal 9)"]
    assert not watch.take()


def test_death_is_noticed_at_the_earliest_poll() -> None:
    since_ns = time.monotonic_ns()
    for _ in range(20):
        process = subprocess.Popen(["sleep", "60"])
        watched = watch.add("it", process.pid)
        process.kill()
        assert poll(watched.is_over, 60)
        watched.release()
        process.wait()
    assert [interruption.what for interruption in watch.since(since_ns)] == ["died (signal 9)"] * 20


@pytest.mark.parametrize(("status", "interruptions"), [(3, ["it died (exit status 3)"]), (0, [])])
def test_only_a_failed_process_is_an_interruption(status: int, interruptions: list[str]) -> None:
    since_ns = time.monotonic_ns()
    process = subprocess.Popen(["sh", "-c", f"exit {status}"])
    watched = watch.add("it", process.pid)
    # its status is left to its starter, and a death is not lost if it is released before any thread has noticed it
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    watched.release()
    assert [str(interruption) for interruption in watch.since(since_ns)] == interruptions
    assert process.wait() == status


def test_only_stops_of_a_process_that_may_die_are_interruptions() -> None:
    process, since_ns = subprocess.Popen(["sleep", "60"]), time.monotonic_ns()
    watched = watch.add("it", process.pid, may_die=True)
    os.kill(process.pid, signal.SIGSTOP)
    assert poll(lambda: watch.since(since_ns), 5)
    os.kill(process.pid, signal.SIGCONT)
    assert poll(lambda: not watched.stopped_ns, 5)
    process.kill()
    assert poll(watched.is_over, 5)
    watch.check()
    watched.release()
    process.wait()
    assert [one.what[:12] for one in watch.since(since_ns)] == ["was stopped "]


def test_a_pause_has_its_length_and_fails_no_wait(child: Child) -> None:
    child.send(signal.SIGSTOP)
    wait_until(lambda: child.watched.stopped_ns, "the stop", 5)
    watch.check()
    time.sleep(0.3)
    child.send(signal.SIGCONT)
    found = child.await_interruption()
    assert found.what.startswith("was stopped for ")
    assert found.end_ns - found.start_ns > 0.25e9
    watch.check()


def test_a_process_that_stays_stopped_fails_waits(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STOPPED_S", 0.1)
    with pytest.raises(ProcessMissing, match=r"^the program is stopped"):
        run("kill -STOP $$")
    child.send(signal.SIGSTOP)
    with pytest.raises(ProcessMissing, match=r"^the sleeper is stopped"):
        poll(lambda: False, within_s=30)


def test_a_stop_on_purpose_is_no_interruption(child: Child) -> None:
    for _ in range(3):
        watch.send_signal(child.process.pid, signal.SIGSTOP)
        watch.send_signal(child.process.pid, signal.SIGCONT)
    watch.send_signal(child.process.pid, signal.SIGSTOP)
    time.sleep(0.1)
    watch.send_signal(child.process.pid, signal.SIGCONT)
    watch.send_signal(child.process.pid, signal.SIGKILL)
    child.process.wait()
    watch.check()
    assert not watch.since(child.since_ns)


def test_a_stop_after_one_on_purpose_is_noticed(child: Child) -> None:
    watch.send_signal(child.process.pid, signal.SIGSTOP)
    watch.send_signal(child.process.pid, signal.SIGCONT)
    child.send(signal.SIGSTOP)
    assert poll(lambda: child.watched.stopped_ns, 5)


def test_a_stop_of_a_descendant_is_noticed() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=PIPE, text=True) as shell:
        assert shell.stdout
        pid, since_ns = int(shell.stdout.readline()), time.monotonic_ns()
        watched = watch.add("the grandchild", pid, is_child=False)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: watched.stopped_ns, "the stop", 5)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: watched.died, "the death", 5)
        watched.release()
        assert str(watch.since(since_ns)[-1]) == "the grandchild died"


def run(script: str, within_s: float = 60.0) -> str:
    process = subprocess.Popen(["sh", "-c", script], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    return watch.communicate(process, "the program", within_s)


def test_a_slow_program_gets_all_of_a_long_input() -> None:
    text = "input\n" * 50_000  # more than a pipe holds
    assert namespaces.run(["sh", "-c", "sleep 0.3; cat"], text) == text


SCRIPTS = {
    "last line of output": "echo one; echo two; exit 4",
    "last line of errors": "echo out; echo error >&2; exit 1",
    "no output": "exit 5",
    "signal": "kill -9 $$",
    "too slow": "exec sleep 60",
}


def test_a_program_that_fails_is_named(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(partial(run, within_s=0.5), SCRIPTS, RailyardError))


PAUSED = """
import os, signal, subprocess, time
from railyard.core import watch
watch.announce(lambda one: print(one, flush=True))
watch.include_own_pauses()
child = subprocess.Popen(["sleep", "60"])
watch.add("it", child.pid)
time.sleep(0.5)
print("ready", flush=True)
time.sleep(30)
"""


def test_a_pause_of_the_process_itself_is_announced() -> None:
    with subprocess.Popen([sys.executable, "-c", PAUSED], stdout=PIPE, text=True, start_new_session=True) as program:
        assert program.stdout
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGSTOP)
        time.sleep(1)
        program.send_signal(signal.SIGCONT)
        assert "was stopped for" in program.stdout.readline()
        os.killpg(program.pid, signal.SIGKILL)
