"""`report` of each stored run gives what its golden files have, and saving the run again gives the same records."""

import io
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.experiments.options import PrintableConsole
from railyard.experiments.spec import loading
from railyard.results import run_folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Run
from railyard.results.views import report
from tests import golden
from tests.data.runs import make

DRAWN: Final = ("summary.json", "report.html", "timeline.json")
"""Files that `report --timeline-json` writes into the run's folder."""
FOR_CI: Final = ("junit.xml", "result.md")
FILES: Final = ("terminal.txt", *DRAWN, *FOR_CI)


@cache
def stored(name: str) -> Run:
    """Return a stored run, which tests don't change."""
    return run_folder.load(make.FOLDER / name)


@pytest.mark.usefixtures("figures_as_text")
@pytest.mark.parametrize("name", make.names())
def test_report_is_as_stored(
    name: str, file_regression: FileRegressionFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(make.FOLDER / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    wide, narrow = golden.WIDTHS
    options = ["--junit", "junit.xml", "--markdown", "result.md", "--timeline-json"]
    text = golden.printed(["report", name, *options], wide)
    output = io.StringIO()
    with golden.terminal_of(narrow):
        report.print_summary(Analysis(stored(name)), PrintableConsole(file=output, width=narrow))
    text += f"\nthe summary in {narrow} columns:\n{golden.without_version(output.getvalue())}"
    contents = {"terminal.txt": text}
    contents |= {file: (tmp_path / name / file).read_text(encoding="utf-8") for file in DRAWN}
    contents |= {file: (tmp_path / file).read_text(encoding="utf-8") for file in FOR_CI}
    contents["timeline.json"] = contents["timeline.json"].replace("}, {", "},\n{")  # an event a line, for diffs
    contents["report.html"], shared_parts = golden.without_shared_parts(contents["report.html"])
    for file, part in shared_parts.items():
        file_regression.check(part, fullpath=golden.FOLDER / "report" / file, encoding="utf-8")
    for file in FILES:
        path = golden.FOLDER / "report" / name / file
        file_regression.check(golden.without_version(contents[file]), fullpath=path, encoding="utf-8")


@pytest.mark.parametrize("name", make.names())
def test_saved_again_records_are_the_same(name: str) -> None:
    written = dict(make.records(stored(name)))
    paths = [path for path in (make.FOLDER / name).rglob("*") if path.is_file()]
    assert {path.relative_to(make.FOLDER / name).as_posix() for path in paths} == set(written)
    for path in paths:
        content = written[path.relative_to(make.FOLDER / name).as_posix()]
        assert content == path.read_bytes(), f"{path}: CONTRIBUTING.md, Golden files, says how to store it anew"


@pytest.mark.parametrize("name", make.names())
def test_stored_run_names_no_machine(name: str) -> None:
    for path in (make.FOLDER / name).rglob("*"):
        if path.is_file():
            assert not re.search(rb"/(home|root|tmp|work|Users)/", path.read_bytes()), path


def test_no_golden_file_is_left_over() -> None:
    expected = {f"report/{name}/{file}" for name in make.names() for file in FILES}
    expected |= {f"report/{file}" for file in golden.SHARED_PARTS.values()}
    expected |= {f"list/{name}.txt" for name in golden.LISTS}
    expected |= {f"{command}/{name}.txt" for command in golden.COMMANDS for name in loading.names()}
    paths = [path for path in golden.FOLDER.rglob("*") if path.is_file()]
    assert {path.relative_to(golden.FOLDER).as_posix() for path in paths} == expected
