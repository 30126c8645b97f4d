"""A run's folder that another run asks for, and that is gone at the end: the records are kept elsewhere."""

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from railyard.results import run_folder
from tests.emulation.programs import RUN_EXPERIMENT, Program

SMALL: dict[str, Any] = {
    "name": "small",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "10Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "200ms"}],
    "seed": 5,
}
RUN_S = 180.0


def test_a_lost_folder_costs_no_records() -> None:
    with tempfile.TemporaryDirectory() as name:
        home, out = Path(name, "home"), Path(name, "out")
        home.mkdir()
        (Path(name) / "small.yaml").write_text(yaml.safe_dump(SMALL))
        command = [*RUN_EXPERIMENT, "run", str(Path(name, "small.yaml")), "--out", str(out), "--quiet"]
        with Program(command, home=home) as run:
            until = time.monotonic() + 60
            while not out.exists() and time.monotonic() < until:
                time.sleep(0.05)
            with Program(command, home=home) as second:
                assert second.end(RUN_S) == 2
            assert "is in use by another run: choose another folder" in second.output
            shutil.rmtree(out)
            assert run.end(RUN_S) == 1, run.output
        assert "fidelity" in run.output  # the figures, in spite of --quiet
        last = run.output.strip().splitlines()[-1]
        assert last.startswith(f"error: {out} can't be written"), run.output
        kept = Path(last.rpartition(" ")[2])
        assert kept.parent == home / ".local/state/railyard"
        assert kept.stat().st_mode & 0o777 == 0o700
        assert json.loads((kept / "summary.json").read_text())["complete"] is True
        assert not run_folder.load(kept).damaged
        assert run_folder.load(kept).flows
