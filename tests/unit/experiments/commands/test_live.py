"""Choice of a live run by its name."""

import io

import pytest
from rich.console import Console

from railyard.core.errors import BadInput, printable
from railyard.experiments.commands.ps import LiveRun, choose, find, print_table

RUNS = [
    LiveRun("quickstart", "one", "/tmp/one", 11, "root", 1.0),
    LiveRun("recovery", "two", "/home/me/two", 22, "me", 2.0),
    LiveRun("recovery", "three", "/tmp/three", 33, "me", 3.0),
]


@pytest.mark.parametrize("wanted", ["one", "quickstart", "11", "/tmp/one", "/tmp/../tmp/one/"])
def test_a_run_has_several_names(wanted: str) -> None:
    assert choose(wanted, RUNS) == RUNS[0]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("recovery", "RUN: 'recovery' may be several: two (pid 22), three (pid 33)"),
        ("tow", "RUN: 'tow' is not a run that is alive: did you mean 'two'? allowed are one, three, two"),
    ],
)
def test_argument_that_fits_no_single_run_is_reported(wanted: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        choose(wanted, RUNS)
    assert str(caught.value) == message


def test_nothing_alive_is_reported() -> None:
    with pytest.raises(BadInput, match="RUN: 'one' is not alive: no run of yours is"):
        choose("one", [])


def test_own_runs_come_first_and_refused_runs_are_named() -> None:
    theirs = LiveRun("quickstart", "one", "/tmp/theirs/one", 44, "me", 0.0, is_own=False)
    fake = LiveRun("recovery", "fake", "/tmp/fake", 55, "me", 0.0, is_own=False, refused="is refused: it is fake")
    assert choose("one", [theirs, *RUNS]) == choose("quickstart", [theirs, *RUNS]) == RUNS[0]
    assert choose("one", [theirs]) == theirs
    with pytest.raises(BadInput) as caught:
        choose("fake", [fake, *RUNS])
    assert str(caught.value) == "RUN: 'fake' is refused: it is fake (process 55 of me)"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("quickstart-2", "quickstart-2"),
        ("Zürich 1", "Zürich 1"),
        ("a\x1b[2J\r\n", "a\\x1b[2J\\r\\n"),
        ("\u202e", "\\u202e"),
    ],
)
def test_control_characters_of_a_name_are_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown


def test_name_like_markup_is_shown_unchanged() -> None:
    console = Console(file=io.StringIO(), width=120)
    print_table([LiveRun("[/bold]", "[red]", "/tmp/[/x]", 1, "me", 1.0)], console)
    assert "[red]  [/bold]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_processes_outside_a_sandbox_are_no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at every process of this machine finds none that merely has the variables."""
    monkeypatch.setenv("RAILYARD_SANDBOX", "1")
    monkeypatch.setenv("RAILYARD_RUN", "quickstart /tmp/test-of-find")
    assert not [run for run in find() if run.where == "/tmp/test-of-find"]
