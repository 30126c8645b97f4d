"""A run as its user meets it at the worst moments: Ctrl-C at a terminal, kill -9, and a front process that is stopped.

d0g0, d0g1 ── hb0      d0gN, d1gN ── railN
"""

import os
import pty
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

from railyard.results.runs import journal
from tests.emulation.deadlines import scaled
from tests.emulation.fabrics import eventually
from tests.emulation.programs import (
    RUN_EXPERIMENT,
    Program,
    assert_as_before,
    command_line,
    finished,
    machine_state,
    read_to_end,
)
from tests.emulation.runs import run_command, small_spec

RUN_S: Final = 60.0
WHOLE_RUN_S: Final = 7.0  # of the small experiment by a new Python on an idle machine, roughly
BAD: Final = ("Traceback", "Exception ignored", "Fatal Python error", "died", "crash report", "error:")
STOPPED_LINES: Final = ("stopped by Ctrl-C", "interrupted: what was measured until then is kept")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    return run_command(small_spec(seed=5), tmp_path, "--no-queue")


def at_a_terminal(argv: list[str], delay_s: float, within_s: float) -> tuple[int, str]:
    """Run a program at a terminal and type Ctrl-C once; return its exit status and what it wrote from then on.

    Ctrl-C is blocked until the program unblocks it, as script/run does. The kernel sends it to the terminal's whole
    process group.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    written = read_to_end(terminal, delay_s)
    os.write(terminal, b"\x03")
    written = read_to_end(terminal, within_s)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), written


def assert_one_line_at_each_ctrl_c(delays_s: list[float], command: list[str], within_s: float) -> None:
    before = machine_state()
    for number, delay_s in enumerate(delays_s):
        argv = [f"{word}{number}" if word.endswith("/out") else word for word in command]
        status, written = at_a_terminal(argv, delay_s, within_s)
        case = f"Ctrl-C after {delay_s:.3f} s: status {status}, {written}"
        assert status in (130, 0, 1), case  # 0, 1: it had ended
        assert not [word for word in BAD if word in written], case
        if status == 130:
            assert sum(written.count(line) for line in STOPPED_LINES) == 1, case
    assert_as_before(before)


def moments(count: int, until_s: float, seed: int) -> list[float]:
    """Return one random moment of each of `count` parts of the time."""
    dice = random.Random(seed)
    return [(number + dice.random()) * until_s / count for number in range(count)]


@pytest.mark.long
def test_ctrl_c_at_a_terminal_is_one_line(command: list[str]) -> None:
    assert_one_line_at_each_ctrl_c([0.02, scaled(3.0)], command, RUN_S)


def test_ctrl_c_at_twenty_moments_is_one_line(command: list[str]) -> None:
    delays_s = [*moments(6, 0.3, seed=1), *moments(14, scaled(WHOLE_RUN_S), seed=2)]
    assert_one_line_at_each_ctrl_c(delays_s, command, RUN_S)


def sandbox_init(run: Program) -> list[psutil.Process]:
    """Return the first process of a run's sandbox; an empty list before it is there.

    `unshare` also runs other programs, to find out what the machine can do.
    """
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(run.process.pid).children():
            processes = child.children()
            if child.name() == "unshare" and processes and command_line(processes[0])[:2] == list(RUN_EXPERIMENT):
                return processes
    return []


def assert_line_of_a_killed_run_is_true(delay_s: float, command: list[str], out: Path) -> None:
    """Kill the sandbox so long after it began. The folder that the line names exists, or nothing is kept."""
    with Program(command, is_new=True) as run:
        (process,) = eventually(lambda: sandbox_init(run), within_s=RUN_S)
        time.sleep(delay_s)
        process.kill()
        status = run.end(RUN_S)
    line = run.output.strip().splitlines()[-1]
    case = f"killed after {delay_s:.2f} s: {run.output}"
    if status == 3:  # Python had not begun to prepare the sandbox
        assert line.startswith("error: the sandbox did not start"), case
        assert not out.exists(), case
        return
    assert status == 137, case
    if named := re.search(r" report (\S+) finishes its folder$", line):
        assert named[1] == str(out), case
        assert (out / journal.NAME).exists(), case
        report = finished([*RUN_EXPERIMENT, "report", str(out)], RUN_S)
        assert report.returncode == 0, (case, report.stderr)
        assert (out / "report.html").exists(), case
    else:
        assert line.endswith("before it recorded anything: start it again"), case
        assert not out.exists(), case


@pytest.mark.parametrize("options", [(), ("--live",)], ids=["plain", "live"])
def test_line_of_a_run_killed_in_its_first_seconds_is_true(
    options: tuple[str, ...], command: list[str], tmp_path: Path
) -> None:
    for number, delay_s in enumerate([0.0, *moments(2, scaled(2.0), seed=len(options))]):
        out = tmp_path / f"out{number}"
        argv = [str(out) if word.endswith("/out") else word for word in command]
        assert_line_of_a_killed_run_is_true(delay_s, [*argv, *options], out)


@pytest.mark.long
def test_front_process_that_is_stopped_is_named(command: list[str], tmp_path: Path) -> None:
    with Program(command, is_new=True) as run:
        run.await_text("calibrating", RUN_S)
        pid = run.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            run.await_match(rf"\(pid {pid}\) is stopped, .* kill -CONT {pid}", 5)
            ps = finished([*RUN_EXPERIMENT, "ps"], RUN_S)
            assert f"run-{pid} is stopped; type: kill -CONT {pid}" in ps.stderr
            run.await_match(rf"has ended, .* \(pid {pid}\) is stopped", RUN_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert run.end(RUN_S) in (0, 1), run.output
        assert re.search(r"was stopped for \d+\.\d s\n", run.output), run.output
        assert run.output.strip().endswith("report.html")
    assert (tmp_path / "out" / "report.html").exists()
