"""Slow-downs of jobs with measured noise, by which shifts of jobs are compared.

Jobs that compute drift against each other. A shift that is best without noise may leave bursts so close to each other
that the first drift lets them collide. All shifts are tried with the same noise, so that it decides nothing by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Final

import numpy as np

from railyard.results.theory.fluid.noise import computing_seconds, drawn_factors, measured_noise, with_factors
from railyard.results.theory.fluid.routes import Amounts
from railyard.results.theory.fluid.simulation import Conditions, simulate
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.schedule import Rates

MOST_DRAWS: Final = 8
FEWEST_DRAWS: Final = 4
"""With fewer, chance would decide more than the shift: then shifts are tried without noise."""
TRIED_TASKS: Final = 60_000
"""Tasks in all simulations of a search, so that a search takes seconds."""
# predictions draw with 0: a shift must not be chosen by the noise with which it is predicted
SEED: Final = 1


@dataclass(frozen=True, eq=False)
class NoisyTrials:
    """Simulations of jobs with noise. `rates`, `conditions`: as of `simulate`. `trials`: how many shifts are tried."""

    jobs: CombinedSchedule
    rates: Rates
    fabric: FabricSpec
    conditions: Conditions
    trials: int

    @cached_property
    def draws(self) -> list[list[Amounts]]:
        """The noise of each draw, as of `drawn_factors`: a single draw of none if there can be no drift, or no time."""
        count = min(MOST_DRAWS, TRIED_TASKS // (len(self.jobs.schedule.tasks) * self.trials))
        if count < FEWEST_DRAWS or not computing_seconds(self.jobs).any():
            return [[np.ones(job.iterations) for job in self.jobs.jobs]]
        rng = np.random.default_rng(SEED)
        return [drawn_factors(self.jobs, measured_noise(), rng) for _ in range(count)]

    @cached_property
    def alone_s(self) -> list[Amounts]:
        """The mean iteration of each job alone, s, in each draw."""
        draws: list[Amounts] = []
        for factors in self.draws:
            means_s: list[float] = []
            for number in range(len(self.jobs.jobs)):
                means_s += self._iterations_s(self.jobs.alone(number), [factors[number]])
            draws.append(np.array(means_s))
        return draws

    def slow_down(self, shifted: CombinedSchedule) -> float:
        """Return the slow-down of the job that is slowed most, on average over all draws.

        `shifted`: the same jobs with other starts.
        """
        total = np.zeros(len(self.jobs.jobs))
        for factors, alone_s in zip(self.draws, self.alone_s, strict=True):
            total += np.array(self._iterations_s(shifted, factors)) / alone_s
        return float(total.max() / len(self.draws))

    def _iterations_s(self, jobs: CombinedSchedule, factors: Sequence[Amounts]) -> list[float]:
        """Return the mean iteration of each of these jobs with noise, s."""
        varied = with_factors(jobs, factors)
        run = simulate(varied.schedule, self.rates, self.fabric, self.conditions)
        return [fmean(seconds) for seconds in jobs.iteration_seconds(run.end_s)]
