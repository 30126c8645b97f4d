"""Scripts of an experiment on a small fabric: random faults, and a fault during a workload.

d0g0 d0g1   d1g0 d1g1   d2g0 d2g1      three HB domains, two rails
"""

import pandas as pd
import pytest

from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.parsing import parse
from tests.emulation.runs import Stored, run_experiment, small_spec

SPEC = small_spec(
    fabrics=[{"kind": "rail-only", "domains": 3, "rails": 2, "rail_rate": "10Mbit"}],
    workloads=[{"kind": "moe", "duration": "1s", "compute": 0.2}],
    scripts=[
        {
            "name": "cut",
            "during": "moe-1.3b-128",
            "faults": [{"kind": "link-down", "target": "d0g1", "after": "moe-a2a", "at": "20ms", "repair": "500ms"}],
        },
        {"name": "wild", "random_faults": {"count": 3, "mix": {"link-silent": 1, "gpu-hang": 1, "link-down": 1}}},
    ],
    reroute=["on"],
    seed=3,
)


@pytest.fixture(scope="module")
def spec() -> ExperimentSpec:
    return parse(SPEC)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    stored = run_experiment(SPEC, tmp_path_factory.mktemp("scripts"))
    assert "wild on rail-only" in stored.output, stored.output  # a failed script ends the run, with status 1 as well
    return stored


def test_random_faults_of_the_seed_are_injected_and_recover(stored: Stored, spec: ExperimentSpec) -> None:
    drawn = FaultsMeasure().scripts(spec)[1].script(nominal_plan(spec.gpu_fabrics[0]), 3).faults
    rows = pd.read_csv(stored.folder / "recovery.csv")
    wild = rows[rows["script"] == "wild"]
    assert list(zip(wild["fault"], wild["target"], strict=True)) == [(t.fault.kind, t.fault.target) for t in drawn]
    assert wild["detect_ms"].notna().all(), "heartbeats find what is silent"
    checks = pd.read_csv(stored.folder / "connectivity.csv")
    assert set(checks["script"]) == {"wild"}
    wrong = checks[checks["not_recovered"] + checks["unexpected_answers"] + checks["forwarding_failed_parts"] > 0]
    assert wrong["mismatches"].tolist() == []
    assert (rows["lost_bytes"] == 0).all()


def test_fault_after_a_phase_is_injected_there_and_loses_nothing(stored: Stored) -> None:
    flows = pd.read_parquet(stored.folder / "flows.parquet")
    broken = flows[(flows["workload"] == "moe-1.3b-128") & (flows["script"] == "cut")]
    assert len(broken) == len(flows) / 2
    assert (broken["delivered"] == broken["bytes"]).all()
    rows = pd.read_csv(stored.folder / "recovery.csv")
    (t_fault,) = rows[rows["script"] == "cut"]["t_fault"]
    assert broken["start_ns"].min() < t_fault < broken["end_ns"].max()
    times = pd.read_csv(stored.folder / "results.csv").query("metric == 'iteration_time'")
    assert set(times["workload"]) == {"moe-1.3b-128"}
    assert set(times["script"].fillna("")) == {"", "cut"}


def test_records_have_heartbeat_cost_and_the_drawn_script(stored: Stored, spec: ExperimentSpec) -> None:
    costs = pd.read_csv(stored.folder / "results.csv").query("workload == 'heartbeats'").set_index("metric")["value"]
    assert costs["packets"] > 6 * 2 * 50 / 2, "six GPUs, two links each, fifty times a second; half of it on a bad day"
    assert 0 < costs["rail_link_share"] < 0.01
    (event,) = stored.events("script", "wild")
    again = parse({**SPEC, "scripts": [{"name": "wild", "faults": event.detail["faults"]}]})
    plan = nominal_plan(spec.gpu_fabrics[0])
    assert FaultsMeasure().scripts(again)[0].script(plan, 0) == FaultsMeasure().scripts(spec)[1].script(plan, 3)
