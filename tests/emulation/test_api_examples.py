"""The examples of docs/api.md, run as users run them."""

import sys
from pathlib import Path

import pytest

from tests.emulation.programs import Program
from tests.unit.api_examples import FOLDER, PLUGIN

EXPECTED = {
    "errors": "target d7g0 is no",
    "experiment": "Columns: [fault, target",
    "fabric": "in a GPU",
    "ranks": "[0, 0, 0, 0]\n6\n",
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*EXPECTED, "test_fabric"}


@pytest.mark.long
@pytest.mark.parametrize("name", EXPECTED)
def test_example_prints_its_expected_output(name: str, tmp_path: Path) -> None:
    """Variants: test_api.py does the same."""
    with Program([sys.executable, str(FOLDER / f"{name}.py")], cwd=tmp_path) as program:
        assert program.end(150) == 0, program.output
    assert EXPECTED[name] in program.output


@pytest.mark.long
def test_user_tests_pass_or_are_inconclusive(tmp_path: Path) -> None:
    """A variant: test_api.py has the same fixtures, fault and workload."""
    (tmp_path / "test_fabric.py").write_text((FOLDER / "test_fabric.py").read_text())
    with Program(
        [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", f"--basetemp={tmp_path}/base", "."],
        cwd=tmp_path,
    ) as program:
        assert program.end(150) == 0, program.output
    assert "2 passed" in program.output or "inconclusive" in program.output
