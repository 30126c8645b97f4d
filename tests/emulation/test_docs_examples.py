"""Command lines of the documentation that need a fabric: on a shell's fabric, or as short runs."""

from pathlib import Path

import pytest

from tests.emulation.programs import RUN_EXPERIMENT, Program, finished
from tests.emulation.runs import run_experiment
from tests.emulation.test_cli import BUILT_S, PROMPT, command
from tests.unit.test_docs import examples

RUN = "shell-quickstart"
SHORT = ["-o", "repeats=1", "-o", "attempts=1", "-o", "duration=300ms"]
ONE_FAULT = ["-o", "reroute=on", "-o", "faults=[{kind: link-down, target: d0g1, at: 500ms, repair: 1s}]"]
ONE_FABRIC = ["-o", "fabrics=[{kind: rail-only, domains: 4, rails: 4}]"]
TWO_FABRICS = ["-o", "fabrics=[{kind: rail-only, domains: 4, rails: 4}, {kind: rail-optimized, domains: 4, rails: 4}]"]
SHORTENED = {"moe-slowdown": SHORT + TWO_FABRICS, "quickstart": SHORT + ONE_FAULT + ONE_FABRIC}
"""Options that shorten a run; those of an example come later and win."""


def short_runs() -> list[list[str]]:
    """Return the arguments of the docs' runs of these experiments, shortened, each once, without `--out`.

    A line with some more options stands for one with fewer.
    """
    lines = []
    for _, *words in examples("run"):
        if words and words[0] in SHORTENED:
            experiment, *options = words
            end = options.index("--out") if "--out" in options else len(options)
            pairs = zip(options[:end:2], options[1:end:2], strict=True)
            new = [word for pair in pairs if pair[1] not in SHORT for word in pair]
            lines.append([experiment, *SHORTENED[experiment], *new])
    longer = [line for line in lines if not any(set(line) < set(other) for other in lines)]
    return [line for number, line in enumerate(longer) if line not in longer[:number]]


def test_examples_on_a_live_run_succeed(tmp_path: Path) -> None:
    """Every `exec`, `trace` and `capture` of the docs, on one fabric; of other runs too, whose GPUs it has."""
    lines = [[name, RUN, *rest] for name, _, *rest in examples("exec", "trace", "capture")]
    with Program([*RUN_EXPERIMENT, "shell", "quickstart", "-o", "rail_rate=2Mbit"]) as shell:
        shell.await_text(PROMPT, BUILT_S)
        for line in [*examples("ps"), *lines]:
            argv = [*RUN_EXPERIMENT, *line]
            done = finished(argv, 60, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), f"{line}: {done.stdout}{done.stderr}"
        shell.type("exit")
        assert shell.end(BUILT_S) == 0


@pytest.mark.parametrize("line", examples("doctor"), ids=" ".join)
def test_doctor_measures_the_switches(line: list[str]) -> None:
    assert command(*line).returncode == 0


@pytest.mark.parametrize("line", short_runs(), ids=" ".join)
def test_examples_of_short_runs_write_a_report(line: list[str], tmp_path: Path) -> None:
    """Variants: test_wheel.py runs quickstart as short, and unit tests parse every line."""
    assert (run_experiment(line[0], tmp_path, *line[1:]).folder / "report.html").exists()
