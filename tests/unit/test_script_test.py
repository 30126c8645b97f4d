"""The command line of script/test: a path that is wrong is named in one line before anything runs."""

import subprocess
from pathlib import Path

import pytest

from tests.import_graph import ROOT

SCRIPT = str(ROOT / "script" / "test")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("unit tests/unit/test_missing.py", "tests/unit/test_missing.py: no such file or folder"),
        ("unit test_missing.py::test_a -q", "test_missing.py::test_a: no such file or folder"),
        ("unit core/units.py", f"core/units.py: not in {ROOT}/tests/unit"),
        (
            "unit -q tests/emulation",
            f"tests/emulation: tests on real packets; type: sudo {SCRIPT} emulation tests/emulation",
        ),
        ("emulation tests/unit", f"tests/unit: unit tests; type: {SCRIPT} unit tests/unit"),
        ("changed main tests/unit", "tests/unit: changed takes no path; type: script/test unit tests/unit"),
    ],
)
def test_wrong_path_is_named_in_one_line(arguments: str, message: str, tmp_path: Path) -> None:
    done = subprocess.run([SCRIPT, *arguments.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"railyard: {message}\n")
