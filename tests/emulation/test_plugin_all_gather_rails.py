"""The example workload docs/examples/all_gather_rails.py as a plugin, on packets: two nodes, two rails."""

from pathlib import Path

from tests.emulation.plugins import run_with_plugin

SPEC = {
    "name": "all-gather",
    "attempts": 1,
    "fabrics": [{"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": "40Mbit"}] * 2}],
    "workloads": [{"kind": "rail-all-gather", "bytes": "1MiB", "operations": 3, "policies": ["nezha", "single:tcp0"]}],
}


def test_plugin_workload_measures_itself_on_a_multirail_fabric(tmp_path: Path, slow: float) -> None:
    run = run_with_plugin("all_gather_rails.py", SPEC, tmp_path, slow)
    times = {m.policy: m for m in run.measurements if m.metric == "completion_time"}
    assert set(times) == {"nezha", "single:tcp0"}
    assert all(m.workload == "rail-all-gather" and m.predicted for m in times.values())
    assert {m.value for m in run.measurements if m.metric == "wrong_elements"} == {0.0}
    assert {load.policy for load in run.loads} == {"nezha", "single:tcp0"}
