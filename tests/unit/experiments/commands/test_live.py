"""Choice of a live run by its name."""

import io

import pytest
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.core.errors import printable
from railyard.experiments.commands.ps import LiveRun, choose, find, print_table
from tests.unit.messages import messages

RUNS = [
    LiveRun("quickstart", "one", "/tmp/one", 11, "root", 1.0),
    LiveRun("recovery", "two", "/home/me/two", 22, "me", 2.0),
    LiveRun("recovery", "three", "/tmp/three", 33, "me", 3.0),
]


@pytest.mark.parametrize("wanted", ["one", "quickstart", "11", "/tmp/one", "/tmp/../tmp/one/"])
def test_a_run_has_several_names(wanted: str) -> None:
    assert choose(wanted, RUNS) == RUNS[0]


def test_argument_that_fits_no_single_run_is_reported(data_regression: DataRegressionFixture) -> None:
    fake = LiveRun("recovery", "fake", "/tmp/fake", 55, "me", 0.0, is_own=False, refused="is refused: it is fake")
    cases = {
        "two runs": ("recovery", RUNS),
        "misspelt name": ("tow", RUNS),
        "nothing alive": ("one", []),
        "refused run": ("fake", [fake, *RUNS]),
    }
    data_regression.check(messages(lambda case: choose(*case), cases))


def test_own_runs_come_first() -> None:
    theirs = LiveRun("quickstart", "one", "/tmp/theirs/one", 44, "me", 0.0, is_own=False)
    assert choose("one", [theirs, *RUNS]) == choose("quickstart", [theirs, *RUNS]) == RUNS[0]
    assert choose("one", [theirs]) == theirs


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
