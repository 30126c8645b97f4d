"""Change points in iteration times: Bayesian online change point detection, each change confirmed by its size.

Source: Adams and MacKay, Bayesian Online Changepoint Detection, 2007: times between two changes are normal with unknown
mean and variance (a normal-gamma prior), and a change is equally likely at each iteration. GREYHOUND (Wu et al., ATC
2025) confirms a change by the times before and after it, since training has short peaks that mean nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

PRIOR_SPREAD: Final = 0.02
"""Standard deviation of iteration times that is assumed before any were measured, as a part of their mean."""
PRIOR_COUNT: Final = 0.1
"""How many measured times the assumed mean is worth: few, so that a new level is accepted at once."""
MEAN_RUN: Final = 100.0
"""Iterations between two changes that are assumed."""
CONFIRMED_AFTER: Final = 3
"""Iterations on the new level that a change needs: a single peak has fewer."""


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting change. `iteration`: the first on the new level, from 0. `ratio`: median time after over that before.

    `noticed`: the iteration after which it was confirmed.
    """

    iteration: int
    noticed: int
    ratio: float


def changes(seconds: Sequence[float], least: float = 0.1) -> list[Change]:
    """Return the lasting changes of iteration times, in order.

    `seconds`: of each iteration. `least`: the part of the time by which a level must differ from the one before it.
    """
    confirmed: list[Change] = []
    start = 0
    for noticed, first in enumerate(likeliest_starts(seconds)):
        after = seconds[first : noticed + 1]
        before = seconds[start:first]
        if first <= start or len(after) < CONFIRMED_AFTER or len(before) < CONFIRMED_AFTER:
            continue
        ratio = median(after) / median(before)
        if abs(ratio - 1) > least:
            confirmed.append(Change(first, noticed, ratio))
            start = first
    return confirmed


def likeliest_starts(seconds: Sequence[float]) -> list[int]:
    """Return for each iteration which one most likely began the level that it is on, by the times up to it."""
    if not seconds:
        return []
    # Relative to the first times, so that the prior fits jobs of any length. The first one alone may be far from the
    # others, as programs warm up: no later change would be large beside it.
    values = np.asarray(seconds, dtype=np.float64) / median(seconds[:CONFIRMED_AFTER])
    hazard = 1 / MEAN_RUN
    levels = _Levels(len(values))
    # of each iteration that may have begun the level; the first one did before there was any other
    log_weights = np.zeros(1)
    levels.add(float(values[0]))
    starts = [0]
    for value in values[1:].tolist():
        log_likelihood = levels.log_likelihood(value)
        continued = log_weights + log_likelihood[:-1] + math.log1p(-hazard)
        # nothing but the prior predicts the first time of a new level
        begun = log_likelihood[-1] + math.log(hazard)
        log_weights = np.append(continued, begun)
        log_weights -= np.logaddexp.reduce(log_weights)
        levels.add(value)
        starts.append(int(np.argmax(log_weights)))
    return starts


class _Levels:
    """The normal-gamma posterior of the level that each iteration may have begun, and of one that begins next."""

    def __init__(self, iterations: int) -> None:
        counts = np.arange(iterations + 1)
        # by the number of times that a level has
        self._log_gamma_ratio = np.array([_log_gamma_ratio(1 + count / 2) for count in counts.tolist()])
        self._count = 0
        self._mean = np.ones(1)
        self._beta = np.full(1, PRIOR_SPREAD**2)

    def log_likelihood(self, value: float) -> Values:
        """Return the log of the density that each level gives a time: a Student distribution."""
        times = np.arange(self._count, -1, -1)
        alpha = 1 + times / 2
        kappa = PRIOR_COUNT + times
        scale2 = self._beta * (kappa + 1) / (alpha * kappa)
        distance2 = (value - self._mean) ** 2 / (scale2 * 2 * alpha)
        log_norm = self._log_gamma_ratio[times] - 0.5 * np.log(2 * math.pi * alpha * scale2)
        density: Values = log_norm - (alpha + 0.5) * np.log1p(distance2)
        return density

    def add(self, value: float) -> None:
        """Take a time into all levels, and begin one with the next."""
        kappa = PRIOR_COUNT + np.arange(self._count, -1, -1)
        beta = self._beta + kappa * (value - self._mean) ** 2 / (2 * (kappa + 1))
        mean = (kappa * self._mean + value) / (kappa + 1)
        self._mean = np.append(mean, 1.0)
        self._beta = np.append(beta, PRIOR_SPREAD**2)
        self._count += 1


def _log_gamma_ratio(alpha: float) -> float:
    """Return the log of gamma(alpha + 1/2) / gamma(alpha)."""
    return math.lgamma(alpha + 0.5) - math.lgamma(alpha)
