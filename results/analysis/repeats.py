"""Statistics of repeats: median, 95th percentile and how sure they are, of times that may never have come.

None is "never", and later than any time. The confidence intervals are of the percentile bootstrap (Efron and
Tibshirani, An Introduction to the Bootstrap, 13.3), not taken from scipy: its percentiles interpolate and its BCa
correction subtracts, and neither can be done with "never".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from railyard.results.format import NOTHING, milliseconds

MIN_REPEATS_FOR_MEDIAN: Final = 5  # of fewer, an interval would be no more than the least and the most
MIN_REPEATS_FOR_P95: Final = 20  # of fewer, it is the slowest one, and nothing says how slow others may be
Interval = tuple[float | None, float | None]  # both ends belong to it; None is "never"


@dataclass(frozen=True, slots=True)
class Figure:
    """`n` repeats, their median, 95th percentile, most and least, and where the first two lie with 95% confidence.

    An interval is None if the repeats are too few for it.
    """

    n: int
    median: float | None
    p95: float | None
    most: float | None
    least: float | None
    median_interval: Interval | None
    p95_interval: Interval | None

    @property
    def has_p95(self) -> bool:
        """True if the repeats are enough for the 95th percentile."""
        return self.n >= MIN_REPEATS_FOR_P95

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        plain = {name: getattr(self, name) for name in ("n", "median", "p95")}
        return plain | {"median_95": self.median_interval, "p95_95": self.p95_interval}


def figure(values: Iterable[float | None]) -> Figure | None:
    """Return the statistics of the repeats' values, in whatever order; None if there are none."""
    ordered = np.sort(np.asarray([inf if v is None else v for v in values], dtype=np.float64))
    n = len(ordered)
    if not n:
        return None

    def known(value: float) -> float | None:
        return None if value == inf else float(value)

    def middle_95(statistics: npt.NDArray[np.float64]) -> Interval:
        resampled = np.sort(statistics)
        tail = int(0.025 * len(resampled))
        return known(resampled[tail]), known(resampled[-1 - tail])

    rank95 = ceil(0.95 * n) - 1  # of the value that 95% don't exceed: an observed one, since "never" has no mean
    resampled = ordered[_resample_indices(n)] if n >= MIN_REPEATS_FOR_MEDIAN else None
    return Figure(
        n=n,
        median=known(float(np.median(ordered))),
        p95=known(ordered[rank95]),
        most=known(ordered[-1]),
        least=known(ordered[0]),
        median_interval=None if resampled is None else middle_95(np.median(resampled, axis=1)),
        p95_interval=None if resampled is None or n < MIN_REPEATS_FOR_P95 else middle_95(resampled[:, rank95]),
    )


@lru_cache(maxsize=32)
def _resample_indices(n: int) -> npt.NDArray[np.intp]:
    """Return which of n sorted values each of 4000 resamples takes, sorted: a row a resample."""
    return np.sort(np.random.default_rng(1).integers(0, n, (4000, n)), axis=1)


def median_p95_ms(found: Figure, unit: str = "") -> str:
    """Return `12.3 / 45.6`, median and 95th percentile; `12.3 (n=5)` where the repeats tell nothing of the latter."""
    if found.median is None:
        return "never"
    middle = _ms(found.median)
    p95 = _ms(found.p95)
    if not found.has_p95:
        return f"{middle}{unit} (n={found.n})"
    return f"{middle} / {p95}" + (unit if found.p95 is not None else "")


def median_and_p95(found: Figure) -> tuple[str, str]:
    """Return a cell each, with their intervals; a dash where the repeats tell nothing of the latter."""

    def cell(value: float | None, interval: Interval | None) -> str:
        return milliseconds(value) + (f" [{_ms(interval[0])}, {_ms(interval[1])}]" if interval else "")

    p95 = cell(found.p95, found.p95_interval) if found.has_p95 else NOTHING
    return cell(found.median, found.median_interval), p95


def _ms(ms: float | None) -> str:
    return milliseconds(ms).removesuffix("\u00a0ms")
