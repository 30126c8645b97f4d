"""Command lines of the documentation that need a fabric: on a shell's fabric, or as short runs."""

import subprocess
from pathlib import Path

import pytest

from tests.emulation.programs import RUN_EXPERIMENT, Program
from tests.emulation.test_cli import BUILT_S, PROMPT, command
from tests.unit.test_docs import examples

RUN = "shell-quickstart"
SHORT = ("-o", "repeats=1")
"""Options that shorten every run; those of an example come later and win."""


def test_examples_on_a_live_run_succeed(tmp_path: Path, slow: float) -> None:
    """Every `exec`, `trace` and `capture` of the docs, on one fabric; of other runs too, whose GPUs it has."""
    lines = [[name, RUN, *rest] for name, _, *rest in examples("exec", "trace", "capture")]
    with Program([*RUN_EXPERIMENT, "shell", "quickstart"]) as shell:
        shell.await_text(PROMPT, BUILT_S * slow)
        for line in [*examples("ps"), *lines]:
            argv = [*RUN_EXPERIMENT, *line]
            done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=False)
            assert (done.returncode, done.stderr) == (0, ""), f"{line}: {done.stdout}{done.stderr}"
        shell.type("exit")
        assert shell.end(BUILT_S * slow) == 0


def test_doctor_measures_the_switches() -> None:
    (line,) = examples("doctor")
    assert command(*line).returncode == 0


@pytest.mark.parametrize("line", [x for x in examples("run") if x[1] in ("moe-slowdown", "quickstart")], ids=" ".join)
def test_examples_of_short_runs_write_a_report(line: list[str], tmp_path: Path, slow: float) -> None:
    name, experiment, *rest = line
    options = rest[: rest.index("--out")] if "--out" in rest else rest
    argv = [*RUN_EXPERIMENT, name, experiment, *SHORT, *options, "--out", str(tmp_path / "out")]
    with Program(argv) as program:
        assert program.end(300 * slow) in (0, 1), program.output  # 1: the machine was too busy for a valid run
    assert (tmp_path / "out" / "report.html").exists()
