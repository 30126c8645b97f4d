"""Sweeps before anything runs: the cells of axes, `where`, and bad input in one line."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.experiments import cli
from railyard.experiments.spec.loading import load_any
from railyard.experiments.sweep.folder import SweepFolder
from railyard.experiments.sweep.spec import Sweep, cell_name, load

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


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "--axis: '' is missing: a sweep needs axes"),
        (["--axis", "domans=2,4"], "axis: 'domans' is not a known key: did you mean 'domains'?"),
        (["--axis", "domains=2,2"], "axis domains: 2 is there twice"),
        (["--axis", "domains=2", "--axis", "domains=4"], "--axis: 'domains' is given twice"),
        (["--axis", "seed=1,2", "--seeds", "3"], "--axis: 'seed' is given twice"),
        (["--axis", "domains=2,x"], "fabrics.0.domains: 'x' must be a whole number"),
        (
            ["--axis", "domains=2,4", "-o", "hosts=2", "-o", "underlay.interface=eth0"],
            "hosts: 2 is for run: a run of a sweep is on one machine",
        ),
        (["--axis", "domains="], "axis domains: [] must have one value or more"),
        (["--axis", "domains"], "--axis: 'domains' must be KEY=V1,V2"),
        (["--axis", "rail_rate=20Mbit,20000kbit"], "axis rail_rate: '20000kbit' makes the same run as '20Mbit'"),
        (["--seeds", "5..1"], "--seeds: '5..1' must be a range"),
        (["--seeds", "1..99999"], "--seeds: '1..99999' must be a range"),
        (
            ["--seeds", f"1..{10**30}"],
            "must be a range, such as 1..5, or a list, such as 1,3,7, of 10,000 seeds or fewer",
        ),
        (["--axis", f"domains={','.join(map(str, range(2, 10_003)))}"], "axis domains: '10,001 values' must be 10,000"),
        (["--axis", "domains=2,4", "--axis", "rails=2", "--zip"], "needs axes with equally many values"),
        (["--axis", "domains=2,4", "--where", "domains >"], "where: 'domains >' is no expression"),
        (["--axis", "domains=2,4", "--where", "rails > 1"], "where: 'rails > 1' may have domains, numbers"),
        (["--axis", "domains=2,4", "--where", "domains.real"], "may have domains, numbers"),
        (["--axis", "domains=2,4", "--where", "domains / 0 > 1"], "can't be computed: division by zero"),
        (["--axis", "domains=2,4", "--where", "domains * 'x' == 1"], "are not both numbers"),
        (["--axis", "domains=2,4", "--where", f"{'9' * 4000} * {'9' * 4000} + 'x'"], "can't be computed"),
        (["--axis", "domains=2,4", "--where", "domains > 9"], "where: 'domains > 9' leaves no combination"),
        (["--axis", "hosts=1,2"], "hosts: 2 is for run: a run of a sweep is on one machine"),
        (
            ["--axis", "domains=2,4", "--dry-run", "--on", "foo"],
            "--on: 'foo' must be local, tls://SCHEDULER:PORT, tcp://SCHEDULER:PORT or ssh:",
        ),
        (["--axis", "domains=2,4", "--retry", "ok"], "--retry: 'ok' must be of degraded, invalid, failed"),
        (["--axis", "domains=2,4", "--on", "there"], "--on: 'there' must be local"),
    ],
)
def test_sweep_refuses_bad_input_in_one_line(
    options: list[str], line: str, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", tiny, *options]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_a_sweep_is_no_experiment_to_run(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**TINY, "axes": {"domains": [2]}}))
    with pytest.raises(BadInput, match=re.escape(f"is for a sweep: type sweep {path}")):
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
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = load(tiny, axes=["domains=2,3"])
    with SweepFolder(tmp_path, own) as folder:
        folder.claim()
    for options, what in ((["--seeds", "1..2"], "other axes"), (["-o", "repeats=9"], "another experiment")):
        axes = ["--axis", "domains=2,3"] if what == "another experiment" else []
        assert cli.main(["sweep", tiny, *axes, *options, "--dry-run", "--out", str(tmp_path)]) == 2
        assert capsys.readouterr().err == (f"error: --out: '{tmp_path}' is a sweep of {what}: choose another folder\n")


@pytest.mark.parametrize("runs", [5, [1], [{"folder": "../../..", "axes": {}}], [{"folder": "0123456789abcdef"}]])
def test_a_sweep_file_of_anything_else_gives_one_line(
    runs: object, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = load(tiny, axes=["domains=2,3"])
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**own.as_dict(), "runs": runs}))
    assert cli.main(["sweep", tiny, "--axis", "domains=2,3", "--dry-run", "--out", str(tmp_path)]) == 2
    allowed = "has a sweep.yaml that no sweep wrote: choose another folder"
    assert capsys.readouterr().err == f"error: --out: '{tmp_path}' {allowed}\n"
