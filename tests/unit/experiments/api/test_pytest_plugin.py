"""The pytest plugin: outcomes of tests after measurements on a busy machine, and mistakes in the marker."""

import subprocess
import sys
from importlib import import_module

import pytest

from railyard.core.registry import REGISTRIES
from tests.unit.api_examples import PLUGIN, ROOT
from tests.unit.sample_runs import sample_run

pytest_plugins = ["pytester"]
OPTIONS = (*PLUGIN, "-p", "no:randomly", "-p", "no:cacheprovider")
TEST = """
from dataclasses import replace
import pytest
import railyard as ry
from railyard.experiments.api import timing
from tests.unit.sample_runs import sample_run

def measured(foreign, lost=0):
    run = sample_run(repeats=1)
    run.loads[:] = [replace(load, cpu_foreign=foreign) for load in run.loads]
    run.bytes[:] = [replace(check, delivered_bytes=check.delivered_bytes - lost) for check in run.bytes]
    found = ry.Results(run)
    timing.record(found)
    return found

BUSY = measured(0.9)

def test_busy():
    with ry.timing():
        assert measured(0.9).seconds < 0

def test_busy_before_the_block():
    with ry.timing(BUSY):
        assert BUSY.seconds < 0

def test_busy_and_passed():
    with ry.timing(BUSY):
        assert BUSY.verdict == "invalid"

def test_busy_check():
    BUSY.check()

def test_wrong_quiet():
    with ry.timing():
        assert measured(0.0).seconds < 0

def test_wrong_functional():
    assert measured(0.9).seconds > 0
    assert len(BUSY.results) == 0

def test_wrong_after_the_block():
    with ry.timing(BUSY):
        assert BUSY.seconds > 0
    assert len(BUSY.results) == 0

def test_wrong_type_in_the_block():
    with ry.timing(BUSY):
        assert BUSY.seconds < "1"

def test_wrong_other_results():
    with ry.timing(measured(0.0)):
        assert BUSY.seconds < 0

def test_wrong_lost_bytes():
    with ry.timing():
        assert measured(0.9, lost=1).seconds < 0

def test_wrong_lost_bytes_checked():
    measured(0.9, lost=1).check()

def test_wrong_without_measurement():
    with ry.timing():
        assert False
"""


MARKERS = """
import pytest

@pytest.mark.fabric(domains=1)
def test_value(fabric): ...

@pytest.mark.fabric(rial=2)
def test_key(fabric): ...

@pytest.mark.fabric(scope="modul")
def test_scope(fabric): ...

@pytest.mark.fabric(visible="/tmp/data")
def test_visible(fabric): ...
"""


@pytest.fixture(autouse=True)
def everything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import what sessions of pytest in this process use, since `pytester` forgets the modules that they import."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("api.fabric", "api.machine"):
        import_module(f"railyard.experiments.{name}")
    for registry in list(REGISTRIES.values()):
        registry.names()
    sample_run(2, 2, 1)


def test_only_assertions_on_measured_times_are_inconclusive(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    result = pytester.runpytest_inprocess(*OPTIONS)
    outcomes = result.parseoutcomes()
    assert (outcomes["failed"], outcomes["passed"], outcomes["inconclusive"]) == (8, 1, 3)
    summary = "\n".join(line for line in result.outlines if line.startswith("FAILED "))
    assert summary.count("::test_wrong_") == outcomes["failed"]
    result.stdout.fnmatch_lines(["*every byte delivered, for every pair: *"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--railyard-strict", "-n", "1"), 6)])
def test_inconclusive_tests_show_their_traceback(
    pytester: pytest.Pytester, options: tuple[str, ...], status: int
) -> None:
    pytester.makepyfile(TEST)
    result = pytester.runpytest_inprocess(*OPTIONS, *options, "--junitxml=junit.xml", "-k", "test_busy")
    assert result.ret == status
    result.assert_outcomes(passed=1)
    lines = (
        "*= inconclusive: the machine was too busy =*",
        "*_ test_busy _*",
        ">           assert measured(0.9).seconds < 0",
        "E           assert * < 0",
        "E           fidelity: invalid: *of all cores used by other programs*",
        "*.py::test_busy: 90.0% of all cores used by other programs",
    )
    result.stdout.fnmatch_lines(lines)
    junit = (pytester.path / "junit.xml").read_text()
    assert junit.count("inconclusive: 90.0% of all cores used by other programs") == 6  # message and text of each test
    assert "assert measured(0.9).seconds &lt; 0" in junit


def test_wrong_marker_fails_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MARKERS)
    result = pytester.runpytest_inprocess(*OPTIONS, "--strict-markers")
    lines = (
        "marker fabric: domains: 1 must be 2 or more",
        "marker fabric: *unexpected keyword argument 'rial'",
        "marker fabric: scope: 'modul' is not known: allowed are function, class, module, session",
        "marker fabric: visible: '/tmp/data' must be a list of paths",
    )
    result.stdout.fnmatch_lines(lines)
    result.assert_outcomes(errors=4)


def test_machine_that_lacks_programs_skips_as_doctor_says(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    pytester.makepyfile("def test_packets(fabric): ...")
    result = pytester.runpytest_subprocess(*OPTIONS, "-rs")
    result.assert_outcomes(skipped=1)
    doctor = subprocess.run([sys.executable, "-m", "railyard", "doctor"], capture_output=True, text=True, check=False)
    reason = doctor.stdout.splitlines()[-1].removeprefix("Nothing runs here yet: ")
    assert reason.startswith("this machine lacks ")
    assert f"SKIPPED [1] test_machine_that_lacks_programs_skips_as_doctor_says.py:1: {reason}" in result.outlines
