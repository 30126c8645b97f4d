"""Traces of others on packets: every format is replayed, and what was measured stands in its copy."""

import json
from pathlib import Path

import pytest

from tests.emulation.runs import Stored, run_experiment, small_spec

TRACES = Path(__file__).parents[1] / "traces"
RECORDINGS = Path(__file__).parents[1] / "recordings"
FORMATS = {"pipeline": "chakra", "ring": "chakra", "dlrm": "param", "micro.txt": "simai"}
SPEC = small_spec(
    fabrics=[{"kind": "rail-only", "domains": 4, "rails": 4, "rail_rate": "5Mbit"}],
    workloads=[{"kind": "trace", "path": str(TRACES / name), "duration": "200ms"} for name in FORMATS],
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return run_experiment(SPEC, tmp_path_factory.mktemp("traces"))


def test_every_byte_of_every_trace_arrives(stored: Stored) -> None:
    assert {check.workload for check in stored.run.bytes} == {Path(name).stem for name in FORMATS}
    stored.assert_no_byte_is_missing()


def test_measured_durations_are_written_back(stored: Stored) -> None:
    copies = stored.folder / "traces" / "rail-only"
    param = json.loads((copies / "dlrm" / "0" / "dlrm.0.json").read_text())
    before = json.loads((TRACES / "dlrm.0.json").read_text())
    assert len(param) == len(before)
    assert param != before
    assert len(list((copies / "pipeline" / "0").glob("pipeline.*.et"))) == 8
    assert list((copies / "micro" / "0").glob("*.measured.csv"))


def test_recording_survives_the_crash_of_a_rail_switch(tmp_path: Path) -> None:
    """AllReduces of a recorded DDP training, whose domains forward what a dead rail carried."""
    spec = small_spec(
        fabrics=[{"kind": "rail-only", "domains": 2, "rails": 4, "rail_rate": "5Mbit"}],
        workloads=[{"kind": "trace", "path": str(RECORDINGS / "ddp-8" / "trace.json"), "duration": "2s"}],
        faults=[{"kind": "rail-switch-crash", "target": "rail1", "at": "500ms", "repair": "1s"}],
        reroute=["on"],
    )
    stored = run_experiment(spec, tmp_path)
    stored.assert_no_byte_is_missing()
    stored.assert_recovered(faults=1)
    assert {row["phase"].split()[0] for row in stored.rows("results.csv") if row["phase"]} == {"all-reduce"}
