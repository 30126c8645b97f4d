"""Results for continuous integration: JUnit XML, Markdown, JSON."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.experiments.run import folder
from railyard.results import run_folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import RUN, STEP, Event, Run
from railyard.results.views import ci
from tests.unit.sample_runs import sample_run

pytestmark = pytest.mark.usefixtures("figures_as_text")


def sampled(text: str = "rail-only: all-to-all", verdict: str = "ok") -> Run:
    run = sample_run(2, 2, 1)
    detail = {"text": text, "number": 1, "of": 2, "seconds": 1.5, "verdict": verdict, "result": f"{text} < 1 s"}
    run.events.append(Event(1, RUN, STEP, detail))
    return run


def cases(data: bytes) -> dict[str, ElementTree.Element]:
    """Return the test cases by name; check what readers of JUnit XML rely on."""
    root = ElementTree.fromstring(data)
    assert root.tag == "testsuites"
    suites = list(root)
    assert {suite.tag for suite in suites} == {"testsuite"}
    for suite in (root, *suites):
        found = suite.findall(".//testcase")
        assert int(suite.attrib["tests"]) == len(found)
        for kind in ("failure", "error", "skipped"):
            counted = suite.attrib["skipped" if kind == "skipped" else f"{kind}s"]
            assert int(counted) == len(suite.findall(f".//{kind}"))
        assert float(suite.attrib["time"]) >= 0
    for case in root.iter("testcase"):
        assert case.attrib.keys() == {"classname", "name", "time"}
        assert {child.tag for child in case} <= {"failure", "error", "system-out"}
        assert all("message" in child.attrib for child in case if child.tag != "system-out")
    return {case.attrib["name"]: case for case in root.iter("testcase")}


def test_junit_has_a_case_for_each_check_and_step() -> None:
    run = sampled()
    analysis = Analysis(run)
    found = cases(ci.junit(analysis))
    assert [*found] == [check.name for check in analysis.checks] + ["rail-only: all-to-all"]
    failed = {name for name, case in found.items() if case.find("failure") is not None}
    assert failed == {check.name for check in analysis.checks if not check.passed}
    assert found["rail-only: all-to-all"].attrib["time"] == "1.500"


def test_junit_has_a_failure_for_each_failed_step() -> None:
    analysis = Analysis(sampled(verdict="invalid"))
    analysis.run.failed = "link-down at d0g1 had no effect"
    found = cases(ci.junit(analysis))
    ended = analysis.checks[0].name
    for name, message in ((ended, analysis.run.failed), ("rail-only: all-to-all", "rail-only: all-to-all < 1 s")):
        failure = found[name].find("failure")
        assert failure is not None
        assert failure.attrib["message"] == message
    (only,) = cases(ci.junit_without_records("small", "exit status 1")).values()
    assert only.find("error") is not None


@given(st.text())
def test_any_name_gives_xml_and_one_row_of_markdown(name: str) -> None:
    run = Run("mine", {}, {}, "now", events=sampled(name).events)
    analysis = Analysis(replace(run, name=name))
    assert cases(ci.junit(analysis))
    lines = ci.markdown(analysis).decode().splitlines()
    row = next(line for line in lines if line.endswith("\\< 1 s |"))
    assert len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", row))) == 5


def test_markdown_has_failed_checks_first_and_all_steps(file_regression: FileRegressionFixture) -> None:
    run = sampled()
    run.failed = "link-down at d0g1 had no effect"
    file_regression.check(ci.markdown(Analysis(run)).decode(), extension=".md")


def test_outputs_are_written_from_the_runs_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    xml, text = tmp_path / "junit.xml", tmp_path / "summary.md"
    with Folder(tmp_path / "out", make=True) as opened:
        folder.write_outputs(opened, xml, text, True, "exit status 70")
        assert json.loads(capsys.readouterr().out)["problem"] == "exit status 70"
        assert len(cases(xml.read_bytes())) == 1
        run_folder.save(sampled(), opened)
        folder.write_outputs(opened, xml, text, True)
    assert len(cases(xml.read_bytes())) > 5
    assert text.read_text().startswith("### ")
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out/summary.json").read_text())


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "is a folder"), ("no/junit.xml", "is no folder"), ("x" * 5000, "name too long")],
)
def test_a_file_that_cannot_be_written_is_refused_at_once(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"--junit: .*{message}"):
        folder.check_outputs({"--junit": tmp_path / name, "--markdown": None})
