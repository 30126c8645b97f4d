"""Faults beside jobs: which jobs feel a slow or a dead link by max-min fair shares, and faults that are refused."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.measures.jobs.links import rates_of
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.predictions import NO_ROUTE, FaultPrediction, predicted_with_fault
from railyard.experiments.measures.jobs.spec import faults_on
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.results.theory.fluid.jobs import predict_jobs

SEND = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "duration": "1s"}
TWO_RAILS = {"kind": "rail-only", "domains": 2, "rails": 2}


def on_rail(rail: int) -> dict[str, Any]:
    """A job of one GPU in each of two domains, named by its rail."""
    return {"name": f"rail-{rail}", "workload": SEND, "rectangle": {"domains": [0, 1], "rails": [rail]}}


def crossing(*gpus: str) -> dict[str, Any]:
    """A job of two GPUs on different rails, named by the first."""
    return {"name": gpus[0], "workload": SEND, "domains": 2, "rails": 1, "gpus": gpus}


def predicted(
    *jobs: dict[str, Any], fabric: dict[str, Any] = TWO_RAILS, heartbeats: bool = True, **fault: Any
) -> FaultPrediction:
    """Return the prediction of jobs of three seconds and a fault that begins after 1 s and lasts for 1 s."""
    fault = {"target": "d0g1", "at": "1s", "repair": "1s", **fault}
    spec = parse({"name": "x", "fabrics": [fabric], "jobs": list(jobs), "job_faults": [fault]})
    plan = nominal_plan(spec.gpu_fabrics[0])
    prediction = predict_jobs(planned_jobs(spec, 0, plan).combined, rates_of(plan), plan.spec)
    return predicted_with_fault(prediction, faults_on(spec, 0)[0], plan, heartbeats)


def ratios(prediction: FaultPrediction, name: str = "at_its_times") -> list[float]:
    """Return the mean of a prediction of each job."""
    return [getattr(job, name).mean for job in prediction.jobs.values()]


def test_only_the_job_on_a_slow_link_takes_longer() -> None:
    jobs = (on_rail(0), on_rail(1))
    slow = predicted(*jobs, kind="link-slow", rate=0.5)
    # for a second, a link at half its rate carries what takes half a second
    assert ratios(slow) == pytest.approx([1.0, 3.5 / 3])
    assert ratios(slow, "alone") == pytest.approx([1.0, 2.0])
    assert ratios(predicted(*jobs, kind="hb-port-slow", rate=0.5)) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("kind", "target"), [("link-down", "d0g1"), ("rail-switch-crash", "rail1")])
def test_a_job_shares_its_rail_with_a_detour(kind: str, target: str) -> None:
    """With rail 1 dead, its job sends over rail 0 by the HB domains, and shares it with the job there."""
    both = predicted(on_rail(0), on_rail(1), kind=kind, target=target)
    assert ratios(both, "alone") == pytest.approx([1.0, 1.0])
    assert ratios(both, "together") == pytest.approx([2.0, 2.0])
    assert ratios(both) == pytest.approx([3.5 / 3, 3.5 / 3])
    assert both.is_rerouted


def test_a_job_beside_the_rail_of_a_detour_is_as_fast_as_before() -> None:
    # pairs of rail 1 between the first two domains take rail 0
    jobs = (on_rail(0), on_rail(1), on_rail(2))
    three_rails = predicted(*jobs, fabric={**TWO_RAILS, "rails": 3}, kind="link-down")
    assert ratios(three_rails, "together") == pytest.approx([2.0, 2.0, 1.0])


def test_jobs_of_a_dead_gpu_have_no_route() -> None:
    crashed = predicted(on_rail(0), on_rail(1), kind="gpu-crash")
    assert [crashed.reason_of(f"rail-{rail}") for rail in (0, 1)] == ["", NO_ROUTE]
    assert crashed.jobs["rail-0"].together == pytest.approx((1.0, 1.0, 1.0))
    assert crashed.jobs["rail-1"].together is None


@pytest.mark.parametrize(
    ("kind", "heartbeats", "reason"),
    [
        ("link-gray", True, "packets are lost"),
        ("link-flapping", True, "packets are lost"),
        ("link-silent", False, "no heartbeats"),
        ("link-silent", True, ""),
    ],
)
def test_lossy_and_undetected_faults_have_no_prediction(kind: str, heartbeats: bool, reason: str) -> None:
    assert predicted(on_rail(1), kind=kind, heartbeats=heartbeats).reason_of("rail-1") == reason


def test_jobs_apart_from_a_lossy_link_are_as_fast_as_before() -> None:
    gray = predicted(on_rail(0), on_rail(1), kind="link-gray")
    assert list(gray.jobs) == ["rail-0"]
    assert ratios(gray) == [1.0]
    # by dr, a job crosses the link of a GPU of the other; nothing crosses that of d2g0
    fabric = {**TWO_RAILS, "domains": 3}
    jobs = (crossing("d0g0", "d1g1"), crossing("d0g1", "d2g1"))
    assert list(predicted(*jobs, fabric=fabric, kind="link-gray").jobs) == []
    assert list(predicted(*jobs, fabric=fabric, kind="link-gray", target="d2g0").jobs) == ["d0g0", "d0g1"]


def test_the_loss_of_a_spine_is_predicted_over_hashes() -> None:
    """Two jobs cross two spines, on which they meet or not; with one spine left they always meet."""
    fabric = {**TWO_RAILS, "kind": "rail-optimized", "spines": 2}
    jobs = (crossing("d0g0", "d1g1"), crossing("d0g1", "d1g0"))
    for job in predicted(*jobs, fabric=fabric, kind="spine-crash", target="spine0").jobs.values():
        assert job.alone == pytest.approx((1.0, 1.0, 1.0))
        assert job.together is not None
        assert 1 < job.together.mean < 2
        assert (job.together.least, job.together.most) == pytest.approx((1.0, 2.0))


def test_a_slow_link_is_predicted_beside_hashes() -> None:
    fabric = {**TWO_RAILS, "kind": "rail-optimized", "spines": 2}
    slow = predicted(crossing("d0g0", "d1g1"), fabric=fabric, kind="link-slow", rate=0.5, target="d0g0")
    assert ratios(slow) == pytest.approx([3.5 / 3])
    assert slow.run is None


@pytest.mark.parametrize(("key", "value"), [("target", "d5g1"), ("on", [1])])
def test_faults_of_other_targets_and_fabrics_are_refused(key: str, value: Any) -> None:
    with pytest.raises(BadInput) as refused:
        predicted(on_rail(1), **{"kind": "link-slow", key: value})
    assert refused.value.field.startswith(f"job_faults.0.{key}")


def test_a_fault_is_for_its_fabrics_alone() -> None:
    fault = {"kind": "link-down", "target": "d1g1", "on": [1]}
    fabrics = [{**TWO_RAILS, "rails": 3}, TWO_RAILS]
    spec = parse({"name": "x", "fabrics": fabrics, "jobs": [on_rail(1)], "job_faults": [fault]})
    assert [len(faults_on(spec, number)) for number in (0, 1)] == [0, 1]
