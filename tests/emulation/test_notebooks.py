"""Notebooks of the labs on packets: every cell runs, and the last one finds the answers right."""

import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from railyard.experiments.labs import checking
from railyard.experiments.labs.definition import LABS, Lab, Setting
from tests.emulation.lab_blocks import failed_only_by_load
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, Program
from tests.unit.lab_pages import FOLDER, stem

nbclient = pytest.importorskip("nbclient", reason="nbclient is missing: script/bootstrap")
nbformat = pytest.importorskip("nbformat", reason="nbformat is missing: script/bootstrap")
CELL_S = 150
_COLOUR = re.compile("\x1b\\[[0-9;]*m")  # IPython sets FORCE_COLOR


def checkout(folder: Path) -> Path:
    """Return a folder in which `script/run` runs this checkout: what a notebook writes is not for the checkout."""
    (folder / "script").mkdir(parents=True)
    (folder / "script" / "run").write_text(f'#!/bin/sh\nexec {shlex.join(RUN_EXPERIMENT)} "$@"\n')
    (folder / "script" / "run").chmod(0o755)
    (folder / "run_experiment.py").symlink_to(ROOT / "run_experiment.py")  # which notebooks look for
    return folder


def write_answers(lab: Lab, folder: Path) -> None:
    """Write the right answers, as a student does before the last cell."""
    setting, path = Setting.of(lab, "", folder), folder / checking.ANSWERS
    right = {question.name: question.right(setting) for question in lab.questions}
    answers = {name: ", ".join(sorted(it)) if isinstance(it, frozenset) else it for name, it in right.items()}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "answers": answers}))


def printed_by(cell: Any) -> str:
    return _COLOUR.sub("", "".join(output.get("text", "") for output in cell.outputs))


def assert_ran(cell: Any) -> None:
    """AssertionError if a cell failed for another reason than a busy machine."""
    printed = printed_by(cell)
    errors = [f"{output.ename}: {output.evalue}" for output in cell.outputs if output.output_type == "error"]
    assert not errors or failed_only_by_load(printed), f"{cell.source}\n{printed}\n{errors}"
    assert "Traceback" not in printed, printed


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for sockets, whose paths can't be long."""
    with tempfile.TemporaryDirectory(prefix="ipc-") as name:
        yield Path(name)


@pytest.mark.parametrize("lab", list(map(LABS.__getitem__, LABS)), ids=stem)
def test_cells_run_without_errors(lab: Lab, tmp_path: Path, short: Path, slow: float) -> None:
    here = checkout(tmp_path / "checkout")
    with Program([str(here / "script" / "run"), "lab", str(lab.number)], cwd=here) as made:
        assert made.end(60 * slow) == 0, made.output
    notebook = nbformat.read(FOLDER / f"{stem(lab)}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_S * slow, allow_errors=True, resources={"metadata": {"path": str(here)}}
    )
    manager = client.create_kernel_manager()
    manager.transport, manager.ip = "ipc", str(short / "kernel")  # a test's network namespace has no loopback
    *cells, check = [(n, cell) for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    with client.setup_kernel():
        for n, cell in cells:
            client.execute_cell(cell, n)
            assert_ran(cell)
        write_answers(lab, here / f"lab{lab.number}")
        client.execute_cell(check[1], check[0])
    outcomes = printed_by(check[1]).splitlines()
    wrong = [line for line in outcomes[:-1] if not line.startswith("right ") and "verdict is invalid" not in line]
    assert wrong == []
    assert len(outcomes) == len(lab.runs) + len(lab.questions) + 1
