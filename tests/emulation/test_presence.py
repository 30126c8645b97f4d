"""What defines an interval dies: that interval is invalid, its rows too, by the process's name; the run goes on.

d0g0, d0g1 ── hb0      d0gN, d1gN ── railN ── a background on rail 0, or a fault with probes, two repeats of each
"""

import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import yaml

from tests.emulation.fabrics import eventually
from tests.emulation.programs import RUN_EXPERIMENT, Program, command_line

FABRIC: Final = {"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "10Mbit"}
ALL_TO_ALL: Final = {"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "3s"}
STEERED: Final[dict[str, Any]] = {
    "name": "presence",
    "attempts": 1,
    "fabrics": [{**FABRIC, "policy": "rd"}],
    "workloads": [ALL_TO_ALL],
    "routing": {"policies": ["health"], "settle": "1s", "health": {"registry": "etcd"}},
    "background": [{"rails": [0], "load": 0.5}],
    "repeats": 2,
}
FAULTS: Final[dict[str, Any]] = {
    "name": "presence",
    "attempts": 1,
    "fabrics": [FABRIC],
    "faults": [{"kind": "link-down", "target": "d0g1", "at": "1s", "repair": "2s"}],
    "fault_repeats": 2,
    "reroute": ["on"],
}
CASES: Final = [
    ("background.sender", "the background sender", STEERED),
    ("etcd --data-dir", "etcd", {**STEERED, "repeats": 1}),  # a second one has no scores, and ends the run
    ("failure.probes.traffic", "the traffic process", FAULTS),
]


def kill(program: Program, words: str, after_s: float, slow: float) -> None:
    """Kill the process of a run whose command line has these words, some time after it has appeared."""

    def found() -> list[psutil.Process]:
        children = psutil.Process(program.process.pid).children(recursive=True)
        return [process for process in children if words in " ".join(command_line(process))]

    eventually(lambda: bool(found()), within_s=60 * slow)
    time.sleep(after_s)
    os.kill(found()[0].pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize(("words", "name", "spec"), CASES, ids=[name for _, name, *_ in CASES])
def test_interval_of_a_dead_process_is_invalid_by_name(
    words: str, name: str, spec: dict[str, Any], tmp_path: Path, slow: float
) -> None:
    """The traffic process is a variant: test_interruptions.py stops it."""
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    with Program([*RUN_EXPERIMENT, "run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out")]) as program:
        kill(program, words, 4 if words.startswith("etcd") else 2, slow)
        assert program.end(120 * slow) == 1, program.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    dead = [found for found in summary["findings"] if name in found["text"] and "died" in found["text"]]
    assert {found["interval"]["repeat"] for found in dead} == {0}, summary["findings"]
    assert any(name in reason for reason in summary["reasons"])
    assert summary["verdict"] == "invalid"
    verdicts = {interval["repeat"]: interval["verdict"] for interval in summary["intervals"]}
    assert verdicts[0] == "invalid"
    assert len(verdicts) == spec.get("repeats", spec.get("fault_repeats"))
    with (tmp_path / "out" / "results.csv").open() as rows:
        own = [row for row in csv.DictReader(rows) if row["repeat"] == "0" and row["workload"] != "heartbeats"]
    assert all(row["verdict"] == "invalid" for row in own)
