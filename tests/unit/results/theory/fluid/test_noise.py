"""Noise of iterations: measured parts one after the other, and computing that takes longer by them."""

import numpy as np
import pytest

from railyard.results.theory.fluid.noise import computing_seconds, drawn_factors, measured_noise, with_factors
from tests.unit.results.theory.fluid.test_jobs import two_jobs


def test_a_job_gets_noise_of_successive_iterations() -> None:
    noise = np.arange(10) / 100
    first, second = drawn_factors(two_jobs(30.0, iterations=4), noise, np.random.default_rng(1))
    for factors in (first, second):
        steps = np.diff(np.round(100 * (factors - 1)).astype(int)) % 10
        assert steps.tolist() == [1, 1, 1]
    assert not np.array_equal(first, second)


def test_measured_noise_is_around_its_median() -> None:
    assert np.median(measured_noise()) == pytest.approx(0, abs=0.01)
    assert measured_noise().min() > -1


def test_computing_of_an_iteration_takes_longer_by_its_factor() -> None:
    jobs = two_jobs(30.0, shift_s=5.0, iterations=2)
    longer = with_factors(jobs, [np.array([1.5, 1.0]), np.array([1.0, 2.0])])
    gates = jobs.is_gate
    assert jobs.schedule.columns.seconds[gates].tolist() == [30, 30, 35, 30]
    # the time until a job starts is no computing
    assert computing_seconds(jobs)[gates].tolist() == [30, 30, 30, 30]
    assert longer.schedule.columns.seconds[gates].tolist() == [45, 30, 35, 60]
    assert not longer.schedule.columns.seconds[~gates].any()
