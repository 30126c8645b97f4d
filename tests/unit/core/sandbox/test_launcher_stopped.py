"""A launcher that is stopped: its sandbox, `ps` and the queue say so, with what to type."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railyard.core.errors import BadInput
from railyard.core.sandbox import front, run_queue
from railyard.core.sandbox.front import LauncherWatch
from railyard.core.wait import wait_until
from railyard.experiments.commands import ps
from railyard.experiments.options import console

LAUNCHER = """
import sys
from railyard.core.sandbox import run_queue
from railyard.core.sandbox.run_socket import RunSocket
with RunSocket("small /nowhere/small"), run_queue.turn("small", 1, sys.argv[1]):
    print(flush=True)
    sys.stdin.read()
"""
QUEUE = f"railyard-test-queue-{os.getpid()}"
WITHIN_S = 10.0


@pytest.fixture
def launcher() -> Iterator["subprocess.Popen[bytes]"]:
    argv = [sys.executable, "-c", LAUNCHER, QUEUE]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as child:
        assert child.stdout
        child.stdout.readline()
        yield child
        child.kill()


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: front.is_stopped(process.pid), "the stop", WITHIN_S)


def test_sandbox_reports_a_stopped_launcher_once_and_at_its_end(launcher: "subprocess.Popen[bytes]") -> None:
    lines = list[str]()
    remedy = f"; type: kill -CONT {launcher.pid}"
    state_fd = os.open(f"/proc/{launcher.pid}/stat", os.O_RDONLY)
    watched = LauncherWatch(state_fd, lines.append)
    stop(launcher)
    wait_until(lambda: lines, "the line", WITHIN_S)
    launcher.send_signal(signal.SIGCONT)
    wait_until(lambda: not front.is_stopped(launcher.pid), "the end of the stop", WITHIN_S)
    assert watched.close() == ""
    assert [line.endswith(remedy) for line in lines] == [True]
    stop(launcher)
    assert LauncherWatch(state_fd, lambda line: None).close().endswith(remedy)
    launcher.kill()
    launcher.wait()
    assert LauncherWatch(state_fd, lambda line: None).close() == ""
    os.close(state_fd)


def test_ps_names_a_launcher_that_is_stopped(
    launcher: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
) -> None:
    stop(launcher)
    runs = [run for run in ps.find() if run.pid == launcher.pid]
    ps.print_table(runs, console())
    remedy = f"is stopped; type: kill -CONT {launcher.pid}"
    output, errors = capsys.readouterr()
    assert remedy in errors
    assert output.count("\n") == 1
    for wanted in ("small", str(launcher.pid)):
        with pytest.raises(BadInput, match=remedy):
            ps.choose(wanted, runs)


def test_queue_names_a_launcher_that_is_stopped(
    launcher: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list[str]()

    def tell(line: str) -> None:
        lines.append(line)
        actions.pop(0)()

    actions: list[Callable[[], object]] = [lambda: stop(launcher), launcher.kill]
    monkeypatch.setattr(run_queue, "_POLL_S", 0.05)
    with run_queue.turn("next", 1, QUEUE, tell=tell):
        pass
    assert lines[0].endswith(": small")
    assert lines[1].endswith(f": small (it is stopped; type: kill -CONT {launcher.pid})")
