"""The example policy and the example estimator of docs/examples, as plugins of one run on packets.

4 rails, of which 0 and 1 are 90% full: d0g0 and d0g1 send to domain 1.
"""

from pathlib import Path

import pytest

from railyard.experiments.measures.steering.records import CHOICES, HEALTH
from railyard.results import run_folder
from railyard.results.runs.records import Run
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, Program, as_root

EXAMPLES = ROOT / "docs" / "examples"
OPTIONS = (
    "--plugin", str(EXAMPLES / "widest_policy.py"), "--plugin", str(EXAMPLES / "cubed_estimator.py"),
    "-o", "fabrics.0.domains=2", "-o", "fabrics.0.rails=4", "-o", "background.0.rails=[0,1]",
    "-o", "attempts=1", "-o", "workloads.0.ranks=[0,1]", "-o", "routing.policies=[dr,widest]", "-o", "repeats=1",
    "-o", "routing.health.estimator=cubed", "-o", "routing.health.smoothing=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, slow: float) -> Run:
    out = tmp_path_factory.mktemp("plugin") / "out"
    with Program(as_root([*RUN_EXPERIMENT, "run", "hot-rail", *OPTIONS, "--out", str(out)])) as program:
        assert program.end(120 * slow) in (0, 1), program.output  # 1: the machine was too busy for a valid run
    assert {path.name for path in (out / "plugins").iterdir()} == {"widest_policy.py", "cubed_estimator.py"}
    return run_folder.load(Path(out))


def test_agents_route_by_the_policy_of_a_plugin(run: Run) -> None:
    chosen = {policy: {c.paths for c in run.rows(CHOICES) if c.policy == policy} for policy in ("dr", "widest")}
    assert {path.split()[0] for path in chosen["dr"]} <= {"dr", "r"}
    assert {"drd by rail 2", "drd by rail 3"} & chosen["widest"]  # the idle rails


def test_scores_follow_from_the_estimator_of_a_plugin(run: Run) -> None:
    rails = [sample for sample in run.rows(HEALTH) if sample.element == "rail"]
    assert rails
    assert all(abs(sample.score - 100 * (1 - sample.load**3)) <= 1.01 for sample in rails)
    assert any(sample.load > 0.5 for sample in rails)
