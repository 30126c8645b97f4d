"""Dry run of faults and scripts: each with its time, and the minimum total time."""

from pathlib import Path
from typing import Final

import pytest
import yaml

from railyard.experiments import cli
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.failure.analysis.evaluate import AFTER_S
from railyard.failure.faults import fault_kinds
from tests.unit.loaded_experiments import load

KINDS: Final = fault_kinds()
FILE = """
name: mine
fabrics: [{kind: rail-only}, {kind: rail-optimized, domains: 3}]
workloads: [{kind: moe, bytes: 100KB}]
faults:
  - {kind: rail-switch-reboot, target: rail1, on: [0], down: 250ms}
scripts:
  - {name: cut, faults: [{kind: link-down, target: d0g1, at: 10ms, after: moe-a2a}], during: moe-1.3b-128, on: [1]}
  - {name: lost, faults: [{kind: registry-crash, target: registry, registry: etcd}], on: [1]}
reroute: ["on"]
fault_repeats: 4
"""


def test_every_fault_has_its_time_its_own_key_and_its_fabric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(FILE)
    assert cli.main(["dry-run", str(tmp_path / "mine.yaml")]) == 0
    reported = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    first, second = (reported.index(f"faults on {name}") for name in (
        "rail-only, 4 domains x 4 rails", "rail-optimized, 3 domains x 4 rails"
    ))  # fmt: skip
    assert reported[first + 2] == "1s rail-switch-reboot rail1 2s down 250ms 4"
    assert reported[second + 2] == "cut during moe-1.3b-128 moe-a2a + 10ms link-down d0g1 2s 1"
    assert "lost 1s registry-crash registry 2s registry etcd 1" in reported
    assert "6 injections in 6 runs, reroute on: 24s or more" in reported


def test_a_storm_is_reported_fault_by_fault_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dry-run", "random-faults", "-o", "seed=7"]) == 0
    reported = capsys.readouterr().out
    assert "random-faults (seed 7)" in reported
    spec = load("random-faults", ["seed=7"])
    drawn = FaultsMeasure().scripts(spec)[0].script(nominal_plan(spec.gpu_fabrics[0]), 7).faults
    rows = [line.split() for line in reported.splitlines()]
    shown = [(row[i], row[i + 1]) for row in rows for i in range(len(row) - 1) if row[i] in KINDS]
    assert shown == [(timed.fault.kind, timed.fault.target) for timed in drawn]


def test_least_time_is_from_first_to_last_traffic_of_each_run() -> None:
    data = yaml.safe_load(FILE)
    spec = parse({**data, "reroute": ["on", "off"], "script_repeats": 2})
    once = [(1 + 2, 4), (0.01 + 2, 2), (1 + 2, 2)]
    assert FaultsMeasure().min_duration_s(spec) == pytest.approx(
        2 * sum((ends + AFTER_S) * times for ends, times in once)
    )
