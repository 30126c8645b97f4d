"""How sure a median or a 95th percentile is, over the repeats of something that may never have come. Pure.

None is "never", and later than any time. The intervals are of the percentile bootstrap (Efron and Tibshirani, An
Introduction to the Bootstrap, 13.3). Written here, in ten lines of numpy, and not taken from scipy: its percentiles
interpolate and its BCa correction subtracts, and neither can be done with "never".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MIN_REPEATS_FOR_MEDIAN: Final = 5  # repeats: of fewer, an interval would be no more than the least and the most
MIN_REPEATS_FOR_P95: Final = (
    20  # of fewer, the 95th percentile is the slowest one, and nothing says how slow others may be
)
CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 4000
_SEED: Final = 1

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends belong to it; None is "never"."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """`n` repeats, their median, 95th percentile and worst, and where the first two lie with 95% confidence.

    An interval is None if the repeats are too few for it.
    """

    n: int
    median: float | None
    p95: float | None
    most: float | None
    median_interval: Interval | None
    p95_interval: Interval | None

    @property
    def has_p95(self) -> bool:
        """Whether the repeats are enough to say anything of the 95th percentile: of fewer it is but the slowest."""
        return self.n >= MIN_REPEATS_FOR_P95

    def as_dict(self) -> dict[str, Any]:
        """For summary.json: intervals are pairs, or None."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in ("n", "median", "p95")}
        return plain | {"median_95": _pair(self.median_interval), "p95_95": _pair(self.p95_interval)}


def _pair(found: Interval | None) -> list[float | None] | None:
    return None if found is None else [found.low, found.high]


def figure(values: Iterable[float | None]) -> Figure | None:
    """Of the repeats' values; None if there are none. The same values, in whatever order, give the same figure."""
    ordered_values = np.sort(np.asarray([inf if v is None else v for v in values], dtype=np.float64))
    n = len(ordered_values)
    if not n:
        return None
    resampled = ordered_values[_resample_indices(n)] if n >= MIN_REPEATS_FOR_MEDIAN else None
    return Figure(
        n=n,
        median=_none_if_never(_medians(ordered_values[None, :])[0]),
        p95=_none_if_never(ordered_values[_rank95(n)]),
        most=_none_if_never(ordered_values[-1]),
        median_interval=None if resampled is None else _interval(_medians(resampled)),
        p95_interval=None if resampled is None or n < MIN_REPEATS_FOR_P95 else _interval(resampled[:, _rank95(n)]),
    )


def _rank95(n: int) -> int:
    """Of n sorted values the one that 95% of them don't exceed: an observed one, so "never" needs no arithmetic."""
    return ceil(0.95 * n) - 1


def _medians(rows: Floats) -> Floats:
    """Of each sorted row."""
    n = rows.shape[1]
    middle: Floats = (rows[:, (n - 1) // 2] + rows[:, n // 2]) / 2
    return middle


@lru_cache(maxsize=32)
def _resample_indices(n: int) -> npt.NDArray[np.intp]:
    """Which of n sorted values each resample takes, themselves sorted: a row a resample."""
    return np.sort(np.random.default_rng(_SEED).integers(0, n, (_RESAMPLES, n)), axis=1)


def _interval(statistics: Floats) -> Interval:
    ordered = np.sort(statistics)
    tail = (1 - CONFIDENCE) / 2 * len(ordered)
    return Interval(_none_if_never(ordered[int(tail)]), _none_if_never(ordered[ceil(len(ordered) - tail) - 1]))


def _none_if_never(value: float) -> float | None:
    return None if value == inf else float(value)
