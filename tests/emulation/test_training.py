"""Programs that really train while something fails: an experiment from its file to its table, and a user's own test."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from railyard.workloads.training.program import TRAINING_PROGRAMS
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, Program
from tests.unit.api_examples import PLUGIN

DOWN, CRASH = (f"{{kind: {kind}, target: d1g0, at: 300ms, repair: 500ms}}" for kind in ("link-down", "gpu-crash"))


@pytest.mark.parametrize(("program", "faults"), [("mpi", f"[{CRASH}, {DOWN}]"), ("torchft", f"[{CRASH}]")])
def test_training_ends_with_the_weights_of_one_without_faults(program: str, faults: str, tmp_path: Path) -> None:
    if lacking := TRAINING_PROGRAMS[program].missing_requirement():
        pytest.skip(str(lacking))
    changes = [f"program={program}", f"trainings.0.faults={faults}", "training_repeats=1", "attempts=1", "steps=30"]
    argv = [*RUN_EXPERIMENT, "run", "training-faults", "--out", str(tmp_path / "run")]
    with Program([*argv, *(part for change in changes for part in ("-o", change))]) as process:
        process.end(200)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    failed = [check for check in summary["checks"] if not check["passed"]]
    assert not [check for check in failed if "believable" not in check["name"]], process.output
    assert "weights equal" in process.output
    crash, *others = summary["headline"]["training"]
    assert (crash["fault"], crash["completed"], crash["weights_equal"]) == ("gpu-crash d1g0", [1], [1])
    assert crash["stalled_s"][0] > 0.4  # the GPU is back after 0.5 s
    for down in others:  # the controller's detour is all that is needed
        assert (down["steps_lost"], down["detected_s"], down["weights_equal"]) == ([0], [], [1])


def test_users_test_with_torchft_passes(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchft") is None:
        pytest.skip("torchft is missing: script/bootstrap torchft")
    argv = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", f"--basetemp={tmp_path}/base"]
    with Program([*argv, str(ROOT / "examples" / "torchft_test.py")]) as program:
        assert program.end(150) == 0, program.output
    assert "1 passed" in program.output
