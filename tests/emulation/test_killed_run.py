"""A killed run: its folder has every finished step, and `report` finishes it; outputs for CI of one that ends."""

import json
import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.results import run_folder
from railyard.results.runs import journal
from railyard.results.runs.records import STEP
from tests.emulation.programs import RUN_EXPERIMENT, Program

SMALL: dict[str, Any] = {
    "name": "small",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "10Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "200ms"}],
    "faults": [{"kind": "link-down", "target": "d0g1", "at": "500ms", "repair": "1s"}],
    "reroute": ["on"],
    "repeats": 3,
    "seed": 5,
}
RUN_S = 180.0
WHOLE_RUN_S = 12.0  # on an idle machine, roughly: when to kill it
LINE = re.compile(r"^\[ ?(\d+)/\d+\] +[\d.]+ s  (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="killed-") as name:
        (Path(name) / "small.yaml").write_text(yaml.safe_dump(SMALL))
        yield Path(name)


def killed_after(delay_s: float, place: Path, out: Path) -> list[str]:
    """Kill a run so long after its folder was made; return the steps that it printed as finished."""
    with Program([*RUN_EXPERIMENT, "run", str(place / "small.yaml"), "--out", str(out)]) as run:
        until = time.monotonic() + 60
        while not (out / journal.NAME).exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(delay_s)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        run.end(10)
        return [what for _, what in LINE.findall(run.output)]


def assert_finished(out: Path, printed: list[str]) -> None:
    """Check that `report` finishes the folder, and that it has what every printed step measured."""
    with Program([*RUN_EXPERIMENT, "report", str(out), "--junit", str(out.with_suffix(".xml"))]) as report:
        assert report.end(RUN_S) == 0, report.output
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["complete"], summary["interrupted"], summary["passed"]) == (False, True, False)
    assert not (out / journal.NAME).exists()
    run = run_folder.load(out)
    assert not run.damaged
    steps = [event.detail["text"] for event in run.events if event.what == STEP]
    # the journal has a step before or just after its line is printed
    assert [what.startswith(step) for what, step in zip(printed, steps, strict=False)] == [True] * len(printed)
    replayed = [step for step in steps if "all-to-all" in step]
    assert len(run.bytes) == len(run.loads) - len(run.rows(RECOVERIES)) == len(replayed)
    assert len(run.rows(RECOVERIES)) == sum("link-down" in step for step in steps)
    names = [case.attrib["name"] for case in ElementTree.parse(out.with_suffix(".xml")).iter("testcase")]
    assert names[len(names) - len(steps) :] == steps


def assert_survives_kills(count: int, place: Path, slow: float) -> None:
    seed = random.randrange(1_000_000)
    dice = random.Random(seed)
    for number in range(count):
        delay_s = dice.uniform(0.0, WHOLE_RUN_S * slow)
        out = place / f"killed{seed}-{number}"
        printed = killed_after(delay_s, place, out)
        if (out / "manifest.json").exists():
            continue  # it had ended
        try:
            assert_finished(out, printed)
        except AssertionError as error:
            raise AssertionError(f"killed after {delay_s:.3f} s (seed {seed}): {error}") from error


def test_a_run_killed_at_a_random_moment_is_reported(place: Path, slow: float) -> None:
    assert_survives_kills(1, place, slow)


def test_a_run_killed_at_ten_random_moments_is_reported(place: Path, slow: float) -> None:
    assert_survives_kills(10, place, slow)


def test_a_whole_run_gives_its_outputs_for_ci(place: Path) -> None:
    out, xml, text = place / "whole", place / "junit.xml", place / "summary.md"
    options = ["--out", str(out), "--junit", str(xml), "--markdown", str(text), "--json"]
    with Program(
        ["sh", "-c", '"$@" 2>/dev/null', "sh", *RUN_EXPERIMENT, "run", str(place / "small.yaml"), *options]
    ) as run:
        run.end(RUN_S)
    summary = json.loads(run.output)
    assert summary == json.loads((out / "summary.json").read_text())
    names = [case.attrib["name"] for case in ElementTree.parse(xml).iter("testcase")]
    assert {check["name"] for check in summary["checks"]} < set(names)
    assert "rail-only: all-to-all, 3 of 3" in names
    assert text.read_text().startswith("### ")
    assert not (out / journal.NAME).exists()
