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

# of fewer repeats, an interval would be no more than the least and the most
MIN_REPEATS_FOR_MEDIAN: Final = 5
# of fewer repeats it is the slowest one, and nothing says how slow others may be
MIN_REPEATS_FOR_P95: Final = 20
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
        return {
            "n": self.n,
            "median": self.median,
            "p95": self.p95,
            "median_95": self.median_interval,
            "p95_95": self.p95_interval,
        }


def figure(values: Iterable[float | None]) -> Figure | None:
    """Return the statistics of the repeats' values, in whatever order; None if there are none."""
    ordered = np.sort([inf if value is None else value for value in values])
    n = len(ordered)
    if not n:
        return None
    # of the value that 95% don't exceed: an observed one, since "never" has no mean
    rank95 = ceil(0.95 * n) - 1
    median_interval: Interval | None = None
    p95_interval: Interval | None = None
    if n >= MIN_REPEATS_FOR_MEDIAN:
        resampled = ordered[_resample_indices(n)]
        median_interval = _middle_95(np.median(resampled, axis=1))
        if n >= MIN_REPEATS_FOR_P95:
            p95_interval = _middle_95(resampled[:, rank95])
    return Figure(
        n=n,
        median=_none_if_never(np.median(ordered)),
        p95=_none_if_never(ordered[rank95]),
        most=_none_if_never(ordered[-1]),
        least=_none_if_never(ordered[0]),
        median_interval=median_interval,
        p95_interval=p95_interval,
    )


def _middle_95(statistics: npt.NDArray[np.float64]) -> Interval:
    """Return the interval that holds the middle 95% of a statistic of resamples."""
    ordered = np.sort(statistics)
    tail = int(0.025 * len(ordered))
    return _none_if_never(ordered[tail]), _none_if_never(ordered[-1 - tail])


def _none_if_never(value: np.floating[Any]) -> float | None:
    """Return a statistic; None if it is of values that never came."""
    if value == inf:
        return None
    return float(value)


@lru_cache(maxsize=32)
def _resample_indices(n: int) -> npt.NDArray[np.intp]:
    """Return which of n sorted values each of 4000 resamples takes, sorted: a row a resample."""
    return np.sort(np.random.default_rng(1).integers(0, n, (4000, n)), axis=1)


def median_p95_ms(statistics: Figure, unit: str = "") -> str:
    """Return `12.3 / 45.6`, median and 95th percentile; `12.3 (n=5)` where the repeats tell nothing of the latter."""
    if statistics.median is None:
        return "never"
    middle = _ms(statistics.median)
    if not statistics.has_p95:
        return f"{middle}{unit} (n={statistics.n})"
    if statistics.p95 is None:
        return f"{middle} / never"
    return f"{middle} / {_ms(statistics.p95)}{unit}"


def median_and_p95(statistics: Figure) -> tuple[str, str]:
    """Return a cell each, with their intervals; a dash where the repeats tell nothing of the latter."""
    p95 = NOTHING
    if statistics.has_p95:
        p95 = _with_interval(statistics.p95, statistics.p95_interval)
    return _with_interval(statistics.median, statistics.median_interval), p95


def _with_interval(value: float | None, interval: Interval | None) -> str:
    """Return `12.3 ms [11.0, 14.1]`; the value alone without an interval."""
    text = milliseconds(value)
    if interval:
        low, high = interval
        text += f" [{_ms(low)}, {_ms(high)}]"
    return text


def _ms(ms: float | None) -> str:
    return milliseconds(ms).removesuffix("\u00a0ms")
