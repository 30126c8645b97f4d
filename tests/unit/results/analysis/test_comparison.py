"""Comparison of runs: the verdicts, their error rates, the sources, and the command."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.records import IntervalId
from railyard.core.safe_files import Folder
from railyard.experiments import cli
from railyard.results import run_folder
from railyard.results.analysis.comparison import MIN_VALUES, RowKey, Values, compare, values_of
from railyard.results.analysis.fidelity import judge
from railyard.results.runs.manifest import with_manifest
from railyard.results.runs.records import Run
from tests.unit.experiments.measures.allreduce.sample_results import run_of, sample
from tests.unit.sample_runs import sample_run

NOISE = 0.008  # of a repeat's completion time: more than most repeats of `collectives` differ by


def runs(values: Sequence[Sequence[float]], unit: str = "s") -> list[dict[RowKey, Values]]:
    """Return runs with these values of one row."""
    key = RowKey(IntervalId("rail-only", "moe", "dr"), "", "completion_time", unit)
    return [{key: Values(list(of_run))} for of_run in values]


def verdict_of(a: Sequence[float], b: Sequence[float], unit: str = "s") -> str:
    (row,) = compare(runs([a], unit), runs([b], unit)).rows
    return row.verdict


def noisy(dice: np.random.Generator, rows: int, repeats: int, ratio: float = 1.0) -> list[dict[RowKey, Values]]:
    """Return one run with rows whose repeats are noisy, and have an outlier as often as real ones."""
    found = {}
    for number in range(rows):
        value = (1 + number) * ratio * (1 + NOISE * dice.standard_normal(repeats))
        value[dice.random(repeats) < 0.03] *= 1.05
        found[RowKey(IntervalId("rail-only", f"w{number}"), "", "completion_time", "s")] = Values(list(value))
    return [found]


values = st.lists(st.floats(1, 1.005), min_size=MIN_VALUES, max_size=12)


@settings(max_examples=40, deadline=None)
@given(values, values)
def test_rows_that_differ_by_less_than_the_limit_are_the_same(a: list[float], b: list[float]) -> None:
    assert verdict_of(a, b) == "same"


@settings(max_examples=40, deadline=None)
@given(values, values, st.floats(1.04, 3))
def test_more_time_is_slower_and_more_throughput_is_faster(a: list[float], b: list[float], ratio: float) -> None:
    more = [ratio * value for value in b]
    assert verdict_of(a, more) == verdict_of(more, a, "bit/s") == "slower"
    assert verdict_of(more, a) == verdict_of(a, more, "bit/s") == "faster"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1e9), max_size=12), st.lists(st.floats(0, 1e9), max_size=MIN_VALUES - 1))
def test_fewer_than_five_values_give_no_verdict(a: list[float], b: list[float]) -> None:
    assert verdict_of(a, b) == verdict_of(b, a) == "not enough data"


@settings(deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(inf)), min_size=MIN_VALUES, max_size=12))
def test_a_comparison_with_itself_finds_no_change(a: list[float]) -> None:
    found = compare(runs([a]), runs([a]))
    assert found.rows[0].verdict in ("same", "not enough data")
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_step_that_comes_no_more_is_slower() -> None:
    times = [10.0, 11, 12, 13, 14]
    assert verdict_of(times, [inf] * 5, "ms") == "slower"
    assert verdict_of([inf] * 5, times, "ms") == "faster"
    assert verdict_of([inf] * 5, [inf] * 5, "ms") == "same"


def test_recovery_times_within_the_resolution_are_the_same() -> None:
    assert verdict_of([1.0, 1.1, 1.2, 1.3, 1.4], [3.0, 3.1, 3.2, 3.3, 3.4], "ms") == "same"


def test_twenty_pairs_without_a_change_give_one_alarm_at_most() -> None:
    dice = np.random.default_rng(21)
    pairs = [compare(noisy(dice, 20, 10), noisy(dice, 20, 10)) for _ in range(20)]
    assert sum(found.counts["slower"] + found.counts["faster"] > 0 for found in pairs) <= 1
    assert sum(found.counts["same"] for found in pairs) > 100


@pytest.mark.parametrize("repeats", [5, 10])
def test_a_change_of_five_percent_is_found_in_19_of_20(repeats: int) -> None:
    dice = np.random.default_rng(22)
    pairs = [compare(noisy(dice, 20, repeats), noisy(dice, 20, repeats, 1.05)) for _ in range(20)]
    assert sum(bool(found.counts["slower"]) for found in pairs) >= 19


def test_differences_between_enough_runs_widen_the_interval() -> None:
    """Runs that differ by 4% with repeats that hardly do: with five runs a side the run is what is resampled."""
    a = [[level, level + 0.001, level + 0.002] for level in (1.00, 1.01, 1.02, 1.03, 1.04)]
    b = [[value * 1.03 for value in run] for run in a]
    (row,) = compare(runs(a), runs(b)).rows
    assert (row.n_a, row.n_b, row.verdict) == (5, 5, "not enough data")
    assert compare(runs(a[:4]), runs(b[:4])).rows[0].n_a == 12


def repeated(ratio: float = 1.0, repeats: int = 6) -> Run:
    """Return the sample run with times that hardly differ between repeats, multiplied by `ratio`."""
    run = sample_run(2, 2, repeats)
    first = {(m.interval.work, m.fabric, m.phase, m.metric): m for m in reversed(run.measurements)}

    def value(number: int) -> float:
        m = run.measurements[number]
        own = first[m.interval.work, m.fabric, m.phase, m.metric].value
        return own * (1 + m.interval.repeat / 10_000) * (ratio if m.unit == "s" else 1)

    run.measurements = [replace(m, value=value(n), predicted=None) for n, m in enumerate(run.measurements)]
    return run


def test_rows_of_degraded_intervals_are_left_out() -> None:
    run = repeated()
    run.loads = [replace(load, cpu_busy=0.9) if load.repeat < 2 else load for load in run.loads]
    left_out = {key: v for key, v in values_of(run).items() if v.left_out}
    assert left_out
    assert all((v.left_out, len(v.believed)) == (2, 4) for key, v in left_out.items() if not key.where.script)


def save(run: Run, path: Path) -> None:
    """Write the records of a run, without what is drawn from them, which takes seconds."""
    with Folder(path, make=True) as folder:
        for name, data in with_manifest(run_folder._recorded(run, judge(run))):
            folder.write(name, data)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal runs, one that is slower, and one that lost bytes."""
    where = tmp_path_factory.mktemp("runs")
    save(repeated(), where / "a")
    shutil.copytree(where / "a", where / "b")
    save(repeated(1.05), where / "slow")
    lost = repeated()
    lost.bytes = [replace(check, delivered_bytes=0) if n == 0 else check for n, check in enumerate(lost.bytes)]
    save(lost, where / "lost")
    return where


