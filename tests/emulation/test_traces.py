"""Traces of others on packets: every format is replayed, and what was measured stands in its copy."""

import json
from pathlib import Path

import pytest

from tests.emulation.runs import Stored, run_experiment, small_spec

TRACES = Path(__file__).parents[1] / "traces"
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
