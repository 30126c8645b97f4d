"""`predict` on the command line: rows and files of every experiment and figure, and what it never overwrites."""

import csv
import errno
import json
import os
from itertools import product
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.safe_files import Folder
from railyard.experiments import cli
from railyard.results.published.catalogue import FIGURES
from tests.unit.experiments.command_errors import command_errors

pytestmark = pytest.mark.usefixtures("figures_as_text")


SLOW_FIGURES = {"allgather", "reliability", "stragglers"}
"""Figures that take seconds to compute, which the tests of their modules do."""


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("name", sorted({*FIGURES.names()} - SLOW_FIGURES))
def test_every_figure_of_the_papers_is_computed(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", name, "--out", str(tmp_path)]) == 0
    rows = rows_of(tmp_path / f"{name}.csv")
    assert len(rows) > 1
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert f"{name}.csv" in capsys.readouterr().out


def test_a_figure_is_as_the_paper_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "fig8", "-o", "domains=3"]) == 2
    assert capsys.readouterr().err.startswith("error: -o: 'domains=3' ")


def test_the_slowdown_predicted_is_that_of_the_paper(tmp_path: Path) -> None:
    """C_S/C_F on a grid of as many rails as domains (Rail-only section IV-B): a twelfth and a ninth."""
    assert cli.main(["predict", "moe-slowdown", "--out", str(tmp_path)]) == 0
    rows = rows_of(tmp_path / "moe-slowdown.csv")
    a2a: dict[str, float] = {}
    for row in rows:
        if row["phase"] == "moe-a2a":
            a2a[row["fabric"]] = float(row["predicted"])
    for platform, ratio in (("a100", 12), ("h100", 9)):
        slower = a2a[f"rail-only {platform}"] / a2a[f"rail-optimized {platform}"]
        assert slower == pytest.approx(1 + 1 / ratio, rel=1e-3)


def cell_text(value: object) -> str:
    return "" if value is None else str(value)


@pytest.mark.parametrize("name", ["hot-rail", "multirail-quick", "table2"])
def test_predict_json_has_the_rows_and_writes_no_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["predict", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == name
    assert not list(tmp_path.iterdir())
    assert cli.main(["predict", name, "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == found
    with (tmp_path / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    for written, row in zip(rows, found["rows"], strict=True):
        assert written == {key: cell_text(value) for key, value in row.items()}
    assert ("claims" in found) == (name == "table2")


def test_prediction_replaces_an_older_prediction(tmp_path: Path) -> None:
    line = ["predict", "moe-slowdown", "--out", str(tmp_path)]
    assert cli.main(line) == 0
    files = [tmp_path / "moe-slowdown.csv", tmp_path / "moe-slowdown.png"]
    before = [file.read_bytes() for file in files]
    assert cli.main([*line, "-o", "domains=8"]) == 0
    for file, old in zip(files, before, strict=True):
        assert file.read_bytes() != old


def in_the_way(kind: str, path: Path) -> None:
    """Something at the path that is no prediction, or can't be read as a file, by root either."""
    if kind == "file":
        path.write_text("my notes")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path)


def test_prediction_never_overwrites_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    errors: dict[str, str] = {}
    for kind, suffix in product(("file", "folder", "pipe", "link"), ("csv", "png")):
        for name in ("collectives", "table2") if kind == "file" else ("table2",):
            path = tmp_path / f"{kind}-{name}-{suffix}" / f"{name}.{suffix}"
            path.parent.mkdir()
            in_the_way(kind, path)
            words = ["predict", name, "--out", str(path.parent)]
            (error,) = command_errors(capsys, {kind: words}, names={str(path): "PATH"}).values()
            assert errors.setdefault(kind, error) == error
            assert list(path.parent.iterdir()) == [path]
            assert kind != "file" or path.read_text() == "my notes"
    data_regression.check(errors)


@pytest.mark.parametrize("method", ["read", "write"])
def test_a_file_that_is_not_yours_is_one_line(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(folder: Folder, name: str, *_: object) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    (tmp_path / "table2.csv").touch()
    monkeypatch.setattr(Folder, method, denied)
    assert cli.main(["predict", "table2", "--out", str(tmp_path)]) == 2
    file = tmp_path / "table2.csv"
    assert capsys.readouterr().err == f"error: --out: {str(file)!r} can't be used: permission denied\n"
