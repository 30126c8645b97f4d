"""A whole script of the Python API: run by Python, by pytest and in a notebook, and checked by mypy --strict."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.emulation.deadlines import scaled
from tests.emulation.notebooks import code_cells, errors_of, kernel
from tests.emulation.programs import ROOT, Program, assert_as_before, machine_state
from tests.unit.api_examples import PLUGIN

nbformat = pytest.importorskip("nbformat", reason="nbformat is missing: script/bootstrap")
RUN_S = 280.0
SCRIPT = """\
import railyard as ry

spec = ry.FabricSpec(kind="rail-only", domains=2, rails=4)
with ry.fabric(spec) as net:                       # enters a sandbox of its own; leaves nothing
    net.ping("d0g1", "d1g2"); net.exec("d0g1", "ip route"); net.iperf("d0g0", "d1g0")
    net.run(ry.AllToAll(bytes="8MB"))              # -> measurements with predictions and a verdict
    with net.fault("link-down", "d0g1") as fault:  # repaired at the end
        fault.recovery                             # detected, rerouted, first packet
    net.processes("d0g0").popen(["python", "train.py"]).wait()  # the user's own program in a GPU's namespace

run = ry.run("quickstart", overrides={"repeats": 3}, out="runs/mine")  # run.results is a pandas DataFrame

ry.load("runs/mine").recoveries
"""
TRAIN = """\
import pathlib, socket
pathlib.Path("trained").write_text(socket.gethostname())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_script_has_types(folder: Path) -> None:
    """A variant: script/test checks docs/examples, which use the same API, with the same strictness."""
    (folder / "script.py").write_text(SCRIPT)
    # as for an installed package: its types are used, and errors in its own modules are not reported
    options = ["--strict", "--follow-imports", "silent", "--cache-dir", str(folder / "cache")]
    argv = [sys.executable, "-m", "mypy", *options, "script.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("how", ["script", "pytest"])
def test_script_runs(how: str, folder: Path) -> None:
    before = machine_state()
    argv = [sys.executable, "script.py"]
    # into the folder that a run has by default
    (folder / "script.py").write_text(SCRIPT.replace(', out="runs/mine"', "").replace('"runs/mine"', "run.folder"))
    if how == "pytest":
        (folder / "script.py").write_text("def test_all() -> None:\n" + textwrap.indent(SCRIPT, "    "))
        argv = [sys.executable, "-m", "pytest", *PLUGIN, "-q", "-p", "no:cacheprovider", "script.py"]
    with Program(argv, cwd=folder) as program:
        assert program.end(RUN_S) == 0, program.output
    assert "Traceback" not in program.output
    (results,) = folder.glob("runs/*/results.csv")
    assert results.parent.name.endswith("-quickstart" if how == "script" else "mine")
    assert (folder / "trained").read_text() == "d0g0"
    assert_as_before(before, 2.0)


def test_script_runs_in_a_notebook(folder: Path) -> None:
    cells = [nbformat.v4.new_code_cell(part) for part in SCRIPT.split("\n\n")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with kernel(notebook, folder, scaled(RUN_S)) as client:
        for cell in code_cells(notebook):
            client.execute_cell(*cell)
            assert errors_of(cell[0]) == []
    assert (folder / "trained").read_text() == "d0g0"
    (shown,) = cells[-1].outputs
    assert "detect_ms" in shown.data["text/html"]
