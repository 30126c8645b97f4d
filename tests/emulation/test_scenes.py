"""Two scenes of background on packets: rail-only's way and the spine's, while the spine is 90% full, and once it isn't.

d0g0 ── hb0 ── d0g1 ── rail1 ── d1g1        d0g0 ── rail0 ── spine0 ── rail1 ── d1g1
"""

from collections import defaultdict
from collections.abc import Mapping

import pytest

from railyard.experiments.measures.steering.records import CHOICES, HEALTH
from railyard.experiments.measures.steering.spine_condition import Cell
from tests.emulation.runs import Stored, overrides, run_experiment
from tests.unit.shown import cells

pytestmark = [pytest.mark.quiet, pytest.mark.long]

CHANGES = overrides(
    "fabrics.0.domains=2", "fabrics.0.rails=2", "rail_rate=10Mbit", "hb_rate=20Mbit", "fabrics.0.oversubscription=2",
    "grid={spine: true, loads: [0.9, 0]}", "workloads.0.rounds=3", "routing.settle=300ms", "attempts=2",
)  # fmt: skip
FULL, IDLE = "S 90%", "S 0%"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    stored = run_experiment("rail-only-vs-optimized", tmp_path_factory.mktemp("scenes"), *CHANGES)
    assert "g(G1) < 1/H(S) agrees" in stored.output
    return stored


@pytest.fixture(scope="module")
def by_load(stored: Stored) -> Mapping[float, Cell]:
    return {cell.scene.spine: cell for cell in cells(stored.run)}


def test_each_policy_runs_in_each_scene_and_every_byte_arrives(stored: Stored) -> None:
    whole = [(row.interval.scene, row.policy) for row in stored.run.measured("completion_time") if not row.phase]
    assert whole == [(FULL, "dr"), (FULL, "ecmp"), (IDLE, "dr"), (IDLE, "ecmp")]
    stored.assert_no_byte_is_missing()
    assert sum(flow.delivered for flow in stored.run.flows if flow.phase == "transfer") == 4 * 3 * 64_000


def test_messages_go_by_their_policys_way(stored: Stored) -> None:
    choices = [row for row in stored.run.rows(CHOICES) if (row.src, row.dst) == ("d0g0", "d1g1")]
    assert {(row.policy, row.paths) for row in choices} == {("dr", "dr by rail 1"), ("ecmp", "spine")}


def test_background_is_its_scenes_alone(stored: Stored, by_load: Mapping[float, Cell]) -> None:
    assert [event.detail["load"] for event in stored.events("background", "on")] == [0.9, 0.9]
    assert by_load[0.9].scores.spine < 0.3
    assert by_load[0].scores.spine > 0.9
    assert by_load[0].scores.rail > 0.9  # of the scene before, nothing is left
    policies = defaultdict(set)
    for sample in stored.run.rows(HEALTH):
        policies[sample.interval.scene].add(sample.policy)
    assert dict(policies) == {FULL: {"dr", "ecmp"}, IDLE: {"dr", "ecmp"}}


def test_past_a_full_spine_is_sooner_as_the_papers_say(by_load: Mapping[float, Cell]) -> None:
    full = by_load[0.9]
    assert full.predicted == full.by_slowest_link == full.measured == "rail-only"
    assert full.latency["spine"] > 2 * full.latency["rail-only"]
    assert full.latency["spine"] > 2 * by_load[0].latency["spine"]
