"""The example plugin docs/examples/rail_brownout.py on packets: a rail of a fabric of 2 x 2 slows down."""

from pathlib import Path
from statistics import median

import pytest
import yaml

from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.results import run_folder
from railyard.results.runs.records import GoodputTrace
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, finished

PLUGIN = ROOT / "docs/examples/rail_brownout.py"
SPEC = {
    "name": "brownout",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "20Mbit", "hb_rate": "80Mbit"}],
    "faults": [{"kind": "rail-brownout", "target": "rail1", "rate": 0.04, "repair": "3s"}],
    "reroute": ["on"],
    "scripts": [
        {"name": "random", "random_faults": {"count": 2, "mix": {"rail-brownout": 1}, "group_share": 0}},
    ],
}


def goodput(trace: GoodputTrace, since_ms: float, until_ms: float) -> float:
    return median(bps for ms, bps in zip(trace.t_ms, trace.affected_bps, strict=True) if since_ms <= ms < until_ms)


@pytest.mark.long
def test_plugin_slows_a_rail_down_until_its_repair(tmp_path: Path, slow: float) -> None:
    (tmp_path / "brownout.yaml").write_text(yaml.safe_dump(SPEC))
    out = tmp_path / "out"
    argv = [*RUN_EXPERIMENT, "run", str(tmp_path / "brownout.yaml"), "--plugin", str(PLUGIN), "--out", str(out)]
    done = finished(argv, 240 * slow)
    assert (out / "recovery.csv").exists(), done.stdout + done.stderr
    run = run_folder.load(out)
    assert [(r.fault, r.script) for r in run.rows(RECOVERIES)] == [
        ("rail-brownout", ""),
        *[("rail-brownout", "random")] * 2,
    ]
    alone = run.rows(RECOVERIES)[0]
    assert (alone.target, alone.lost_bytes, alone.connections_lost) == ("rail1", 0, 0)
    trace = next(trace for trace in run.rows(GOODPUT) if not trace.script)
    before, during = goodput(trace, -400, 0), goodput(trace, 1000, trace.repair_ms)
    assert during < before / 2
    assert goodput(trace, trace.repair_ms + 500, trace.repair_ms + 1200) > during
    assert not any(
        check.not_recovered + check.unexpected_answers + check.forwarding_failed_parts
        for check in run.rows(CONNECTIVITY_CHECKS)
    )
    assert (out / "plugins/rail_brownout.py").read_bytes() == PLUGIN.read_bytes()
