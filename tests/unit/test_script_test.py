"""The command line of script/test: a path that is wrong is named in one line before anything runs."""

import subprocess
from pathlib import Path

from pytest_regressions.data_regression import DataRegressionFixture

from tests.import_graph import ROOT

SCRIPT = str(ROOT / "script" / "test")
WRONG = (
    "unit tests/unit/test_missing.py",
    "unit test_missing.py::test_a -q",
    "unit core/units.py",
    "unit -q tests/emulation",
    "emulation tests/unit",
    "changed main tests/unit",
)


def test_wrong_path_is_named_in_one_line(tmp_path: Path, data_regression: DataRegressionFixture) -> None:
    lines = {}
    for arguments in WRONG:
        done = subprocess.run([SCRIPT, *arguments.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        lines[arguments] = line.replace(str(ROOT), "CHECKOUT")
    data_regression.check(lines)