def test_compare_passes_runs_that_do_not_differ(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(folders / "a"), str(folders / "b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["regression"]
    assert found["counts"].pop("same") > 5
    assert found["counts"].keys() <= {"not enough data"}


def test_compare_fails_a_slower_run(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c.md"
    assert cli.main(["compare", str(folders / "a"), str(folders / "slow"), "--markdown", str(out)]) == 1
    assert "slower by more" in capsys.readouterr().out
    text = out.read_text()
    assert text.startswith("### ❌")
    assert "| slower |" in text
    assert cli.main(["compare", str(folders / "slow"), str(folders / "a")]) == 0


def test_compare_fails_lost_bytes_and_too_few_repeats(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(repeated(repeats=2), tmp_path / "few")
    for sides, reason in (
        ((folders / "a", folders / "lost"), "failed: every byte"),
        ((tmp_path / "few",) * 2, "not enough data"),
    ):
        assert cli.main(["compare", *map(str, sides)]) == 1
        assert reason in capsys.readouterr().out


def test_compare_reads_git_revisions(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True, cwd=tmp_path)

    git("init", "-q")
    for name in ("a", "slow"):
        shutil.copytree(folders / name, tmp_path / "results", dirs_exist_ok=True)
        git("add", ".")
        git("commit", "-q", "-m", name)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", "HEAD~1:results", "results"]) == 1
    assert cli.main(["compare", "HEAD:nowhere", "results"]) == 2
    assert "git revision" in capsys.readouterr().err


BAD_SIDES: dict[str, list[str]] = {
    "no folder": ["nowhere", "nowhere"],
    "a long name": ["x" * 300, "."],
    "a long revision": ["x:" + "y" * 5000, "."],
    "a folder without runs": ["empty", "empty"],
    "a limit of 0": [".", ".", "--limit", "0"],
    "a folder that can't be made": [".", ".", "--markdown", "/nowhere/x.md"],
    "records without sense": ["run", "run"],
}


def test_compare_refuses_bad_input_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data_regression: DataRegressionFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    save(run_of(sample()), tmp_path / "run")
    for name in ("manifest.json", "results.parquet"):
        (tmp_path / "run" / name).unlink()
    errors: dict[str, str] = {}
    for case, arguments in BAD_SIDES.items():
        assert cli.main(["compare", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        # what git and Python say differs between their versions
        errors[case] = re.sub("(git revision of a folder|TypeError): .*", r"\1", line)
    data_regression.check(errors)


def test_a_folder_of_runs_is_a_side(folders: Path, tmp_path: Path) -> None:
    for side in ("a", "slow"):
        for number in range(MIN_VALUES):
            shutil.copytree(folders / side, tmp_path / side / str(number))
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "slow"), "--json"]) == 1
