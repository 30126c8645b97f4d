"""Sweeps before anything runs: the cells of axes, `where`, and bad input in one line."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput
from railyard.experiments import cli
from railyard.experiments.spec.loading import load_any
from railyard.experiments.sweep.folder import SweepFolder
from railyard.experiments.sweep.spec import Sweep, cell_name, load
from tests.unit.experiments.command_errors import command_errors

ROOT = Path(__file__).parents[4]
TINY: dict[str, Any] = {
    "name": "tiny",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "50Mbit", "hb_rate": "200Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "300ms"}],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("spec") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return str(path)


def values(sweep: Sweep) -> list[tuple[Any, ...]]:
    return [tuple(cell.axes.values()) for cell in sweep.cells]


def test_cells_are_every_combination_of_the_axes(tiny: str) -> None:
    found = load(tiny, axes=["domains=2,3", "rail_rate=20Mbit,40Mbit"], seeds="1..2")
    assert values(found) == [(d, r, s) for d in (2, 3) for r in ("20Mbit", "40Mbit") for s in (1, 2)]
    assert [(c.spec["fabrics"][0]["domains"], c.spec["seed"]) for c in found.cells[:3]] == [(2, 1), (2, 2), (2, 1)]
    assert len({cell.name for cell in found.cells}) == 8


def test_zip_takes_the_values_of_all_axes_together(tiny: str) -> None:
    assert values(load(tiny, axes=["domains=2,3", "rails=2,4"], zipped=True)) == [(2, 2), (3, 4)]


def test_where_leaves_combinations_out(tiny: str) -> None:
    where = "domains * rails <= 8 and not (domains == 2 and rails in [2, 3])"
    assert values(load(tiny, axes=["domains=2,4", "fabrics.0.rails=2,3,4"], where=where)) == [(2, 4), (4, 2)]


def test_axes_of_the_file_equal_axes_of_the_command_line(tiny: str, tmp_path: Path) -> None:
    written = {**TINY, "axes": {"domains": [2, 3], "seed": [1, 2, 3]}, "where": "domains < 3 or seed == 1"}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(written))
    of_file = load(str(tmp_path / "own.yaml"))
    same = load(tiny, axes=["domains=2,3"], seeds="1..3", where="domains < 3 or seed == 1")
    assert of_file.cells == same.cells
    assert len(of_file.cells) == 4


def test_the_documentations_axes_are_fifteen_runs(tmp_path: Path) -> None:
    (axes,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(), re.DOTALL)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(TINY) + axes)
    assert len(load(str(tmp_path / "own.yaml")).cells) == 2 * 2 * 3 + 3


def test_a_cell_is_the_experiment_with_these_values(tiny: str) -> None:
    (cell,) = load(tiny, axes=["domains=3"], seeds="7").cells
    assert cell.spec == load_any(tiny, ["domains=3"], 7).resolved()
    assert cell.name == cell_name(cell.spec)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(2, 12), min_size=1, max_size=4, unique=True), st.integers(1, 3))
def test_cells_of_more_values_include_cells_of_fewer_values(tiny: str, domains: list[int], seeds: int) -> None:
    def cells(count: int) -> set[str]:
        text = ",".join(map(str, domains[:count]))
        return {cell.name for cell in load(tiny, axes=[f"domains={text}"], seeds=f"1..{seeds}").cells}

    assert len(cells(len(domains))) == len(domains) * seeds
    assert cells(1) <= cells(len(domains))


DOMAINS = ["--axis", "domains=2,4"]
WRONG = {
    "no axis": [],
    "misspelt key": ["--axis", "domans=2,4"],
    "value twice": ["--axis", "domains=2,2"],
    "axis twice": ["--axis", "domains=2", "--axis", "domains=4"],
    "seeds twice": ["--axis", "seed=1,2", "--seeds", "3"],
    "value of another type": ["--axis", "domains=2,x"],
    "several machines": [*DOMAINS, "-o", "hosts=2", "-o", "underlay.interface=eth0"],
    "several machines as an axis": ["--axis", "hosts=1,2"],
    "axis without values": ["--axis", "domains="],
    "axis without =": ["--axis", "domains"],
    "same rate twice": ["--axis", "rail_rate=20Mbit,20000kbit"],
    "seeds backwards": ["--seeds", "5..1"],
    "too many seeds": ["--seeds", "1..99999"],
    "seeds without end": ["--seeds", f"1..{10**30}"],
    "too many values": ["--axis", f"domains={','.join(map(str, range(2, 10_003)))}"],
    "zip of unequal axes": [*DOMAINS, "--axis", "rails=2", "--zip"],
    "half an expression": [*DOMAINS, "--where", "domains >"],
    "expression of another key": [*DOMAINS, "--where", "rails > 1"],
    "expression with an attribute": [*DOMAINS, "--where", "domains.real"],
    "division by zero": [*DOMAINS, "--where", "domains / 0 > 1"],
    "number times text": [*DOMAINS, "--where", "domains * 'x' == 1"],
    "where leaves nothing": [*DOMAINS, "--where", "domains > 9"],
    "unknown machines": [*DOMAINS, "--on", "foo"],
    "retry of what is right": [*DOMAINS, "--retry", "ok"],
}
HUGE = f"{'9' * 4000} * {'9' * 4000} + 'x'"
"""An expression whose value would take minutes to print."""


def test_sweep_refuses_bad_input_in_one_line(
    tiny: str, capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    cases = {case: ["sweep", tiny, *options] for case, options in WRONG.items()}
    huge = command_errors(capsys, {"huge": ["sweep", tiny, *DOMAINS, "--where", HUGE]})
    assert huge["huge"].startswith("where: ")
    data_regression.check(command_errors(capsys, cases))


def test_a_sweep_is_no_experiment_to_run(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**TINY, "axes": {"domains": [2]}}))
    with pytest.raises(BadInput, match=re.escape(f"type sweep {path}")):
        load_any(str(path))


def test_dry_run_prints_the_runs(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert cli.main(["sweep", tiny, "--axis", "domains=2,3", "--seeds", "1..2", "--dry-run", "--out", out]) == 0
    shown = capsys.readouterr().out
    assert shown.count("missing") == 4
    assert "4 runs, 4 to do" in shown
    assert not (tmp_path / "out").exists()


def test_machines_without_dask_here_give_one_line(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)  # as if it were not installed
    assert cli.main(["sweep", tiny, "--seeds", "1..2", "--on", "tcp://127.0.0.1:9", "--insecure"]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: --on: this machine lacks Dask's package distributed; ")
    assert error.count("\n") == 1


def test_a_folder_of_another_sweep_gives_one_line(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    own = load(tiny, axes=["domains=2,3"])
    with SweepFolder(tmp_path, own) as folder:
        folder.claim()
    there = ["--dry-run", "--out", str(tmp_path)]
    cases = {
        "other axes": ["sweep", tiny, "--seeds", "1..2", *there],
        "another experiment": ["sweep", tiny, "--axis", "domains=2,3", "-o", "repeats=9", *there],
    }
    errors = command_errors(capsys, cases, names={str(tmp_path): "FOLDER"})
    same = ["sweep", tiny, "--axis", "domains=2,3", *there]
    for runs in (5, [1], [{"folder": "../../..", "axes": {}}], [{"folder": "0123456789abcdef"}]):
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**own.as_dict(), "runs": runs}))
        errors |= command_errors(capsys, {f"runs {runs}": same}, names={str(tmp_path): "FOLDER"})
    data_regression.check(errors)
