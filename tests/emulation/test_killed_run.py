"""A killed run: its folder has every finished step, and `report` finishes it; outputs for CI of one that ends."""

import json
import os
import random
import re
import signal
import time
from pathlib import Path
from xml.etree import ElementTree

from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.results.runs import journal
from railyard.results.runs.records import STEP
from tests.emulation.deadlines import scaled
from tests.emulation.fabrics import eventually
from tests.emulation.programs import RUN_EXPERIMENT, Program, finished
from tests.emulation.runs import CUT, RUN_S, Stored, run_command, small_spec

SMALL = small_spec(faults=[CUT], reroute=["on"], repeats=3, seed=5)
WHOLE_RUN_S = 12.0  # on an idle machine, roughly: when to kill it
LINE = re.compile(r"^\[ ?(\d+)/\d+\] +[\d.]+ s  (.*)$", re.MULTILINE)


def killed_after(delay_s: float, folder: Path) -> list[str]:
    """Kill a run so long after its folder was made; return the steps that it printed as finished."""
    with Program(run_command(SMALL, folder)) as run:
        eventually((folder / "out" / journal.NAME).exists, 60)
        time.sleep(delay_s)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        run.end(10)
        return [what for _, what in LINE.findall(run.output)]


def assert_finished(out: Path, printed: list[str]) -> None:
    """Check that `report` finishes the folder, and that it has what every printed step measured."""
    with Program([*RUN_EXPERIMENT, "report", str(out), "--junit", str(out.with_suffix(".xml"))]) as report:
        assert report.end(RUN_S) == 0, report.output
    stored = Stored(out)
    summary, run = stored.summary, stored.run
    assert (summary["complete"], summary["interrupted"], summary["passed"]) == (False, True, False)
    assert not (out / journal.NAME).exists()
    assert not run.damaged
    steps = [event.detail["text"] for event in run.events if event.what == STEP]
    # the journal has a step before or just after its line is printed
    assert [what.startswith(step) for what, step in zip(printed, steps, strict=False)] == [True] * len(printed)
    replayed = [step for step in steps if "all-to-all" in step]
    assert len(run.bytes) == len(run.loads) - len(run.rows(RECOVERIES)) == len(replayed)
    assert len(run.rows(RECOVERIES)) == sum("link-down" in step for step in steps)
    names = [case.attrib["name"] for case in ElementTree.parse(out.with_suffix(".xml")).iter("testcase")]
    assert names[len(names) - len(steps) :] == steps


def assert_survives_kills(count: int, place: Path) -> None:
    seed = random.randrange(1_000_000)
    dice = random.Random(seed)
    for number in range(count):
        delay_s = dice.uniform(0.0, scaled(WHOLE_RUN_S))
        folder = place / str(number)
        folder.mkdir()
        printed = killed_after(delay_s, folder)
        if (folder / "out" / "manifest.json").exists():
            continue  # it had ended
        try:
            assert_finished(folder / "out", printed)
        except AssertionError as error:
            raise AssertionError(f"killed after {delay_s:.3f} s (seed {seed}): {error}") from error


def test_a_run_killed_at_a_random_moment_is_reported(tmp_path: Path) -> None:
    assert_survives_kills(1, tmp_path)


def test_a_run_killed_at_ten_random_moments_is_reported(tmp_path: Path) -> None:
    assert_survives_kills(10, tmp_path)


def test_a_whole_run_gives_its_outputs_for_ci(tmp_path: Path) -> None:
    xml, text = tmp_path / "junit.xml", tmp_path / "summary.md"
    done = finished(run_command(SMALL, tmp_path, "--junit", str(xml), "--markdown", str(text), "--json"), RUN_S)
    stored = Stored(tmp_path / "out")
    assert json.loads(done.stdout) == stored.summary
    names = {case.attrib["name"] for case in ElementTree.parse(xml).iter("testcase")}
    assert {check["name"] for check in stored.summary["checks"]} < names
    assert "rail-only: all-to-all, 3 of 3" in names
    assert text.read_text().startswith("### ")
    assert not (stored.folder / journal.NAME).exists()
