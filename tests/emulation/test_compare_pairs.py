"""`compare` on pairs of real runs: no alarm where nothing was changed, and a link that is 5% slower is found."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.emulation.programs import RUN_EXPERIMENT

PAIRS = 20
RATE, SLOWER = "40Mbit", "38Mbit"
SPEC = {
    "name": "pair",
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": RATE, "hb_rate": "160Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "in-rail", "bytes": "1.5MB"}],
    "repeats": 8,
}


def compared(a: Path, b: Path) -> dict[str, Any]:
    done = subprocess.run(
        [*RUN_EXPERIMENT, "compare", str(a), str(b), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.alone
def test_compare_finds_slower_links_and_nothing_else(tmp_path: Path) -> None:
    """A run is compared with the next one of the same experiment, and with one whose rails are 5% slower."""
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(SPEC))
    out = tmp_path / "out"
    axes = ["--axis", f"rail_rate={RATE},{SLOWER}", "--seeds", f"1..{PAIRS + 1}"]
    argv = [*RUN_EXPERIMENT, "sweep", str(tmp_path / "pair.yaml"), *axes, "--out", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    runs = {
        (run["axes"]["rail_rate"], run["axes"]["seed"]): out / "runs" / run["folder"]
        for run in yaml.safe_load((out / "sweep.yaml").read_text())["runs"]
    }
    same = [compared(runs[RATE, n], runs[RATE, n + 1])["counts"] for n in range(1, PAIRS + 1)]
    changed = [compared(runs[RATE, n], runs[SLOWER, n])["counts"] for n in range(1, PAIRS + 1)]
    alarms = sum("slower" in counts or "faster" in counts for counts in same)
    known = sum("same" in counts for counts in same)
    found = sum("slower" in counts for counts in changed)
    print(f"{PAIRS} pairs: alarms {alarms}, same {known}, slower link found {found}")
    assert alarms <= 1
    assert found >= PAIRS - 1
