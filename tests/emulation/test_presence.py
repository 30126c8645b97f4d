"""What defines an interval dies: that interval is invalid, its rows too, by the process's name; the run goes on.

d0g0, d0g1 ── hb0      d0gN, d1gN ── railN ── a background on rail 0, or a fault with probes, two repeats of each
"""

import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.emulation.fabrics import eventually
from tests.emulation.programs import Program, command_line
from tests.emulation.runs import ALL_TO_ALL, FABRIC, Stored, run_command, small_spec

STEERED: Final = small_spec(
    fabrics=[{**FABRIC, "policy": "rd"}],
    workloads=[{**ALL_TO_ALL, "duration": "3s"}],
    routing={"policies": ["health"], "settle": "1s", "health": {"registry": "etcd"}},
    background=[{"rails": [0], "load": 0.5}],
    repeats=2,
)
CUT: Final = {"kind": "link-down", "target": "d0g1", "at": "1s", "repair": "2s"}
CASES: Final = [
    ("background.sender", "the background sender", STEERED),
    ("etcd --data-dir", "etcd", {**STEERED, "repeats": 1}),  # a second one has no scores, and ends the run
    (
        "failure.probes.traffic",
        "the traffic process",
        small_spec(workloads=[], faults=[CUT], fault_repeats=2, reroute=["on"]),
    ),
]


def kill(program: Program, words: str, after_s: float) -> None:
    """Kill the process of a run whose command line has these words, some time after it has appeared."""

    def found() -> list[psutil.Process]:
        children = psutil.Process(program.process.pid).children(recursive=True)
        return [process for process in children if words in " ".join(command_line(process))]

    eventually(lambda: bool(found()), within_s=60)
    time.sleep(after_s)
    os.kill(found()[0].pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize(("words", "name", "spec"), CASES, ids=[name for _, name, *_ in CASES])
def test_interval_of_a_dead_process_is_invalid_by_name(
    words: str, name: str, spec: dict[str, Any], tmp_path: Path
) -> None:
    """The traffic process is a variant: test_interruptions.py stops it."""
    with Program(run_command(spec, tmp_path)) as program:
        kill(program, words, 4 if words.startswith("etcd") else 2)
        assert program.end(120) == 1, program.output
    stored = Stored(tmp_path / "out", program.output)
    dead = [finding for finding in stored.summary["findings"] if f"{name} died" in finding["text"]]
    assert {finding["interval"].get("repeat") for finding in dead} == {0}, stored.summary["findings"]
    assert any(name in reason for reason in stored.summary["reasons"])
    assert stored.summary["verdict"] == "invalid"
    verdicts = stored.verdicts("repeat")
    assert verdicts[0] == "invalid"
    assert len(verdicts) == spec.get("repeats", spec.get("fault_repeats"))
    rows = [row for row in stored.rows("results.csv") if row["repeat"] == "0" and row["workload"] != "heartbeats"]
    assert {row["verdict"] for row in rows} <= {"invalid"}
