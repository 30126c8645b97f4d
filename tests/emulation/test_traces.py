"""Traces of others on packets: every format is replayed, and what was measured stands in its copy."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from railyard.results import run_folder
from tests.emulation.programs import RUN_EXPERIMENT, Program, as_root

TRACES = Path(__file__).parents[1] / "traces"
FORMATS = {"pipeline": "chakra", "ring": "chakra", "dlrm": "param", "micro.txt": "simai"}
SPEC: dict[str, Any] = {
    "name": "traces",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 4, "rail_rate": "5Mbit"}],
    "workloads": [{"kind": "trace", "path": str(TRACES / name), "duration": "200ms"} for name in FORMATS],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, slow: float) -> Path:
    home = tmp_path_factory.mktemp("traces")
    (home / "traces.yaml").write_text(yaml.safe_dump(SPEC))
    with Program(as_root([*RUN_EXPERIMENT, "run", str(home / "traces.yaml"), "--out", str(home / "out")])) as run:
        assert run.end(240 * slow) in (0, 1), run.output  # 1: too busy a machine to be believed
    return home / "out"


def test_every_byte_of_every_trace_arrives(folder: Path) -> None:
    checks = {check.workload: check for check in run_folder.load(folder).bytes}
    assert set(checks) == {Path(name).stem for name in FORMATS}
    for check in checks.values():
        assert check.delivered_bytes == check.asked_bytes > 0
        assert check.pairs_wrong == 0


def test_measured_durations_are_written_back(folder: Path) -> None:
    copies = folder / "traces" / "rail-only"
    param = json.loads((copies / "dlrm" / "0" / "dlrm.0.json").read_text())
    before = json.loads((TRACES / "dlrm.0.json").read_text())
    assert len(param) == len(before)
    assert param != before
    assert len(list((copies / "pipeline" / "0").glob("pipeline.*.et"))) == 8
    assert list((copies / "micro" / "0").glob("*.measured.csv"))
