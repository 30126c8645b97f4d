"""Consoles of commands, and the progress of those that compute."""

import io
import os
import sys
import time

import pytest

from railyard.experiments import options


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
