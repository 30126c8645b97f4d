"""Seeded cases of fail-slow: which GPU or link of a fabric gets slow, by how much, and when. And a score over many."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from railyard.failure.diagnosis.change_points import CONFIRMED_AFTER
from railyard.failure.diagnosis.definition import Culprit, Diagnosis, Part
from railyard.topologies.plan import Plan

RATIOS: Final = (1.25, 4.0)
"""Times as slow as a healthy one that a slow GPU or link is, at least and at most."""
MEAN_RATIO: Final = (RATIOS[1] - RATIOS[0]) / math.log(RATIOS[1] / RATIOS[0])
"""Of drawn cases, whose logarithm is even."""
MIN_HEALTHY: Final = 8
"""Iterations before a GPU or link gets slow, at least."""


@dataclass(frozen=True, slots=True)
class Case:
    """A GPU or link that gets slow, with the iteration in which it does. `culprit`: None if nothing gets slow."""

    culprit: Culprit | None
    iteration: int


def draw(part: Part | None, plan: Plan, iterations: int, seed: int | Sequence[int]) -> Case:
    """Return the case of a seed. `part`: what gets slow; None: nothing. `iterations`: of the job."""
    rng = np.random.default_rng(seed)
    iteration = int(rng.integers(MIN_HEALTHY, iterations - CONFIRMED_AFTER))
    if part is None:
        return Case(None, iteration)
    names = names_of(part, plan)
    name = names[int(rng.integers(len(names)))]
    # the logarithm is even, so that small factors are as frequent as large ones
    ratio = float(np.exp(rng.uniform(*np.log(RATIOS))))
    return Case(Culprit(part, name, ratio), iteration)


def mean_iteration(iterations: int) -> float:
    """Return the first slow iteration of drawn cases, on average. `iterations`: of the job."""
    return (MIN_HEALTHY + iterations - CONFIRMED_AFTER - 1) / 2


def names_of(part: Part, plan: Plan) -> tuple[str, ...]:
    """Return the names of all GPUs of a fabric, or of all their links of a layer."""
    if part == "gpu":
        return plan.hosts
    return plan.link_names(part)


class CaseResult(NamedTuple):
    """Result of a detector in a case.

    `is_slow`: whether the case has a culprit. `is_right`: whether the culprit alone was named, or nothing in a case
    without one. `has_named`: whether any GPU or link was named.
    """

    is_slow: bool
    is_right: bool
    has_named: bool

    @classmethod
    def of(cls, culprit: Culprit | None, diagnosis: Diagnosis) -> "CaseResult":
        """Return the result of a diagnosis. `culprit`: of its case; None without one."""
        return cls(culprit is not None, diagnosis.is_right(culprit), bool(diagnosis.culprits))


@dataclass(frozen=True, slots=True)
class Score:
    """Counts of cases: those with a culprit, those in which it alone was named, and those in which others were named.

    `quiet`: cases without a culprit. `false_alarms`: those in which a GPU or link was named.
    """

    slow: int
    right: int
    wrong: int
    quiet: int
    false_alarms: int

    @classmethod
    def of(cls, results: Iterable[CaseResult]) -> "Score":
        """Return the score of many cases."""
        slow = 0
        right = 0
        wrong = 0
        quiet = 0
        false_alarms = 0
        for result in results:
            if not result.is_slow:
                quiet += 1
                false_alarms += result.has_named
                continue
            slow += 1
            right += result.is_right
            # a case without a name is neither right nor wrong, and lowers the recall alone
            wrong += result.has_named and not result.is_right
        return cls(slow, right, wrong, quiet, false_alarms)

    @property
    def recall(self) -> float:
        """Part of the slow cases in which the culprit alone was named."""
        return self.right / max(1, self.slow)

    @property
    def precision(self) -> float:
        """Part of the cases with any name in which it was right."""
        named = self.right + self.wrong + self.false_alarms
        return self.right / max(1, named)
