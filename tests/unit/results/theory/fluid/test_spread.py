"""Predictions as mean and interval: a point without chance, drift of jobs that compute, and hashed uplinks."""

import pytest

from railyard.results.theory.fluid.jobs import predict_jobs
from railyard.results.theory.fluid.spread import PredictedJob, Spread, predicted_spreads
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule, PlacedJob, combined
from railyard.workloads.schedule import Phase, Program
from tests.unit.results.theory.fluid.test_jobs import ONLY, RATES, two_jobs


def spreads(jobs: CombinedSchedule, fabric: FabricSpec) -> tuple[PredictedJob, ...]:
    return predicted_spreads(predict_jobs(jobs, RATES, fabric), RATES, fabric)


def sender(name: str, src: int, dst: int, compute_s: float = 0.0) -> PlacedJob:
    """A job that computes and sends 10 bytes, once."""
    program = Program(2, 2)
    phase = program.phase(Phase("burst", "collective", "", 2, 2, 10.0))
    program.send(src, dst, 10, phase, ())
    return PlacedJob(name, program.schedule(name), (src, dst), 1, compute_s=compute_s)


def test_jobs_that_never_compute_have_a_point() -> None:
    for job in spreads(two_jobs(0.0), ONLY):
        assert job.slow_down == pytest.approx((2, 2, 2))
        assert job.together_s == pytest.approx((20, 20, 20))


def test_jobs_without_a_common_port_have_a_point() -> None:
    for job in spreads(combined([sender("a", 0, 2, 30.0), sender("b", 1, 3, 30.0)]), ONLY):
        assert job.slow_down == pytest.approx((1, 1, 1))


def test_jobs_that_compute_drift_apart() -> None:
    """Begun together they take 50 s for 40; noise of a few seconds lets bursts of 10 s meet less."""
    for job in spreads(two_jobs(30.0), ONLY):
        assert 1 < job.slow_down.least < job.slow_down.mean < job.slow_down.most < 1.27
        assert job.alone_s == pytest.approx((40, 40, 40))
        assert job.together_s.mean == pytest.approx(40 * job.slow_down.mean)


def test_more_iterations_drift_farther() -> None:
    few = spreads(two_jobs(30.0, iterations=3), ONLY)[0].slow_down
    many = spreads(two_jobs(30.0, iterations=12), ONLY)[0].slow_down
    assert many.mean < few.mean


def test_a_hash_may_put_both_jobs_on_the_same_uplink() -> None:
    """Two flows leave rail 0 over two uplinks, each of a rail's rate: even shares suffice, one uplink does not."""
    fabric = FabricSpec(kind="rail-optimized", domains=2, rails=2, spines=2)
    jobs = combined([sender("a", 0, 3), sender("b", 2, 1)])
    prediction = predict_jobs(jobs, RATES, fabric)
    assert [times.slow_down for times in prediction.times] == pytest.approx([1, 1])
    for job in spreads(jobs, fabric):
        assert (job.slow_down.least, job.slow_down.most) == pytest.approx((1, 2))
        assert job.slow_down.mean == pytest.approx(1.5, abs=0.15)
        assert job.alone_s == pytest.approx((10, 10, 10))


def test_an_assigned_uplink_leaves_nothing_to_chance() -> None:
    fabric = FabricSpec(kind="rail-optimized", domains=2, rails=2, spines=2, policy="round-robin")
    jobs = combined([sender("a", 0, 3), sender("b", 2, 1)])
    for job in spreads(jobs, fabric):
        assert job.slow_down == pytest.approx((1, 1, 1))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 1.0005], (1.00025, 1.00025, 1.00025)),
        ([1.0] * 40 + [2.0], (42 / 41, 1.0, 42 / 41)),
        ([float(value) for value in range(100, 201)], (150, 105, 195)),
    ],
)
def test_spread_has_the_mean_within_its_percentiles(values: list[float], expected: tuple[float, ...]) -> None:
    assert Spread.of(values) == pytest.approx(expected)


@pytest.mark.parametrize(("value", "expected"), [(0.9, 0.1), (1.0, 0), (1.2, 0), (1.5, 0), (1.65, 0.1)])
def test_values_are_off_by_the_nearer_end(value: float, expected: float) -> None:
    assert Spread(1.2, 1.0, 1.5).off(value) == pytest.approx(expected)
