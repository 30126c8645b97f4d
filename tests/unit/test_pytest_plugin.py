"""The pytest plugin: outcomes of tests after measurements on a busy machine, and mistakes in the marker."""

import subprocess
import sys

import pytest

from tests.unit.api_examples import PLUGIN, ROOT

pytest_plugins = ["pytester"]
OPTIONS = (*PLUGIN, "-p", "no:randomly", "-p", "no:cacheprovider")
TEST = """
from dataclasses import replace
import pytest
import railyard as ry
from railyard.experiments.api.pytest_plugin import MEASURED
from tests.unit.results_sample import sample_run

def measured(request, foreign):
    run = sample_run(repeats=1)
    run.loads[:] = [replace(load, cpu_foreign=foreign) for load in run.loads]
    found = ry.Results(run)
    request.node.stash.setdefault(MEASURED, []).append(found)
    return found

def test_busy(request):
    assert measured(request, 0.9).seconds < 0

def test_quiet(request):
    assert measured(request, 0.0).seconds < 0

def test_busy_and_passed(request):
    assert measured(request, 0.9).verdict == "invalid"

def test_busy_and_crashed(request):
    measured(request, 0.9)
    raise ValueError("a mistake of the test")

def test_without_measurement():
    assert False

def test_check_of_busy(request):
    measured(request, 0.9).check()
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
def checkout_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_failed_assertion_under_invalid_verdict_is_inconclusive(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess(*OPTIONS)
    found = result.parseoutcomes()
    assert (found["failed"], found["passed"], found["inconclusive"]) == (3, 1, 2)
    result.stdout.fnmatch_lines(["*test_busy: *of all cores used by other programs*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--railyard-strict", "-n", "1"), 6)])
def test_exit_status_is_its_own_if_strict(pytester: pytest.Pytester, options: tuple[str, ...], status: int) -> None:
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess(*OPTIONS, *options, "-k", "test_busy and not crashed")
    assert result.ret == status
    result.assert_outcomes(passed=1)


def test_wrong_marker_fails_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MARKERS)
    result = pytester.runpytest_subprocess(*OPTIONS, "--strict-markers")
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
