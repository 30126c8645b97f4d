"""Stragglers: slow GPUs compute longer by their factor, jitter has the spread asked for, and transfers stay."""

import numpy as np
import pytest

from railyard.core.errors import BadInput
from railyard.workloads.schedule import Phase, Program, Schedule
from railyard.workloads.stragglers import factors_of, with_stragglers


def computing(count: int = 1) -> Schedule:
    """Return 2 x 2 GPUs that compute `count` times 1 s each, and one transfer."""
    program = Program(2, 2)
    phase = program.phase(Phase("step", "step", "", 2, 2, 0.0))
    for _ in range(count):
        for gpu in range(4):
            program.compute(gpu, 1.0, phase)
    program.send(0, 1, 100, phase, program.last(0))
    return program.schedule("computing")


def test_slow_gpu_computes_longer() -> None:
    factors = factors_of({"d1g0": 1.5}, 2, 2, "stragglers")
    slow = with_stragglers(computing(), factors, 0.0, seed=0)
    assert slow.columns.seconds.tolist() == [1, 1, 1.5, 1, 0]
    assert slow.matrix == computing().matrix


def test_jitter_has_its_spread_and_no_mean() -> None:
    schedule = with_stragglers(computing(2000), [1.0] * 4, 0.1, seed=3)
    seconds = schedule.columns.seconds[schedule.columns.is_compute]
    assert np.mean(seconds) == pytest.approx(1, abs=0.005)
    assert np.std(seconds) == pytest.approx(0.1, rel=0.05)


def test_seed_decides_jitter() -> None:
    drawn = [with_stragglers(computing(), [1.0] * 4, 0.1, seed).columns for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_gpu_that_the_job_has_not_is_refused() -> None:
    with pytest.raises(BadInput, match="slow: 'd2g0' is not known: did you mean 'd1g0'"):
        factors_of({"d2g0": 2}, 2, 2, "stragglers")
