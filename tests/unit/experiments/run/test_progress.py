"""Progress of commands that compute."""

import io
import os
import select
import sys
import termios
import threading
import time

import pytest
from rich.console import Console

from railyard.experiments import options
from railyard.experiments.run.progress import REFRESH_S, Steps
from railyard.results.runs.records import Run


def test_a_slow_command_reports_to_a_terminal_a_quick_one_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PROGRESS_AFTER_S", 0.2)
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert options.shows_progress(lambda: 5)() == 5
        assert options.shows_progress(lambda: time.sleep(1.0))() is None
        output = os.read(ours, 4096).decode()
    os.close(ours)
    assert output.count("computing, 0 s so far") == 1


def test_a_pipe_gets_no_progress(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(options, "PROGRESS_AFTER_S", 0.01)
    options.shows_progress(lambda: time.sleep(0.1))()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, False), ({"FORCE_COLOR": "1"}, True)])
def test_forced_colour_does_not_make_a_pipe_a_terminal(
    variables: dict[str, str], is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    console = options.console()
    console.print("x", style="red")
    assert not console.is_terminal
    assert ("\x1b[31m" in out.getvalue()) == is_coloured


def test_a_cell_of_a_notebook_gets_lines_without_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter runs `!command` with a terminal and FORCE_COLOR."""
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-color")
    ours, theirs = os.openpty()
    run = Run("mine", {}, {}, "now")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        console = options.console()
        assert console.width == options.NOTEBOOK_WIDTH
        with Steps(console, 2, run) as steps:
            for title in ("build", "measure"):
                with steps.step(title, total=2):
                    steps.reached(1)
        terminal.flush()
        output = ""
        while "[2/2]" not in output and select.select([ours], [], [], 10)[0]:
            output += os.read(ours, 4096).decode()
    os.close(ours)
    assert "\x1b" not in output
    assert [line[:5] for line in output.splitlines()] == ["[1/2]", "[2/2]"]


def reach_all(steps: Steps) -> None:
    for number in range(100):
        steps.reached(number)


def test_a_terminal_that_takes_no_output_keeps_no_step_waiting() -> None:
    """After Ctrl-S, only the thread that draws waits: a step that measures goes on to its end."""
    ours, theirs = os.openpty()
    run = Run("mine", {}, {}, "now")
    with os.fdopen(theirs, "w") as terminal:
        console = Console(file=terminal, force_terminal=True, width=60)
        with Steps(console, 1, run) as steps, steps.step("measure", total=100):
            os.read(ours, 4096)
            termios.tcflow(terminal, termios.TCOOFF)
            time.sleep(4 * REFRESH_S)
            measuring = threading.Thread(target=reach_all, args=[steps], daemon=True)
            measuring.start()
            measuring.join(10)
            is_waiting = measuring.is_alive()
            termios.tcflow(terminal, termios.TCOON)
    os.close(ours)
    assert not is_waiting
