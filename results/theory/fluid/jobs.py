"""Predicted iteration times of several jobs on one fabric: each alone on its GPUs, and all together.

A slow-down is the mean iteration of a job together with the others over its mean iteration alone. Where phases of jobs
drift against each other, it depends on noise: it is then a mean and an interval over simulations with seeded jitter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from railyard.results.theory.fluid.simulation import Conditions, FluidRun, simulate
from railyard.results.theory.fluid.usage import PortUse, port_uses
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.schedule import Rates


@dataclass(frozen=True)
class JobTimes:
    """Seconds of each iteration of a job: alone on its GPUs, and together with the other jobs."""

    name: str
    alone_s: tuple[float, ...]
    together_s: tuple[float, ...]

    @property
    def slow_down(self) -> float:
        """The mean iteration together over the mean iteration alone: 1 without interference."""
        return fmean(self.together_s) / fmean(self.alone_s)


@dataclass(frozen=True, eq=False)
class JobsPrediction:
    """Simulations of each job alone, by number, and of all together."""

    combined: CombinedSchedule
    alone: tuple[FluidRun, ...]
    together: FluidRun

    @cached_property
    def times(self) -> tuple[JobTimes, ...]:
        """The iteration times of each job."""
        together_s = self.combined.iteration_seconds(self.together.end_s)
        times: list[JobTimes] = []
        for number, job in enumerate(self.combined.jobs):
            lone_job = self.combined.alone(number)
            (alone_s,) = lone_job.iteration_seconds(self.alone[number].end_s)
            times.append(JobTimes(job.name, alone_s, together_s[number]))
        return tuple(times)

    @cached_property
    def uses(self) -> list[PortUse]:
        """The use of each port by each job while all run."""
        return port_uses(self.together, self.combined.job_of_task)


class Jitter(NamedTuple):
    """Random variation of computing times. `share`: the standard deviation, as a share of a computing time."""

    share: float
    seed: int

    def applied(self, combined: CombinedSchedule) -> CombinedSchedule:
        """Return the same jobs with computing times that vary; their start times stay."""
        columns = combined.schedule.columns
        varying_s = columns.seconds.copy()
        for number, job in enumerate(combined.jobs):
            # a gate also has the time until the start, which does not vary
            is_gate = combined.is_gate & (combined.job_of_task == number)
            varying_s[is_gate] = job.compute_seconds(columns.src[is_gate])
        drawn = self.share * np.random.default_rng(self.seed).standard_normal(len(columns))
        # no computing takes less than no time
        tasks = replace(columns, seconds=columns.seconds + np.maximum(-1.0, drawn) * varying_s)
        return replace(combined, schedule=replace(combined.schedule, tasks=tasks))


NO_JITTER: Final = Jitter(0.0, 0)


def predict_jobs(
    combined: CombinedSchedule,
    rates: Rates,
    fabric: FabricSpec,
    conditions: Conditions | None = None,
    jitter: Jitter = NO_JITTER,
) -> JobsPrediction:
    """Simulate each job alone, then all together. `rates`, `conditions`: as of `simulate`."""
    alone: list[FluidRun] = []
    for number in range(len(combined.jobs)):
        # alone, its computing varies as much, by other draws
        lone_job = jitter.applied(combined.alone(number))
        alone.append(simulate(lone_job.schedule, rates, fabric, conditions))
    together = simulate(jitter.applied(combined).schedule, rates, fabric, conditions)
    return JobsPrediction(combined, tuple(alone), together)


class SlowDown(NamedTuple):
    """Slow-down of a job over simulations with jitter: the mean, and the 5th and 95th percentile."""

    job: str
    mean: float
    least: float
    most: float


def slow_downs_with_jitter(
    combined: CombinedSchedule,
    rates: Rates,
    fabric: FabricSpec,
    jitter: float,
    seeds: Sequence[int],
    conditions: Conditions | None = None,
) -> tuple[SlowDown, ...]:
    """Return the slow-down of each job over simulations, one for each seed, whose computing times vary.

    `jitter`: standard deviation of a computing time, as a share of it. Where flows are hashed (a seed in `conditions`),
    each simulation has a hash of its own.
    """
    conditions = conditions or Conditions()
    drawn: list[list[float]] = []
    for seed in seeds:
        of_seed = conditions
        if conditions.hash_seed is not None:
            of_seed = replace(conditions, hash_seed=conditions.hash_seed + seed)
        prediction = predict_jobs(combined, rates, fabric, of_seed, Jitter(jitter, seed))
        drawn.append([times.slow_down for times in prediction.times])
    least, most = np.percentile(drawn, (5, 95), axis=0)
    means = np.mean(drawn, axis=0)
    slow_downs: list[SlowDown] = []
    for number, job in enumerate(combined.jobs):
        slow_downs.append(SlowDown(job.name, float(means[number]), float(least[number]), float(most[number])))
    return tuple(slow_downs)
