"""Ctrl-C before a command begins, while its command line is parsed, and after it has ended: one line each."""

import os
import signal
import subprocess
import sys

import pytest

from tests.emulation.programs import ROOT, RUN_EXPERIMENT

STOPPED = (130, "", "stopped by Ctrl-C\n")
PROGRAM = """
import atexit, os, signal, sys
from railyard.__main__ import main
from railyard.experiments import cli

def press(*_):
    os.kill(os.getpid(), signal.SIGINT)

{moment}
sys.argv = ["railyard", "install", "--help"]
status = main()
{end}
sys.exit(status)
"""


IGNORING = "import os; from railyard.core import crash as i; i.end_at_ctrl_c(); i.raise_at_ctrl_c(); os.kill(0, 2)"


def press_at_start() -> None:
    """Let the program start with a Ctrl-C that waits, as after `env --block-signal=INT` of script/run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    os.kill(os.getpid(), signal.SIGINT)


def outcome(done: "subprocess.CompletedProcess[str]") -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


def test_ctrl_c_while_python_starts_is_one_line() -> None:
    done = subprocess.run(
        [*RUN_EXPERIMENT, "--help"], capture_output=True, text=True, check=False, preexec_fn=press_at_start
    )
    assert outcome(done) == STOPPED


@pytest.mark.parametrize(
    ("moment", "end"),
    [
        ("cli.load_command = press", ""),
        ("cli.raise_open_file_limit = press", ""),
        ("sys.stdout = open(os.devnull, 'w')", "press()"),
        ("sys.stdout = open(os.devnull, 'w'); atexit.register(press)", ""),
    ],
    ids=["parse", "begin", "end", "exit"],
)
def test_ctrl_c_outside_of_a_command_is_one_line(moment: str, end: str) -> None:
    code = PROGRAM.format(moment=moment, end=end)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 130
    assert done.stderr == "stopped by Ctrl-C\n"


def test_ctrl_c_that_the_caller_ignores_stays_ignored() -> None:
    """As of a program in the background of a script."""
    done = subprocess.run(
        [sys.executable, "-c", IGNORING], capture_output=True, text=True, check=False, cwd=ROOT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert outcome(done) == (0, "", "")
