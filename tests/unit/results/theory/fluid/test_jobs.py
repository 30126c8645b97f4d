"""Slow-downs of jobs that share a rail: two that send all the time, and two that send in turns."""

import numpy as np
import pytest

from railyard.results.theory.fluid.jobs import predict_jobs
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule, PlacedJob, combined
from railyard.workloads.schedule import Phase, Program, Rates

ONLY = FabricSpec(kind="rail-only", domains=2, rails=2)
RATES = Rates(hb=8.0, rail=1.0)


def job(name: str, src: int, start_s: float, compute_s: float, iterations: int) -> PlacedJob:
    """A job that computes, then sends 10 bytes over the rail of d0g1 to d1g1: by itself, or forwarded for d0g0."""
    program = Program(2, 2)
    phase = program.phase(Phase("burst", "collective", "", 2, 2, 10.0))
    program.send(src, 3, 10, phase, ())
    return PlacedJob(name, program.schedule(name), (src,), iterations, start_s, compute_s)


def two_jobs(compute_s: float, shift_s: float = 0.0, iterations: int = 3) -> CombinedSchedule:
    return combined([job("a", 0, 0.0, compute_s, iterations), job("b", 1, shift_s, compute_s, iterations)])


def test_jobs_that_always_send_take_twice_as_long() -> None:
    prediction = predict_jobs(two_jobs(0.0), RATES, ONLY)
    assert [times.slow_down for times in prediction.times] == pytest.approx([2, 2])
    assert prediction.times[0].alone_s == pytest.approx((10, 10, 10))


def test_jobs_that_send_in_turns_are_not_slowed() -> None:
    prediction = predict_jobs(two_jobs(30.0, shift_s=15.0), RATES, ONLY)
    assert [times.slow_down for times in prediction.times] == pytest.approx([1, 1])


def test_jobs_that_begin_together_share_every_burst() -> None:
    prediction = predict_jobs(two_jobs(30.0), RATES, ONLY)
    assert [times.slow_down for times in prediction.times] == pytest.approx([50 / 40, 50 / 40])


def test_noise_of_a_job_alone_is_no_slow_down() -> None:
    """Both iterations compute longer, alone too: what remains is that bursts meet less."""
    jobs = two_jobs(30.0, iterations=2)
    factors = [np.array([1.2, 1.2]), np.array([1.0, 1.0])]
    prediction = predict_jobs(jobs, RATES, ONLY, factors=factors)
    assert prediction.times[0].alone_s == pytest.approx((46, 46))
    # the first bursts, from seconds 36 and 30 on, share the link until second 44; the next ones never do
    assert prediction.times[0].slow_down == pytest.approx((92 + 4) / 92)
