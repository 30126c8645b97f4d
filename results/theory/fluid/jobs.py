"""Predicted iteration times of several jobs on one fabric: each alone on its GPUs, and all together.

A slow-down is the mean iteration of a job together with the others over its mean iteration alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from railyard.results.theory.fluid.noise import with_factors
from railyard.results.theory.fluid.routes import Amounts, Port
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
    """Simulations of each job alone, by number, and of all together. `conditions`: of these."""

    combined: CombinedSchedule
    alone: tuple[FluidRun, ...]
    together: FluidRun
    conditions: Conditions

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

    @cached_property
    def shared_ports(self) -> list[Port]:
        """The ports over which several jobs send, busiest first."""
        sent: dict[Port, float] = {}
        users: dict[Port, int] = {}
        for use in self.uses:
            sent[use.port] = sent.get(use.port, 0.0) + use.bytes
            users[use.port] = users.get(use.port, 0) + 1
        shared = [port for port, count in users.items() if count > 1]
        return sorted(shared, key=lambda port: -sent[port])


def predict_jobs(
    combined: CombinedSchedule,
    rates: Rates,
    fabric: FabricSpec,
    conditions: Conditions | None = None,
    factors: Sequence[Amounts] = (),
) -> JobsPrediction:
    """Simulate each job alone, then all together.

    `rates`, `conditions`: as of `simulate`. `factors`: of the computing of each iteration of each job; none: 1. They
    are the same alone and together, so that a slow-down is due to the other jobs.
    """
    conditions = conditions or Conditions()
    alone: list[FluidRun] = []
    for number in range(len(combined.jobs)):
        lone_job = combined.alone(number)
        if factors:
            lone_job = with_factors(lone_job, [factors[number]])
        of_job = conditions
        if conditions.hash_seed is not None:
            # alone, a job has connections of its own, which are hashed anew
            of_job = replace(conditions, hash_seed=conditions.hash_seed + 1 + number)
        alone.append(simulate(lone_job.schedule, rates, fabric, of_job))
    varied = with_factors(combined, factors) if factors else combined
    together = simulate(varied.schedule, rates, fabric, conditions)
    return JobsPrediction(combined, tuple(alone), together, conditions)
