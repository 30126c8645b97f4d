"""Runs of a small experiment with one of the example plugins of docs/examples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, RECOVERIES
from railyard.results import run_folder
from railyard.results.runs.records import Run
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, finished

RUN_S = 240.0
EXAMPLES = ROOT / "docs/examples"


def recovery_spec(fabric: dict[str, Any], faults: Sequence[dict[str, Any]], algorithm: str = "auto") -> dict[str, Any]:
    """Return an experiment with an all-to-all on a small fabric, and a script of these faults."""
    return {
        "name": "small",
        "attempts": 1,
        "fabrics": [{"domains": 3, "rails": 2, "rail_rate": "10Mbit", **fabric}],
        "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": algorithm, "duration": "300ms"}],
        "scripts": [{"name": "faults", "faults": list(faults)}],
        "reroute": ["on"],
    }


def run_with_plugin(plugin: str, spec: dict[str, Any], folder: Path, slow: float) -> Run:
    """Run an experiment in a program of its own; what it stored. Its verdict depends on the machine's load."""
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    argv = [*RUN_EXPERIMENT, "run", str(folder / "spec.yaml"), "--plugin", str(EXAMPLES / plugin)]
    argv += ["--out", str(folder / "out")]
    done = finished(argv, RUN_S * slow)
    assert (folder / "out/summary.json").exists(), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return run_folder.load(folder / "out")


def assert_recovered(run: Run, faults: int) -> None:
    """Every pair that has a path left is answered after each step, and no byte is lost."""
    assert len(run.rows(RECOVERIES)) == faults
    assert all(fault.lost_bytes == 0 for fault in run.rows(RECOVERIES))
    checks = [check for check in run.rows(CONNECTIVITY_CHECKS) if check.done]
    assert checks
    assert [check.mismatches for check in checks if check.not_recovered or check.unexpected_answers] == []
    assert all(flow.delivered == flow.bytes for flow in run.flows)
