"""Slow-downs with noise: bursts that touch collide by drift, and jobs that never compute have no drift."""

import numpy as np
import pytest

from railyard.results.theory.fluid.jobs import predict_jobs
from railyard.results.theory.fluid.noisy_trials import MOST_DRAWS, NoisyTrials
from railyard.results.theory.fluid.shift import interleaved
from railyard.results.theory.fluid.simulation import Conditions
from railyard.workloads.combined import CombinedSchedule
from tests.unit.results.theory.fluid.test_jobs import ONLY, RATES, two_jobs


def trials_of(jobs: CombinedSchedule, trials: int = 2) -> NoisyTrials:
    return NoisyTrials(jobs, RATES, ONLY, Conditions(), trials)


def test_bursts_that_touch_are_worse_than_bursts_far_apart() -> None:
    """Bursts of 10 s in iterations of 40 s: without noise, shifts of 10 s and of 20 s are equally good."""
    jobs = two_jobs(30.0)
    noisy = trials_of(jobs)
    assert len(noisy.draws) == MOST_DRAWS
    touching = interleaved(jobs, (0.0, 10.0))
    apart = interleaved(jobs, (0.0, 20.0))
    for shifted in (touching, apart):
        assert [times.slow_down for times in predict_jobs(shifted, RATES, ONLY).times] == pytest.approx([1, 1])
    assert noisy.slow_down(apart) == pytest.approx(1, abs=0.002)
    assert noisy.slow_down(touching) > 1.01


def test_jobs_that_never_compute_have_no_noise() -> None:
    jobs = two_jobs(0.0)
    noisy = trials_of(jobs)
    assert len(noisy.draws) == 1
    assert noisy.slow_down(jobs) == pytest.approx(2)


def test_long_searches_have_no_noise() -> None:
    (factors,) = trials_of(two_jobs(30.0), trials=100_000).draws
    assert all(np.array_equal(of_job, [1, 1, 1]) for of_job in factors)
