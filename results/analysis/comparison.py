"""Comparison of two sets of runs: the medians of each row, the interval of their ratio, and a verdict. Pure.

The interval is of the percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 13.3) of the ratio
of medians; it holds for all rows together, by Bonferroni's correction. A row is the same if its interval lies within
the limit around 1, slower or faster if the interval lies beyond the limit, and otherwise there is not enough data for
a verdict. The unit that is resampled, and what the interval leaves out: docs/sweeps.md.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from math import inf, isinf
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from railyard.core.records import IntervalId, Record
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
RESOLUTION: Final = {"ms": LAG.degraded}  # of recovery times: threads may be as late as this in an interval that is ok
_BELIEVED: Final[tuple[Verdict, ...]] = ("ok", "not compared")
_PROJECTED: Final = (SAME_SHAPE, FULL_SIZE)  # follow from a time that is compared itself
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
    found: defaultdict[RowKey, Values] = defaultdict(Values)
    for key, value, verdict in _rows(run, judgement):
        row = found[replace(key, axes=axes)]
        if verdict in _BELIEVED:
            row.believed.append(value)
        else:
            row.left_out += 1
    return dict(found)


def _rows(run: Run, judgement: Judgement) -> Iterator[tuple[RowKey, float, Verdict]]:
    def where(record: Record) -> IntervalId:
        return replace(record.interval, repeat=0)

    for m in run.measurements:
        if m.metric not in _PROJECTED:
            yield RowKey(where(m), m.phase, m.metric, m.unit), m.value, judgement.of_row(m)
    for measure in MEASURED.values():
        for compared in measure.compared_values(run):
            verdict = judgement.intervals.get(compared.interval, "ok")
            key = RowKey(replace(compared.interval, repeat=0), compared.phase, compared.metric, compared.unit)
            yield key, inf if compared.value is None else compared.value, verdict


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
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "key"}
        plain |= {name: _finite(plain[name]) for name in ("median_a", "median_b", "ratio")}
        if self.interval:
            plain["interval"] = [_finite(end) for end in self.interval]
        own = {name: getattr(self.key, name) for name in ("phase", "metric", "unit", "axes")}
        where = {name: value for name, value in self.key.where.as_dict().items() if name != "repeat"}
        return where | own | plain


def _finite(value: float | None) -> float | None:
    return None if value is None or isinf(value) else value


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
    keys = list(dict.fromkeys(key for run in (*a, *b) for key in run))
    samples = [(key, _sample(a, b, key)) for key in keys]
    judged = sum(min(len(x), len(y)) >= MIN_VALUES for _, (x, y, _) in samples)
    tail = (1 - confidence) / 2 / max(1, judged)
    rows = [_compared(key, x, y, left_out, limit, tail) for key, (x, y, left_out) in samples]
    order: tuple[Change, ...] = ("slower", "faster", "same", "not enough data")
    rows.sort(key=lambda row: order.index(row.verdict))
    return Comparison(tuple(rows), limit, confidence, tuple(problems), tuple(notes))


def _sample(a: Runs, b: Runs, key: RowKey) -> tuple[Floats, Floats, int]:
    """Return the values of A and of B that are resampled, and how many were left out.

    If both have enough runs, a value is the median of a run, so that differences between runs count. Otherwise the
    repeats of all runs of a side are taken together.
    """
    runs_a = [run[key] for run in a if key in run]
    runs_b = [run[key] for run in b if key in run]
    left_out = sum(values.left_out for values in (*runs_a, *runs_b))
    believed_a = [values.believed for values in runs_a if values.believed]
    believed_b = [values.believed for values in runs_b if values.believed]
    if min(len(believed_a), len(believed_b)) >= MIN_VALUES:
        values_a = [float(np.median(values)) for values in believed_a]
        values_b = [float(np.median(values)) for values in believed_b]
    else:
        values_a = list(chain(*believed_a))
        values_b = list(chain(*believed_b))
    return np.array(values_a, dtype=np.float64), np.array(values_b, dtype=np.float64), left_out


def _median(values: Floats) -> float | None:
    """Return the median; None without values."""
    return float(np.median(values)) if len(values) else None


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
        differences = np.where(medians_a == medians_b, 0.0, medians_b - medians_a)  # "never" twice is no difference
    least, most = _interval(differences, tail)
    resolution = RESOLUTION.get(key.unit, 0.0)
    is_within = 1 / (1 + limit) <= low and high <= 1 + limit
    if is_within or (-resolution <= least and most <= resolution):
        return Compared(*sides, (low, high), "same")
    is_higher = low > 1 + limit and least > resolution
    is_lower = high < 1 / (1 + limit) and most < -resolution
    if is_higher or is_lower:
        is_better = is_higher == (key.unit in _HIGHER_IS_BETTER)
        return Compared(*sides, (low, high), "faster" if is_better else "slower")
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
