"""Two scenes of background on packets: rail-only's way and the spine's, while the spine is 90% full, and once it isn't.

d0g0 ── hb0 ── d0g1 ── rail1 ── d1g1        d0g0 ── rail0 ── spine0 ── rail1 ── d1g1
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from railyard.experiments.measures.steering.records import CHOICES, HEALTH
from railyard.experiments.measures.steering.spine_condition import Cell
from railyard.results import run_folder
from railyard.results.runs.records import Run
from tests.emulation.programs import RUN_EXPERIMENT, Program, as_root
from tests.unit.shown import cells, summarise

pytestmark = [pytest.mark.quiet, pytest.mark.long]

SMALL = (
    "-o", "fabrics.0.domains=2", "-o", "fabrics.0.rails=2", "-o", "fabrics.0.oversubscription=2",
    "-o", "grid={spine: true, loads: [0.9, 0]}", "-o", "workloads.0.rounds=3", "-o", "routing.settle=300ms",
    "-o", "attempts=2",
)  # fmt: skip
FULL, IDLE = "S 90%", "S 0%"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, slow: float) -> Run:
    out = tmp_path_factory.mktemp("scenes") / "out"
    with Program(as_root([*RUN_EXPERIMENT, "run", "rail-only-vs-optimized", *SMALL, "--out", str(out)])) as program:
        assert program.end(180 * slow) in (0, 1), program.output  # 1: too busy a machine to be believed
    assert "papers' condition g(G1) < 1/H(S) agrees" in program.output
    return run_folder.load(Path(out))


@pytest.fixture(scope="module")
def by_load(run: Run) -> Mapping[float, Cell]:
    return {cell.scene.spine: cell for cell in cells(run)}


def test_each_policy_runs_in_each_scene_and_every_byte_arrives(run: Run) -> None:
    whole = [(m.interval.scene, m.policy) for m in run.measurements if m.metric == "completion_time" and not m.phase]
    assert whole == [(FULL, "dr"), (FULL, "ecmp"), (IDLE, "dr"), (IDLE, "ecmp")]
    assert summarise(run)["headline"]["bytes"]["pairs_wrong"] == 0
    assert sum(f.delivered for f in run.flows if f.phase == "transfer") == 4 * 3 * 64_000


def test_messages_go_by_their_policys_way(run: Run) -> None:
    chosen = {(c.policy, c.paths) for c in run.rows(CHOICES) if (c.src, c.dst) == ("d0g0", "d1g1")}
    assert chosen == {("dr", "dr by rail 1"), ("ecmp", "spine")}


def test_background_is_its_scenes_alone(run: Run, by_load: Mapping[float, Cell]) -> None:
    assert [e.detail["load"] for e in run.events if (e.source, e.what) == ("background", "on")] == [0.9, 0.9]
    assert by_load[0.9].scores.spine < 0.3
    assert by_load[0].scores.spine > 0.9
    assert by_load[0].scores.rail > 0.9  # of the scene before, nothing is left
    seen = defaultdict(set)
    for sample in run.rows(HEALTH):
        seen[sample.interval.scene].add(sample.policy)
    assert dict(seen) == {FULL: {"dr", "ecmp"}, IDLE: {"dr", "ecmp"}}


def test_past_a_full_spine_is_sooner_as_the_papers_say(by_load: Mapping[float, Cell]) -> None:
    full = by_load[0.9]
    assert full.predicted == full.by_slowest_link == full.measured == "rail-only"
    assert full.latency["spine"] > 2 * full.latency["rail-only"]
    assert full.latency["spine"] > 2 * by_load[0].latency["spine"]
