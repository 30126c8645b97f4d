"""Notebooks of the labs on packets: every cell runs, and the last one finds the answers right."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from railyard.experiments.labs import checking
from railyard.experiments.labs.definition import Lab, Setting, in_order
from railyard.experiments.labs.pages import stem
from tests.emulation.deadlines import scaled
from tests.emulation.lab_blocks import BLOCK_S, failed_only_by_load, runs_solution
from tests.emulation.notebooks import code_cells, errors_of, kernel, printed_by
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, Program

nbformat = pytest.importorskip("nbformat", reason="nbformat is missing: script/bootstrap")


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


def assert_ran(cell: Any) -> None:
    """AssertionError if a cell failed for another reason than a busy machine."""
    printed, errors = printed_by(cell), errors_of(cell)
    assert not errors or failed_only_by_load(printed), f"{cell.source}\n{printed}\n{errors}"
    assert "Traceback" not in printed, printed


@pytest.mark.long
@pytest.mark.parametrize("lab", in_order(), ids=stem)
def test_cells_run_without_errors(lab: Lab, tmp_path: Path) -> None:
    here = checkout(tmp_path / "checkout")
    with Program([str(here / "script" / "run"), "lab", str(lab.number)], cwd=here) as made:
        assert made.end(60) == 0, made.output
    notebook = nbformat.read(here / f"lab{lab.number}" / "lab.ipynb", as_version=4)
    *cells, check = code_cells(notebook)
    with kernel(notebook, here, scaled(BLOCK_S)) as client:
        for cell in cells:
            if lab.starter and runs_solution(lab, cell[0].source):
                (here / f"lab{lab.number}" / lab.starter.file).write_text(lab.starter.solution)
            client.execute_cell(*cell)
            assert_ran(cell[0])
        write_answers(lab, here / f"lab{lab.number}")
        client.execute_cell(*check)
    *outcomes, _ = printed_by(check[0]).splitlines()
    assert [line for line in outcomes if not line.startswith("right ") and "verdict is invalid" not in line] == []
    assert len(outcomes) == len(lab.runs) + len(lab.questions)
