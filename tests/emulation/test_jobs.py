"""Two jobs on packets that share the rail link of a GPU.

d0g0 --hb-- d0g1 --rail1-- d1g1     crossing: d0g0 and d1g1, each of whose ways leaves by a link of another GPU
            d0g1 --rail1-- d2g1     straight: d0g1 and d2g1
"""

from pathlib import Path

import pytest

import railyard as ry
from railyard.experiments.measures.jobs.analysis import fault_rows
from railyard.experiments.measures.jobs.predictions import ALL_JOBS
from railyard.experiments.measures.jobs.records import (
    JOB_BURSTS,
    JOB_ITERATIONS,
    JOB_LINKS,
    JOB_PORTS,
    JOB_RUNS,
    JOB_SHIFTS,
    JOB_SLOWDOWN,
    TOGETHER,
)
from railyard.results.analysis.run_analysis import Analysis
from tests.emulation.runs import run_experiment

SEND = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "duration": "200ms"}
TIMES = {"iterations": 6, "compute": "100ms"}
EXPERIMENT = {
    "name": "shared-link",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 3, "rails": 2, "rail_rate": "20Mbit", "hb_rate": "240Mbit"}],
    "jobs": [
        {"name": "crossing", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d0g0", "d1g1"], **TIMES},
        {"name": "straight", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d0g1", "d2g1"], **TIMES},
    ],
    "job_faults": [{"kind": "link-slow", "target": "d1g1", "rate": 0.25, "at": "500ms", "repair": "500ms"}],
    "interleaving": True,
}
SLOW = "link-slow d1g1"


@pytest.mark.quiet
def test_jobs_alone_and_together_deliver_every_byte(tmp_path: Path) -> None:
    stored = run_experiment(EXPERIMENT, tmp_path)
    run = stored.run
    rows = run.rows(JOB_RUNS)
    assert [(row.job, row.mode) for row in rows] == [
        ("crossing", "alone"), ("straight", "alone"), ("crossing", "together"), ("straight", "together"),
        ("crossing", "interleaved"), ("straight", "interleaved"),
        ("crossing", SLOW), ("straight", SLOW),
    ]  # fmt: skip
    assert all(row.delivered_bytes == row.asked_bytes and not row.pairs_wrong for row in rows)
    assert len(run.rows(JOB_ITERATIONS)) == 48
    shared = {(row.link, row.job) for row in run.rows(JOB_LINKS) if row.shared_s}
    assert {("d0g1 rail", "crossing"), ("d0g1 rail", "straight")} <= shared
    slow_downs = {}
    for row in run.measurements:
        if row.metric == JOB_SLOWDOWN and row.workload == ALL_JOBS:
            slow_downs[row.phase] = row.value
    with ry.timing(ry.load(stored.folder)):
        # in one queue, the forwarded job would take hardly longer than alone
        assert slow_downs["crossing"] > 1.2
        assert slow_downs["straight"] > 1.2
    assert [row.shift_s > 0.05 for row in run.rows(JOB_SHIFTS)] == [False, True]
    bursts = {(row.mode, row.job) for row in run.rows(JOB_BURSTS)}
    assert bursts == {(mode, job) for mode in ("together", "interleaved") for job in ("crossing", "straight")}


# both jobs leave rail0 over its uplinks, leaf0 over its uplinks, and domain 0 over one NIC
RATES = {"rail_rate": "20Mbit", "hb_rate": "240Mbit"}
MEETING = {
    "name": "meeting",
    "attempts": 1,
    "fabrics": [
        {"kind": "rail-optimized", "domains": 2, "rails": 2, "spines": 2, **RATES},
        {"kind": "clos", "domains": 2, "rails": 2, "spines": 2, **RATES},
        {"kind": "rail-only", "domains": 2, "rails": 4, "gpus_per_nic": 2, **RATES},
    ],
    "jobs": [
        {"name": "a", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d0g0", "d1g1"], "iterations": 2},
        {"name": "b", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d0g1", "d1g0"], "iterations": 2},
    ],
}
LINKS = {"rail-optimized": "rail0 uplink", "clos": "leaf0 uplink", "rail-only": "d0n0 rail"}


def test_ports_count_bytes_of_jobs_at_uplinks_and_nics(tmp_path: Path) -> None:
    stored = run_experiment(MEETING, tmp_path)
    stored.assert_no_byte_is_missing()
    stored.assert_only_the_machine_failed()
    ports = stored.run.rows(JOB_PORTS)
    assert any(not row.jobs for row in ports)
    for kind, link in LINKS.items():
        together = [row for row in ports if (row.fabric, row.link, row.mode) == (kind, link, TOGETHER)]
        assert {row.direction for row in together} == {"in", "out"}
        for row in together:
            assert row.jobs == "a, b"
            assert row.expected_bytes > 500_000


# with the link of d0g1 dead, the job on rail 1 sends over rail 0, where the other job is
DETOUR = {
    "name": "detour",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, **RATES}],
    "jobs": [
        {"name": "straight", "workload": SEND, "rectangle": {"domains": [0, 1], "rails": [0]}, "iterations": 10},
        {"name": "rerouted", "workload": SEND, "rectangle": {"domains": [0, 1], "rails": [1]}, "iterations": 10},
    ],
    "job_faults": [{"kind": "link-down", "target": "d0g1", "at": "500ms", "repair": "2s"}],
}


@pytest.mark.quiet
def test_both_jobs_on_the_rail_of_a_detour_take_longer(tmp_path: Path) -> None:
    stored = run_experiment(DETOUR, tmp_path)
    stored.assert_no_byte_is_missing()
    rows = fault_rows(Analysis(stored.run))
    assert [(row.slow_down_predicted, row.alone_predicted) for row in rows] == [pytest.approx((2.0, 1.0))] * 2
    with ry.timing(ry.load(stored.folder)):
        # the time until the detour is there counts too
        assert [row.slow_down for row in rows] == [pytest.approx(2.0, rel=0.2)] * 2
