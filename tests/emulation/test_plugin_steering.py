"""An example policy, estimator and background of docs/examples, as plugins of one run on packets.

2 domains and 4 rails, of which 0 and 1 are 90% full between domains 0 and 1: d0g0 and d0g1 send to domain 1.
"""

import pytest

from railyard.experiments.measures.steering.records import CHOICES, HEALTH
from tests.emulation.runs import Stored, overrides, run_experiment

PLUGINS = ("widest_policy.py", "cubed_estimator.py", "partial_rail.py")
HOT = ", ".join(f"{{partial-rail: {{rail: {rail}, domains: [0, 1]}}, load: 0.9}}" for rail in (0, 1))
CHANGES = overrides(
    "fabrics.0.domains=2", "fabrics.0.rails=4", f"background=[{HOT}]", "attempts=1", "repeats=1",
    "workloads.0.ranks=[0,1]", "routing.policies=[dr,widest]", "routing.health.estimator=cubed",
    "routing.health.smoothing=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return run_experiment("hot-rail", tmp_path_factory.mktemp("plugins"), *CHANGES, plugins=PLUGINS)


def test_agents_route_by_the_policy_of_a_plugin(stored: Stored) -> None:
    choices = stored.run.rows(CHOICES)
    chosen = {policy: {row.paths for row in choices if row.policy == policy} for policy in ("dr", "widest")}
    assert {path.split()[0] for path in chosen["dr"]} <= {"dr", "r"}
    assert {"drd by rail 2", "drd by rail 3"} & chosen["widest"]  # the idle rails


def test_scores_follow_from_the_estimator_of_a_plugin(stored: Stored) -> None:
    rails = [sample for sample in stored.run.rows(HEALTH) if sample.element == "rail"]
    assert all(abs(sample.score - 100 * (1 - sample.load**3)) <= 1.01 for sample in rails)
    assert {sample.index for sample in rails if sample.load > 0.5} >= {0, 1}


def test_background_of_a_plugin_loads_its_links(stored: Stored) -> None:
    stored.assert_no_byte_is_missing()
    texts = {event.detail["text"] for event in stored.events("background", "on")}
    assert texts == {f"rail {rail} of domains 0, 1" for rail in (0, 1)}
