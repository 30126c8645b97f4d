"""Programs that really train while something fails: an experiment from its file to its table, and a user's own test."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from railyard.experiments.live import recorded
from railyard.workloads.training.program import TRAINING_PROGRAMS
from tests.emulation.programs import ROOT, Program
from tests.emulation.runs import Stored, overrides, run_experiment
from tests.unit.api_examples import PLUGIN

pytestmark = pytest.mark.long
DOWN, CRASH = (f"{{kind: {kind}, target: d1g0, at: 300ms, repair: 500ms}}" for kind in ("link-down", "gpu-crash"))
TWO_RANKS: Final = "domains=2"  # each takes 3 s of CPU to import PyTorch, and again after each restart
PROGRAMS: Final = {
    "mpi": f"[{CRASH}, {DOWN}]",
    "torchft": f"[{CRASH}]",
    "ddp": f"[{CRASH}, {DOWN}]",
    "gloo": f"[{CRASH}, {DOWN}]",
    "torchft-ddp": f"[{DOWN}]",  # it does not survive a crash: see docs/training.md
}


def run_faults(folder: Path, *changes: str, live: Sequence[str] = ()) -> Stored:
    """Run the experiment once with these overrides."""
    options = overrides("training_repeats=1", "attempts=1", *changes)
    stored = run_experiment("training-faults", folder, *options, *live, within_s=200)
    stored.assert_only_the_machine_failed()
    return stored


def skip_without(program: str) -> None:
    if lacking := TRAINING_PROGRAMS[program].missing_requirement():
        pytest.skip(str(lacking))


@pytest.mark.parametrize("program", PROGRAMS)
def test_training_ends_with_the_weights_of_one_without_faults(program: str, tmp_path: Path) -> None:
    skip_without(program)
    changes = [f"program={program}", f"trainings.0.faults={PROGRAMS[program]}", "steps=30"]
    if not program.startswith("torchft"):  # whose groups may join again in another order, which a sum of two hides
        changes.append(TWO_RANKS)
    stored = run_faults(tmp_path, *changes)
    assert "weights equal" in stored.output
    for row in stored.summary["headline"]["training"]:
        assert (row["completed"], row["weights_equal"]) == ([1], [1])
        if row["fault"].startswith("gpu-crash"):
            assert row["stalled_s"][0] > 0.4  # the GPU is back after 0.5 s
        else:  # the controller's detour is all that is needed
            assert (row["steps_lost"], row["detected_s"]) == ([0], [])


def test_live_page_has_a_trainings_fault_and_first_packet(tmp_path: Path) -> None:
    skip_without("gloo")
    target, fault = "d1g0", "{kind: link-down, target: d1g0, at: 300ms, repair: 2s}"
    changes = ("program=gloo", f"trainings.0.faults=[{fault}]")
    stored = run_faults(tmp_path, *changes, live=("--live", "control"))
    messages = stored.lines(recorded.RECORD)
    shown = [message["data"] for message in messages if message["kind"] == "event"]
    at = {event["what"]: event["ns"] for event in shown if event["detail"].get("target") == target}
    assert list(at) == ["inject", "first-packet", "repair"]
    assert list(at.values()) == sorted(at.values())
    assert ("port-down", target) in {(event["what"], event["detail"].get("port")) for event in shown}


def test_users_own_program_has_figures(tmp_path: Path) -> None:
    """Those of its traffic, since it says nothing about itself."""
    skip_without("ddp")
    command = f"arguments={{command: python {ROOT / 'examples' / 'train_ddp.py'}}}"
    faults = f"trainings.0.faults=[{CRASH}, {DOWN}]"
    stored = run_faults(tmp_path, "program=command", TWO_RANKS, f"trainings.0.{command}", faults)
    crash, down = rows = stored.summary["headline"]["training"]
    assert crash["stalled_s"][0] > 0.4
    assert down["detected_s"] == []
    for row in rows:
        assert (row["completed"], row["weights_equal"], row["steps_lost"]) == ([1], [], [])


@pytest.mark.parametrize(
    ("example", "library"), [("torchft", "torchft"), ("ddp", "torch"), ("gloo", "torch"), ("mpi", "mpi4py")]
)
def test_users_test_passes(example: str, library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is missing: script/bootstrap")
    argv = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", f"--basetemp={tmp_path}/base"]
    with Program([*argv, str(ROOT / "examples" / f"{example}_test.py")]) as program:
        assert program.end(150) == 0, program.output
    assert "1 passed" in program.output


def test_defect_of_torchft_shows_without_a_fabric(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchft") is None:
        pytest.skip("torchft is missing: script/bootstrap torchft")
    argv = ["env", f"TMPDIR={tmp_path}", sys.executable, str(ROOT / "examples" / "torchft_ddp_defect.py")]
    with Program(argv) as program:
        status = program.end(150)
    assert (status, "AssertionError" in program.output) == (1, True), program.output
