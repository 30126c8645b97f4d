"""Comparison of two sets of runs: the medians of each row, the interval of their ratio, and a verdict. Pure.

The interval is of the percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 13.3) of the ratio
of medians; it holds for all rows together, by Bonferroni's correction. A row is the same if its interval lies within
the limit around 1, slower or faster if the interval lies beyond the limit, and otherwise there is not enough data for
a verdict. The unit that is resampled, and what the interval leaves out: docs/sweeps.md.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from math import inf, isinf
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from railyard.core.records import IntervalId
from railyard.results.analysis.aggregate import FULL_SIZE, SAME_SHAPE
from railyard.results.analysis.fidelity import Judgement, judge
from railyard.results.analysis.limits import LAG
from railyard.results.analysis.repeats import MIN_REPEATS_FOR_MEDIAN
from railyard.results.analysis.thresholds import CONFIDENCE, LIMIT
from railyard.results.format import workload_label
from railyard.results.measured import MEASURED
from railyard.results.runs.records import Run, Verdict

Change = Literal["slower", "not enough data", "faster", "same"]
MIN_VALUES: Final = MIN_REPEATS_FOR_MEDIAN
# of recovery times: threads may be as late as this in an interval that is ok
RESOLUTION: Final = {"ms": LAG.degraded}
_BELIEVED: Final[tuple[Verdict, ...]] = ("ok", "not compared")
# these follow from a time that is compared itself
_PROJECTED: Final = (SAME_SHAPE, FULL_SIZE)
_HIGHER_IS_BETTER: Final = ("bit/s",)  # units; of any other, less is better
_RESAMPLES: Final = 10_000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowKey:
    """Identity of a row; values of equal keys are compared. `axes`: those of the sweep's cell, as text."""

    where: IntervalId  # repeat 0
    phase: str
    metric: str
    unit: str
    axes: str = ""

    @property
    def label(self) -> str:
        """The workload and phase or the fault, without the fabric: `moe all-to-all`."""
        return " ".join(filter(None, (workload_label(self.where), self.phase)))


@dataclass
class Values:
    """Values of one row in one run; `left_out` of them, whose verdict is not ok, are not in `believed`."""

    believed: list[float] = field(default_factory=list)
    left_out: int = 0


def values_of(run: Run, axes: str = "") -> dict[RowKey, Values]:
    """Return the values of each row of results.csv, and those of measures. A value that never came is infinite."""
    judgement = judge(run)
    by_key: defaultdict[RowKey, Values] = defaultdict(Values)
    for key, value, verdict in _rows(run, judgement):
        row = by_key[replace(key, axes=axes)]
        if verdict in _BELIEVED:
            row.believed.append(value)
        else:
            row.left_out += 1
    return dict(by_key)


def _rows(run: Run, judgement: Judgement) -> Iterator[tuple[RowKey, float, Verdict]]:
    """Yield key, value and verdict of each measurement but projected ones, and of each value of a measure."""
    for m in run.measurements:
        if m.metric not in _PROJECTED:
            key = RowKey(replace(m.interval, repeat=0), m.phase, m.metric, m.unit)
            yield key, m.value, judgement.of_row(m)
    for measure in MEASURED.values():
        for compared in measure.compared_values(run):
            key = RowKey(replace(compared.interval, repeat=0), compared.phase, compared.metric, compared.unit)
            value = inf if compared.value is None else compared.value
            yield key, value, judgement.of_interval(compared.interval)


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of a comparison: medians of A and B, their ratio B / A, its interval, and the verdict with its reason."""

    key: RowKey
    n_a: int
    n_b: int
    median_a: float | None
    median_b: float | None
    ratio: float | None
    interval: tuple[float, float] | None
    verdict: Change
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data; None stands for infinity, which JSON doesn't have."""
        plain = self.key.where.as_dict()
        del plain["repeat"]
        interval = None
        if self.interval:
            interval = [_finite(end) for end in self.interval]
        return plain | {
            "phase": self.key.phase,
            "metric": self.key.metric,
            "unit": self.key.unit,
            "axes": self.key.axes,
            "n_a": self.n_a,
            "n_b": self.n_b,
            "median_a": _finite(self.median_a),
            "median_b": _finite(self.median_b),
            "ratio": _finite(self.ratio),
            "interval": interval,
            "verdict": self.verdict,
            "reason": self.reason,
        }


def _finite(value: float | None) -> float | None:
    if value is None or isinf(value):
        return None
    return value


@dataclass(frozen=True)
class Comparison:
    """All rows, the worst first. `problems`: of B's runs, each of which is a regression; `notes`: what else differs."""

    rows: tuple[Compared, ...]
    limit: float
    confidence: float
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[Change]:
        """Number of rows by verdict."""
        return Counter(row.verdict for row in self.rows)

    @property
    def failure(self) -> str:
        """The reason for exit status 1; "" if B is no worse than A."""
        counts = self.counts
        if counts["slower"]:
            return f"{counts['slower']} of {len(self.rows)} rows slower by more than {self.limit:.3g}"
        if self.problems:
            return self.problems[0]
        if counts["not enough data"] == len(self.rows):
            return "not enough data for a verdict on any row"
        return ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "limit": self.limit,
            "confidence": self.confidence,
            "regression": bool(self.failure),
            "failure": self.failure,
            "counts": dict(self.counts),
            "problems": list(self.problems),
            "notes": list(self.notes),
            "rows": [row.as_dict() for row in self.rows],
        }


Runs = Sequence[Mapping[RowKey, Values]]


