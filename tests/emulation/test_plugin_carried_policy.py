"""The example plugin docs/examples/carried_policy.py on packets: two nodes with rails of 6 and 2 Mbit/s.

  n0    n1
 |  \\  /  |
 |   \\/   |
 |   /\\   |
rail0   rail1
"""

from pathlib import Path

import pytest
import yaml

from railyard.experiments.measures.allreduce.records import AllreduceResults
from railyard.results import run_folder
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, finished

PLUGIN = ROOT / "docs/examples/carried_policy.py"
SPEC = {
    "name": "carried",
    "attempts": 1,
    "fabrics": [
        {
            "kind": "multi-rail",
            "nodes": 2,
            "rails": [{"kind": "tcp", "rate": rate, "cpu": 0} for rate in ("6Mbit", "2Mbit")],
        }
    ],
    "workloads": [{"kind": "allreduce", "policies": ["carried"], "sizes": ["8MiB"], "operations": 10, "point": "50ms"}],
}


def test_plugin_policy_splits_a_buffer_by_rate(tmp_path: Path, slow: float) -> None:
    (tmp_path / "carried.yaml").write_text(yaml.safe_dump(SPEC))
    out = tmp_path / "out"
    argv = [*RUN_EXPERIMENT, "run", str(tmp_path / "carried.yaml"), "--plugin", str(PLUGIN), "--out", str(out)]
    done = finished(argv, 240 * slow)
    assert (out / "summary.json").exists(), done.stdout + done.stderr
    (point,) = AllreduceResults.of(run_folder.load(out)).points
    assert point.policy == "carried"
    assert (point.wrong, point.checked > 0) == (0, True)
    assert [share / sum(point.shares) for share in point.shares] == pytest.approx([0.75, 0.25], abs=0.001)
    assert (out / "plugins/carried_policy.py").read_bytes() == PLUGIN.read_bytes()
