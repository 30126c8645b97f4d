"""The example workload kind docs/examples/ring_attention.py as a plugin, on packets: 3 domains of 2 GPUs."""

from pathlib import Path

import pytest

from railyard.results import run_folder
from tests.emulation.programs import run_with_plugin

SPEC = {
    "name": "ring-attention",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 3, "rails": 2, "rail_rate": "10Mbit", "hb_rate": "40Mbit"}],
    "workloads": [{"kind": "ring-attention", "bytes": "300KB", "compute": "500ms"}],
}


def test_plugin_workload_is_compared_with_its_own_prediction(tmp_path: Path, slow: float) -> None:
    run = run_folder.load(run_with_plugin("ring_attention", SPEC, tmp_path, slow))
    assert all(check.pairs_wrong == 0 for check in run.bytes)
    times = {m.phase: m for m in run.measurements if m.metric == "completion_time"}
    assert set(times) == {""}
    seconds = 0.5 + 2.4 / (10 * 0.99268)  # computing takes longer than sending
    assert times[""].predicted == pytest.approx(seconds, rel=1e-4)
    assert times[""].formula.startswith("(y-2) max(send, compute) + send")
    assert times[""].not_compared == ""
