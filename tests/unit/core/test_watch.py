"""Presence of processes, on real children that are killed, stopped and continued."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from subprocess import PIPE

import pytest

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.wait import poll, wait_until
from railyard.core.watch import Interruption, ProcessMissing, Watched
from railyard.topologies.build import namespaces


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
    watch.check()
    child.send(signal.SIGKILL)
    assert str(child.await_interruption()) == "the sleeper died (signal 9)"
    with pytest.raises(ProcessMissing, match=r"^the sleeper died \(signal 9\)$"):
        watch.check()


def test_death_is_noticed_at_the_earliest_poll() -> None:
    since_ns = time.monotonic_ns()
    for _ in range(20):
        process = subprocess.Popen(["sleep", "60"])
        watched = watch.add("it", process.pid)
        process.kill()
        assert poll(watched.is_over, 60)
        watched.release()
        process.wait()
    assert [one.what for one in watch.since(since_ns)] == ["died (signal 9)"] * 20


def test_a_process_that_fails_is_named_with_its_status() -> None:
    since_ns = time.monotonic_ns()
    process = subprocess.Popen(["sh", "-c", "exit 3"])
    watched = watch.add("it", process.pid)
    poll(lambda: watch.since(since_ns), 5)
    watched.release()
    assert [str(one) for one in watch.since(since_ns)] == ["it died (exit status 3)"]
    assert process.wait() == 3  # its status is left to its starter


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


def test_a_process_that_ends_in_order_is_not_missing() -> None:
    since_ns = time.monotonic_ns()
    process = subprocess.Popen(["true"])
    watched = watch.add("it", process.pid)
    process.wait()
    watched.release()
    assert not watch.since(since_ns)


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
    child.send(signal.SIGSTOP)
    with pytest.raises(ProcessMissing, match=r"^the sleeper is stopped, for "):
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


def test_death_before_release_is_reported() -> None:
    """A death is not lost if the starter releases the process before any thread has seen it."""
    since_ns, process = time.monotonic_ns(), subprocess.Popen(["sleep", "60"])
    watched: Watched = watch.add("it", process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    watched.release()
    process.wait()
    assert [str(one) for one in watch.since(since_ns)] == ["it died (signal 9)"]


def test_interruptions_are_taken_once(child: Child) -> None:
    watch.take()
    child.send(signal.SIGKILL)
    child.await_interruption()
    assert [str(one) for one in watch.take()] == ["the sleeper died (signal 9)"]
    assert not watch.take()


def run(script: str, within_s: float = 60.0) -> str:
    process = subprocess.Popen(["sh", "-c", script], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    return watch.communicate(process, "the program", within_s)


def test_a_slow_program_gets_all_of_a_long_input() -> None:
    text = "input\n" * 50_000  # more than a pipe holds
    assert namespaces.run(["sh", "-c", "sleep 0.3; cat"], text) == text


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo one; echo two; exit 4", r"^the program failed \(exit status 4\): two$"),
        ("echo out; echo error >&2; exit 1", r"^the program failed \(exit status 1\): error$"),
        ("exit 5", r"^the program failed \(exit status 5\)$"),
        ("kill -9 $$", r"^the program died \(signal 9\)$"),
        ("exec sleep 60", r"^the program was not done in 0\.5 s$"),
    ],
)
def test_a_program_that_fails_is_named(script: str, message: str) -> None:
    with pytest.raises(RailyardError, match=message):
        run(script, within_s=0.5)


def test_a_program_that_stops_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STOPPED_S", 0.1)
    with pytest.raises(ProcessMissing, match=r"^the program is stopped"):
        run("kill -STOP $$")


def test_program_ends_after_the_death_of_its_peer(child: Child) -> None:
    child.send(signal.SIGKILL)
    with pytest.raises(ProcessMissing, match=r"^the sleeper died"):
        run("exec sleep 60")


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
        assert program.stdout.readline().startswith("the run's own process was stopped for ")
        os.killpg(program.pid, signal.SIGKILL)
