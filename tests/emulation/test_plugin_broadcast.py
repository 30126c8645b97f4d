"""The example workload kind docs/examples/broadcast.py as a plugin, on packets: 3 domains of 2 GPUs."""

from pathlib import Path

import pytest

from railyard.results import run_folder
from tests.emulation.programs import run_with_plugin

SPEC = {
    "name": "broadcast",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 3, "rails": 2, "rail_rate": "10Mbit", "hb_rate": "40Mbit"}],
    "workloads": [{"kind": "broadcast", "bytes": "300KB"}, {"kind": "broadcast", "bytes": "300KB", "root": "d1g1"}],
}
PAYLOAD = 0.99268  # of a frame of 9,000 bytes


def test_plugin_workload_reaches_every_gpu_as_predicted(tmp_path: Path, slow: float) -> None:
    out = run_with_plugin("broadcast", SPEC, tmp_path, slow)
    run = run_folder.load(out)
    assert [check.workload for check in run.bytes] == ["broadcast from d0g0", "broadcast from d1g1"]
    assert all(check.pairs_wrong == 0 for check in run.bytes)
    for name, root in (("broadcast from d0g0", "d0g0"), ("broadcast from d1g1", "d1g1")):
        received = {flow.dst: flow.delivered for flow in run.flows if flow.workload == name}
        assert received == {f"d{d}g{g}": 300_000 for d in range(3) for g in range(2) if f"d{d}g{g}" != root}
    predicted = {m.phase: m.predicted for m in run.measurements if m.metric == "completion_time"}
    assert predicted["over the rail"] == pytest.approx(2 * 2.4 / (10 * PAYLOAD), rel=1e-4), "two copies leave the root"
    assert predicted["in HB domains"] == pytest.approx(2.4 / (40 * PAYLOAD), rel=1e-4)
    assert {flow.kind for flow in run.flows} == {"broadcast"}
    report = (out / "report.html").read_text().replace("\xa0", " ")
    assert "broadcast 1.500 MB" in report, "the figure of traffic by kind shows the new kind"
