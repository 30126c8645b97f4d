"""`check`: the page on the terminal, as Markdown, HTML and JSON, and its exit status."""

import json
from pathlib import Path
from typing import Any

import pytest

from railyard.experiments import cli
from railyard.experiments.spec import loading
from tests.import_graph import ROOT

LOGS = ROOT / "tests" / "cluster_logs"


@pytest.mark.parametrize(("name", "status"), [("shared-nics", 0), ("crossing", 1)])
def test_pages_are_as_before(
    name: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], file_regression: Any
) -> None:
    words = ["check", str(LOGS / f"{name}.log"), "--nic-rate", "100Gbit"]
    pages = {"--markdown": tmp_path / "page.md", "--html": tmp_path / "page.html"}
    for option, path in pages.items():
        words += [option, str(path)]
    assert cli.main(words) == status
    terminal = capsys.readouterr().out
    assert cli.main([*words, "--json"]) == status
    page = json.loads(capsys.readouterr().out)
    assert page["headline"] in terminal
    assert page["headline"] in pages["--html"].read_text()
    assert sum(row["crossing"] for row in page["communicators"]) == len(page["crossing"])
    file_regression.check(pages["--markdown"].read_text(), extension=".md")


def test_nothing_known_is_not_called_working(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (LOGS / "shared-nics.log").read_text()
    lines = [line for line in text.splitlines() if " via " not in line]
    (tmp_path / "short.log").write_text("\n".join(lines))
    assert cli.main(["check", str(tmp_path / "short.log"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["communicators"]
    assert (row["rail_only"], row["rail_optimized"]) == ("not known", "not known")


def test_fabric_has_the_clusters_map_of_gpus_to_rails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    assert cli.main(["check", str(LOGS / "shared-nics.log"), "--fabric", str(path)]) == 0
    spec = loading.load_any(str(path))
    assert [fabric.rail_of_rank for fabric in spec.gpu_fabrics] == [(0, 0, 1, 1)] * 2
    assert [fabric.domains for fabric in spec.gpu_fabrics] == [2, 2]
    (tmp_path / "map.yaml").write_text("node0: {0: 0, 1: 1}\nnode1: {0: 1, 1: 0}\n")
    words = ["--rails", str(tmp_path / "map.yaml"), "--fabric", str(path)]
    capsys.readouterr()
    assert cli.main(["check", str(LOGS / "shared-nics.log"), *words]) == 2
    assert "node1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--rails", "missing.yaml"], ["--nic-rate", "fast"], ["--markdown", "/no/such/a.md"]]
)
def test_a_wrong_option_is_named_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(LOGS / "crossing.log"), *words]) == 2
    error = capsys.readouterr().err
    assert words[0] in error
    assert error.count("\n") == 1
