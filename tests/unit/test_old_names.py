"""Renamed keys and experiments: the old names give the same experiment as the new ones, and one line on stderr."""

import pytest

from railyard.experiments import cli
from railyard.experiments.spec import loading, old_names
from railyard.experiments.spec.experiment import parse
from tests.unit.experiments import load

GRID = {"name": "a", "fabrics": [{"kind": "rail-only", "optical": {"light_off": "20ms"}}]}
OLD_FAULTS = {"storm": {"together": 0.5, "down": ["1s", "2s"], "every": "1s", "at_once": 3}}
NEW_FAULTS = {"group_share": 0.5, "duration": ["1s", "2s"], "mean_interval": "1s", "max_concurrent": 3}
HOT = {"rails": [0], "load": 0.5}
RUN = {"workloads": [{"kind": "transfers"}], "routing": {"policies": ["dr"]}}


@pytest.fixture(autouse=True)
def _no_notice_yet() -> None:
    old_names._notified.clear()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            GRID | {"scripts": [{"name": "s", **OLD_FAULTS}]},
            GRID | {"scripts": [{"name": "s", "random_faults": NEW_FAULTS}]},
        ),
        (
            GRID | {"takeovers": [{"case": "idle-gpu", "failed": "d1g1", "light_off": "20ms"}], "takeover_repeats": 2},
            GRID
            | {
                "replacements": [{"case": "idle-gpu", "failed": "d1g1", "switching_time": "20ms"}],
                "replacement_repeats": 2,
            },
        ),
        (
            GRID | RUN | {"background": [{**HOT, "first": "1s", "lasts": "2s", "every": "3s"}]},
            GRID | RUN | {"background": [{**HOT, "start": "1s", "duration": "2s", "period": "3s"}]},
        ),
    ],
    ids=["random faults", "replacements", "background"],
)
def test_old_keys_give_the_same_experiment(
    old: dict[str, object], new: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse(old) == parse(new)
    notices = capsys.readouterr().err.splitlines()
    assert len(notices) == len(set(notices)) > 1
    assert "note: key 'light_off' is now 'switching_time'; the old name will be removed in the next release" in notices


def test_old_key_next_to_its_new_name_is_refused() -> None:
    with pytest.raises(Exception, match=r"takeovers: .* is not a known key"):
        parse(GRID | {"takeovers": [], "replacements": []})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("storm.count=3", "random_faults.count=3"),
        ("storm.every=300ms", "random_faults.mean_interval=300ms"),
        ("scripts.0.storm.at_once=2", "scripts.0.random_faults.max_concurrent=2"),
    ],
)
def test_old_keys_in_overrides_mean_the_new_ones(old: str, new: str) -> None:
    assert load("random-faults", [old]) == load("random-faults", [new])


@pytest.mark.parametrize(("old", "new"), old_names.EXPERIMENTS.items())
def test_old_experiment_names_still_work(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert load(old) == load(new)
    assert capsys.readouterr().err.startswith(f"note: experiment {old!r} is now {new!r};")
    assert old not in loading.names()
    assert cli.main(["describe", old]) == 0
