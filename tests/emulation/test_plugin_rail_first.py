"""The example algorithm docs/examples/rail_first.py as a plugin, on packets: 2 domains of 2 GPUs."""

from pathlib import Path

import pytest

from railyard.results.runs import store
from tests.emulation.programs import run_with_plugin

pytestmark = pytest.mark.alone

SPEC = {
    "name": "rail-first",
    "fabrics": [
        {"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "50Mbit"},
        {"kind": "rail-optimized", "domains": 2, "rails": 2, "rail_rate": "50Mbit"},
    ],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "rail-first", "bytes": "500KB"}],
}


def test_plugin_algorithm_delivers_every_byte_as_predicted(tmp_path: Path, slow: float) -> None:
    run = store.load(run_with_plugin("rail_first", SPEC, tmp_path, slow))
    assert len(run.bytes) == 2
    for check in run.bytes:
        assert check.workload == "all-to-all-rail-first"
        assert (check.pairs_wrong, check.delivered_bytes) == (0, check.asked_bytes)
        assert check.delivered_bytes == 4 * (1 + 1) * 2 * 500_000, (
            "each GPU sends 1 MB on its rail and 1 MB in its domain"
        )
        assert check.cross_rail_bytes == 0, "no spine is used"
    predicted = {m.predicted for m in run.measurements if m.metric == "completion_time"}
    assert len(predicted) == 1, "both fabrics are predicted by the same Eq. 3"
    assert predicted != {None}
