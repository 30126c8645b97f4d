"""Predictions of jobs as mean and interval, where their slow-downs are no single value.

Jobs that compute drift against each other, as no iteration takes exactly as long as the one before: whether their
bursts meet is chance. And where a hash chooses among planes, paths or uplinks, it is unknown which flows meet. Then the
jobs are simulated often: in each simulation, iterations compute longer or shorter as measured ones did, and flows have
another hash.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final, NamedTuple, Self

import numpy as np

from railyard.results.theory.fluid.jobs import JobsPrediction, JobTimes, predict_jobs
from railyard.results.theory.fluid.noise import computing_seconds, drawn_factors, measured_noise
from railyard.results.theory.fluid.routes import is_hashed
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.schedule import Rates

DRAWS_OF_NOISE: Final = 20
DRAWS_OF_HASHES: Final = 80
"""A flow has one hash in all iterations, so that simulations differ more than by noise, which iterations average."""
FEWEST_DRAWS: Final = 8
DRAWN_TASKS: Final = 20_000
"""Tasks in the simulations of all draws: jobs with more tasks have fewer draws."""
PERCENTILES: Final = (5, 95)
# values that differ by less, as a share, are a point
POINT: Final = 1e-3


class Spread(NamedTuple):
    """A predicted value: the mean of its simulations, and their 5th and 95th percentile; all are equal for a point."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of simulated values; a point if they differ by no more than `POINT`."""
        mean = fmean(values)
        if max(values) <= min(values) * (1 + POINT):
            return cls.point(mean)
        least, most = np.percentile(values, PERCENTILES).tolist()
        # few hashes that collide may move the mean and no percentile
        return cls(mean, min(least, mean), max(most, mean))

    @classmethod
    def point(cls, value: float) -> Self:
        """Return a value that all simulations have."""
        return cls(value, value, value)

    @property
    def is_point(self) -> bool:
        """True if it is a single value, or not a number, as of jobs that never end."""
        return not self.least < self.most

    def off(self, value: float) -> float:
        """Return by how much a value is outside of the interval, as a share of the nearer end; 0 within."""
        if value < self.least:
            return 1 - value / self.least
        return max(0.0, value / self.most - 1)

    def times(self, factor: float) -> "Spread":
        """Return the spread of the value times a factor."""
        return Spread(self.mean * factor, self.least * factor, self.most * factor)


class PredictedJob(NamedTuple):
    """Predictions of a job: its mean iteration alone and together with the others, s, and its slow-down."""

    name: str
    alone_s: Spread
    together_s: Spread
    slow_down: Spread


def predicted_spreads(prediction: JobsPrediction, rates: Rates, fabric: FabricSpec) -> tuple[PredictedJob, ...]:
    """Return the predictions of all jobs. `prediction`: with even shares and without noise.

    Where no hash decides, the iteration alone is a point: noise is there for the drift of phases against other jobs.
    """
    has_hash = is_hashed(prediction.together.routes, fabric)
    can_drift = bool(prediction.shared_ports) and bool(computing_seconds(prediction.combined).any())
    is_finite = bool(np.isfinite(prediction.together.seconds))
    # a transfer without a path never ends, whatever is drawn
    if not is_finite or not (has_hash or can_drift):
        return tuple(_point(times) for times in prediction.times)
    draws = _draws(prediction, rates, fabric, has_hash)
    jobs: list[PredictedJob] = []
    for number, times in enumerate(prediction.times):
        drawn = [draw[number] for draw in draws]
        slow_down = Spread.of([times_drawn.slow_down for times_drawn in drawn])
        alone_s = Spread.point(fmean(times.alone_s))
        together_s = slow_down.times(alone_s.mean)
        if has_hash:
            alone_s = Spread.of([fmean(times_drawn.alone_s) for times_drawn in drawn])
            together_s = Spread.of([fmean(times_drawn.together_s) for times_drawn in drawn])
        jobs.append(PredictedJob(times.name, alone_s, together_s, slow_down))
    return tuple(jobs)


def _point(times: JobTimes) -> PredictedJob:
    return PredictedJob(
        name=times.name,
        alone_s=Spread.point(fmean(times.alone_s)),
        together_s=Spread.point(fmean(times.together_s)),
        slow_down=Spread.point(times.slow_down),
    )


def _draws(prediction: JobsPrediction, rates: Rates, fabric: FabricSpec, has_hash: bool) -> list[tuple[JobTimes, ...]]:
    """Return the times of all jobs in each simulation. Its seeds are fixed, so that a prediction never changes."""
    jobs = prediction.combined
    count = draw_count(DRAWS_OF_HASHES if has_hash else DRAWS_OF_NOISE, jobs)
    rng = np.random.default_rng(0)
    draws: list[tuple[JobTimes, ...]] = []
    for draw in range(count):
        factors = drawn_factors(jobs, measured_noise(), rng)
        conditions = prediction.conditions
        if has_hash:
            # a simulation uses a seed for all jobs together, and the next ones for each job alone
            conditions = replace(conditions, hash_seed=draw * (1 + len(jobs.jobs)))
        draws.append(predict_jobs(jobs, rates, fabric, conditions, factors).times)
    return draws


def draw_count(most: int, jobs: CombinedSchedule) -> int:
    """Return in how many simulations jobs are drawn: `most`, or fewer if they have many tasks."""
    return max(FEWEST_DRAWS, min(most, DRAWN_TASKS // len(jobs.schedule.tasks)))
