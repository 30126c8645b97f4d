"""Stragglers: GPUs that compute more slowly than others, and computing that never takes the same time twice."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.topologies.addresses import Gpu
from railyard.workloads.columns import Columns
from railyard.workloads.schedule import Schedule

Factor = Annotated[float, Field(ge=0.1, le=100)]
Jitter = Annotated[float, Field(ge=0, le=1)]
Factors = npt.NDArray[np.float64]


class Stragglers(ConfigModel):
    """Factors and jitter of computations.

    `slow`: by GPU of the workload's own grid (d0g1), times as long as the workload says. `jitter`: standard deviation
    of each computation, as a part of its mean; drawn at random by the seed.
    """

    slow: Mapping[str, Factor] = Field(default_factory=dict)
    jitter: Jitter = 0.0

    @property
    def slowest(self) -> float:
        """Return times as long that the slowest GPU computes, at least 1: jitter is left out."""
        return max([1.0, *self.slow.values()])


def factors_of(slow: Mapping[str, float], domains: int, rails: int, field: str) -> list[float]:
    """Return the factor of each GPU by number. BadInput, with the field's name, for a GPU that isn't in the grid."""
    numbers: dict[str, int] = {}
    for number in range(domains * rails):
        numbers[Gpu(*divmod(number, rails)).name] = number
    factors = [1.0] * (domains * rails)
    for name, factor in slow.items():
        if name not in numbers:
            raise BadInput(f"{field}.slow", name, unknown_name_hint(name, tuple(numbers)))
        factors[numbers[name]] = factor
    return factors


def uneven(schedule: Schedule, stragglers: Stragglers, field: str, seed: int) -> Schedule:
    """Return the schedule of a workload with its stragglers. BadInput, with the field's name, for unknown GPUs."""
    factors = factors_of(stragglers.slow, schedule.gpus // schedule.rails, schedule.rails, field)
    return replace(with_stragglers(schedule, factors, stragglers.jitter, seed), is_uneven=True)


def check_computes(schedule: Schedule, stragglers: Stragglers, field: str, hint: str) -> None:
    """Raise BadInput for stragglers of a workload that only sends. `hint`: the end of the message."""
    if not schedule.columns.seconds.any():
        raise BadInput(field, stragglers.model_dump(exclude_defaults=True), f"has no effect: {hint}")


def with_stragglers(schedule: Schedule, factors: Sequence[float], jitter: float, seed: int) -> Schedule:
    """Return the schedule with the computing of some GPUs prolonged, and each computation varied.

    `factors`: of each GPU, by number. `jitter`: relative standard deviation; what it adds has a mean of 0.
    """
    columns = schedule.columns
    seconds = columns.seconds * np.asarray(factors)[columns.src]
    seconds = np.where(columns.is_compute, seconds * jitter_factors(len(columns), jitter, seed), seconds)
    tasks: Columns = replace(columns, seconds=seconds)
    return replace(schedule, tasks=tasks)


def jitter_factors(count: int, jitter: float, seed: int) -> Factors:
    """Return how many times as long as its mean each of `count` computations takes; 1 without jitter."""
    # log-normal, so that no computation takes a negative time
    spread = math.sqrt(math.log1p(jitter**2))
    return np.random.default_rng(seed).lognormal(-(spread**2) / 2, spread, count)
