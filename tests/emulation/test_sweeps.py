"""A sweep on packets: domains of 2, 4 and 8 of the same 16 GPUs, and the curve over them."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from railyard.results import run_folder
from railyard.results.analysis.fidelity import judge
from railyard.results.runs.records import Run
from tests.emulation.programs import RUN_EXPERIMENT, Program, as_root

SMALL = ("-o", "workloads.0.bytes=100KB", "-o", "repeats=1", "-o", "attempts=1")
LABELS = ["rail-only 8x2", "rail-only 4x4", "rail-only 2x8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, slow: float) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    with Program(as_root([*RUN_EXPERIMENT, "run", "sweep-domain-size", *SMALL, "--out", str(out)])) as run:
        assert run.end(240 * slow) in (0, 1), run.output  # 1: too busy a machine to be believed
    return out


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return run_folder.load(folder)


def test_every_byte_arrives_and_none_goes_between_rails(run: Run) -> None:
    assert [check.fabric for check in run.bytes] == LABELS
    for check in run.bytes:
        assert check.delivered_bytes == check.asked_bytes > 0
        assert check.pairs_wrong == 0
        assert check.cross_rail_bytes == 0


def test_larger_domains_shorten_iterations_as_predicted(run: Run) -> None:
    """A time that a busy machine made longer is not ok, and shows nothing."""
    wholes, judgement = {m.fabric: m for m in run.measurements if m.metric == "iteration_time"}, judge(run)
    assert list(wholes) == LABELS
    for smaller, larger in pairwise(wholes.values()):
        assert smaller.predicted
        assert larger.predicted
        assert smaller.predicted > larger.predicted
        if judgement.of_row(smaller) == judgement.of_row(larger) == "ok":
            assert smaller.value > 0.9 * larger.value


def test_the_report_has_the_curve(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "gpt-145.6b over GPUs in an HB domain (domains x rails). rail-only: rail-only 8x2 " in page
    assert json.loads((folder / "summary.json").read_text())["interrupted"] is False
