"""Which run somebody means."""

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.commands.live import LiveRun, choose, find

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
def test_what_is_not_one_run_is_told(wanted: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        choose(wanted, RUNS)
    assert str(caught.value) == message


def test_nothing_alive_is_told() -> None:
    with pytest.raises(BadInput, match="RUN: 'one' is not alive: no run of yours is"):
        choose("one", [])


def test_processes_outside_a_capsule_are_no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at every process of this machine finds none that merely has the variables."""
    monkeypatch.setenv("RAILYARD_CAPSULE", "1")
    monkeypatch.setenv("RAILYARD_RUN", "quickstart /tmp/test-of-find")
    assert not [run for run in find() if run.where == "/tmp/test-of-find"]
