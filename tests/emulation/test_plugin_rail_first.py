"""The example algorithm docs/examples/rail_first.py as a plugin, on packets: 2 domains of 2 GPUs."""

from pathlib import Path

from railyard.results import run_folder
from tests.emulation.programs import run_with_plugin

SPEC = {
    "name": "rail-first",
    "attempts": 1,
    "fabrics": [
        {"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "10Mbit"},
        {"kind": "rail-optimized", "domains": 2, "rails": 2, "rail_rate": "10Mbit"},
    ],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "rail-first", "bytes": "100KB"}],
}


def test_plugin_algorithm_delivers_every_byte_as_predicted(tmp_path: Path, slow: float) -> None:
    run = run_folder.load(run_with_plugin("rail_first", SPEC, tmp_path, slow))
    assert len(run.bytes) == 2
    for check in run.bytes:
        assert check.workload == "all-to-all-rail-first"
        assert (check.pairs_wrong, check.delivered_bytes) == (0, check.asked_bytes)
        assert check.delivered_bytes == 4 * (1 + 1) * 2 * 100_000, (
            "each GPU sends 200 kB on its rail and 200 kB in its domain"
        )
        assert check.cross_rail_bytes == 0, "no spine is used"
    predicted = {m.predicted for m in run.measurements if m.metric == "completion_time"}
    assert len(predicted) == 1, "both fabrics are predicted by the same Eq. 3"
    assert predicted != {None}
