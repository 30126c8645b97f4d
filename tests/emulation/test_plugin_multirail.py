"""An example workload and an example policy of docs/examples in one run: two nodes, rails of 18 and 6 Mbit/s.

  n0    n1
 |  \\  /  |
 |   \\/   |
 |   /\\   |
rail0   rail1
"""

from pathlib import Path

import pytest

from railyard.experiments.measures.allreduce.records import AllreduceResults
from tests.emulation.runs import run_experiment

PLUGINS = ("all_gather_rails.py", "carried_policy.py")
RAILS = [{"kind": "tcp", "rate": rate, "cpu": 0} for rate in ("18Mbit", "6Mbit")]
POLICIES = ["nezha", "single:tcp0"]
SPEC = {
    "name": "plugins",
    "attempts": 1,
    "fabrics": [{"kind": "multi-rail", "nodes": 2, "rails": RAILS}],
    "workloads": [
        {"kind": "rail-all-gather", "bytes": "1MiB", "operations": 3, "policies": POLICIES},
        {"kind": "allreduce", "policies": ["carried"], "sizes": ["8MiB"], "operations": 10, "point": "50ms"},
    ],
}


def test_workload_and_policy_of_plugins_on_a_multirail_fabric(tmp_path: Path) -> None:
    stored = run_experiment(SPEC, tmp_path, plugins=PLUGINS)
    gathered = [row for row in stored.run.measurements if row.workload == "rail-all-gather"]
    times = {row.policy: row for row in gathered if row.metric == "completion_time"}
    assert list(times) == POLICIES
    assert all(row.predicted for row in times.values())
    assert {row.value for row in gathered if row.metric == "wrong_elements"} == {0.0}
    assert set(POLICIES) <= {load.policy for load in stored.run.loads}
    (point,) = AllreduceResults.of(stored.run).points
    assert (point.policy, point.wrong, point.checked > 0) == ("carried", 0, True)
    assert [share / sum(point.shares) for share in point.shares] == pytest.approx([0.75, 0.25], abs=0.001)
