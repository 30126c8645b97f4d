"""Signals of programs that tests start."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

IGNORED = ("HUP", "INT", "QUIT")
PROGRAM = "import signal; print([signal.getsignal(n) == signal.SIG_IGN for n in (1, 2, 3)])"


def test_programs_of_tests_have_default_signals() -> None:
    assert signal.SIG_IGN not in [signal.getsignal(signal.Signals[f"SIG{name}"]) for name in IGNORED]
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, False, False]\n"


@pytest.mark.parametrize("processes", ["0", "1"])
def test_programs_have_default_signals_under_nohup(processes: str) -> None:
    this = f"{Path(__file__)}::{test_programs_of_tests_have_default_signals.__name__}"
    ignoring = ["env", *(f"--ignore-signal={name}" for name in IGNORED)]
    session = [sys.executable, "-m", "pytest", "-q", "-n", processes, this]
    done = subprocess.run([*ignoring, *session], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