def compare(
    a: Runs,
    b: Runs,
    limit: float = LIMIT,
    confidence: float = CONFIDENCE,
    problems: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Comparison:
    """Compare the rows of the runs B with those of the runs A, each run given by its values."""
    keys = dict.fromkeys(chain.from_iterable((*a, *b)))
    samples = {key: _sample(a, b, key) for key in keys}
    judged = 0
    for values_a, values_b, _ in samples.values():
        judged += min(len(values_a), len(values_b)) >= MIN_VALUES
    # Bonferroni: all intervals together hold with the confidence
    tail = (1 - confidence) / 2 / max(1, judged)
    rows: list[Compared] = []
    for key, (values_a, values_b, left_out) in samples.items():
        rows.append(_compared(key, values_a, values_b, left_out, limit, tail))
    order: tuple[Change, ...] = ("slower", "faster", "same", "not enough data")
    rows.sort(key=lambda row: order.index(row.verdict))
    return Comparison(tuple(rows), limit, confidence, tuple(problems), tuple(notes))


def _sample(a: Runs, b: Runs, key: RowKey) -> tuple[Floats, Floats, int]:
    """Return the values of A and of B that are resampled, and how many were left out.

    A value is the median of a run if both have enough runs, and otherwise a repeat of any run.
    """
    believed_a, left_out_a = _believed(a, key)
    believed_b, left_out_b = _believed(b, key)
    # repeats of one run are more alike than runs are: resampled alone, they would hide the differences between runs
    has_enough_runs = min(len(believed_a), len(believed_b)) >= MIN_VALUES
    values_a = _resampled_units(believed_a, has_enough_runs)
    values_b = _resampled_units(believed_b, has_enough_runs)
    return values_a, values_b, left_out_a + left_out_b


def _believed(runs: Runs, key: RowKey) -> tuple[list[list[float]], int]:
    """Return the believed values of a row, for each run that has any, and how many of all runs were left out."""
    believed: list[list[float]] = []
    left_out = 0
    for run in runs:
        values = run.get(key, Values())
        left_out += values.left_out
        if values.believed:
            believed.append(values.believed)
    return believed, left_out


def _resampled_units(by_run: Sequence[Sequence[float]], are_runs: bool) -> Floats:
    """Return the values that are resampled: the medians of runs, or else all repeats."""
    if are_runs:
        return np.array([np.median(values) for values in by_run], dtype=np.float64)
    return np.array(list(chain.from_iterable(by_run)), dtype=np.float64)


def _median(values: Floats) -> float | None:
    """Return the median; None without values."""
    if not len(values):
        return None
    return float(np.median(values))


def _compared(key: RowKey, a: Floats, b: Floats, left_out: int, limit: float, tail: float) -> Compared:
    median_a = _median(a)
    median_b = _median(b)
    ratio = None
    if median_a is not None and median_b is not None:
        ratio = float(_ratios(np.array(median_a), np.array(median_b)))
    sides = (key, len(a), len(b), median_a, median_b, ratio)
    if min(len(a), len(b)) < MIN_VALUES:
        missing = "A" if len(a) < MIN_VALUES else "B"
        reason = f"fewer than {MIN_VALUES} values in {missing}"
        if left_out:
            reason += ", others left out by their verdict"
        return Compared(*sides, None, "not enough data", reason)
    medians_a = _resampled_medians(a, 1)
    medians_b = _resampled_medians(b, 2)
    low, high = _interval(_ratios(medians_a, medians_b), tail)
    with np.errstate(invalid="ignore"):
        # "never" twice is no difference, though infinity less infinity is no number
        differences = np.where(medians_a == medians_b, 0.0, medians_b - medians_a)
    least, most = _interval(differences, tail)
    resolution = RESOLUTION.get(key.unit, 0.0)
    is_within = 1 / (1 + limit) <= low and high <= 1 + limit
    if is_within or (-resolution <= least and most <= resolution):
        return Compared(*sides, (low, high), "same")
    is_higher = low > 1 + limit and least > resolution
    is_lower = high < 1 / (1 + limit) and most < -resolution
    if is_higher or is_lower:
        is_better = is_higher == (key.unit in _HIGHER_IS_BETTER)
        verdict: Change = "faster" if is_better else "slower"
        return Compared(*sides, (low, high), verdict)
    return Compared(*sides, (low, high), "not enough data", "the interval includes both a change and none")


def _ratios(a: Floats, b: Floats) -> Floats:
    """Return b / a, and 1 where both are equal, also zero or infinite."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(a == b, 1.0, b / a)


def _interval(statistics: Floats, tail: float) -> tuple[float, float]:
    """Return the values that leave this share of the statistics out on each side."""
    ordered = np.sort(statistics)
    left_out = int(tail * len(ordered))
    return float(ordered[left_out]), float(ordered[-1 - left_out])


def _resampled_medians(values: Floats, seed: int) -> Floats:
    """Return the median of each resample. The seed makes a comparison repeatable, and differs between A and B."""
    ordered = np.sort(values)
    (low, high) = _middle_ranks(len(values), seed)
    return np.asarray((ordered[low] + ordered[high]) / 2, dtype=np.float64)


@lru_cache(maxsize=64)
def _middle_ranks(n: int, seed: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return which of n sorted values are the two middle ones of each resample; of an odd number the same twice."""
    ranks = np.sort(np.random.default_rng(seed).integers(0, n, (_RESAMPLES, n)), axis=1)
    return ranks[:, (n - 1) // 2], ranks[:, n // 2]
