"""Faults beside jobs: which jobs feel a slow link by max-min fair shares, and faults that are refused."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.measures.jobs.faults import predicted_with_fault
from railyard.experiments.measures.jobs.links import rates_of
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.spec import faults_of
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.results.theory.fluid.jobs import predict_jobs

SEND = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "duration": "1s"}
JOBS = [
    {"name": "left", "workload": SEND, "rectangle": {"domains": [0, 1], "rails": [0]}},
    {"name": "right", "workload": SEND, "rectangle": {"domains": [0, 1], "rails": [1]}},
]


def factors(fabric: str = "rail-only", jobs: list[dict[str, Any]] = JOBS, **fault: Any) -> list[float] | None:
    """Return how much longer each job takes with a fault that begins after 1 s and lasts for 1 s."""
    fault = {"target": "d0g1", "at": "1s", "repair": "1s", **fault}
    fabrics = [{"kind": fabric, "domains": 2, "rails": 2}]
    spec = parse({"name": "x", "fabrics": fabrics, "jobs": jobs, "job_faults": [fault]})
    plan = nominal_plan(spec.gpu_fabrics[0])
    combined = planned_jobs(spec, 0, plan).combined
    prediction = predict_jobs(combined, rates_of(plan), plan.spec)
    run = predicted_with_fault(prediction, faults_of(spec)[0], plan, rates_of(plan))
    if run is None:
        return None
    seconds = combined.iteration_seconds(run.end_s)
    return [sum(seconds[n]) / sum(times.together_s) for n, times in enumerate(prediction.times)]


def test_only_the_job_on_a_slow_link_takes_longer() -> None:
    # for a second, a link at half its rate carries what takes half a second
    assert factors(kind="link-slow", rate=0.5) == pytest.approx([1.0, 3.5 / 3])
    assert factors(kind="hb-port-slow", rate=0.5) == pytest.approx([1.0, 1.0])


def test_faults_that_change_routes_have_no_prediction() -> None:
    assert factors(kind="link-down") is None


def test_faults_beside_hashed_flows_have_no_prediction() -> None:
    crossing = {"name": "crossing", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d0g0", "d1g1"]}
    assert factors("rail-optimized", [crossing], kind="link-slow", rate=0.5) is None
    assert factors("rail-optimized", kind="link-slow", rate=0.5) == pytest.approx([1.0, 3.5 / 3])


def test_faults_of_other_targets_are_refused() -> None:
    with pytest.raises(BadInput) as refused:
        factors(kind="link-slow", rate=0.5, target="d5g1")
    assert refused.value.field == "job_faults.0.target"
