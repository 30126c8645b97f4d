"""The rows that the summary and the report share: repeats folded into medians, fabrics set side by side. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isclose, isnan, log, nan
from operator import attrgetter
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

import pandas as pd

from railyard.core.records import IntervalId, Record
from railyard.results.format import ratio, workload_label
from railyard.results.measured import policies_in_turn
from railyard.results.runs.records import (
    NOT_COMPARED,
    THROUGHPUT,
    FabricRun,
    Flow,
    Measurement,
    Run,
    Verdict,
    record_kinds,
    worst_verdict,
)
from railyard.topologies.fabric_kinds import FABRIC_KINDS

Grouped = TypeVar("Grouped")
TIME_METRICS = ("iteration_time", "completion_time")
SAME_SHAPE = "projected_same_shape"
FULL_SIZE = "projected_full_size"
FOLLOW_FROM_TIME: Final = (SAME_SHAPE, FULL_SIZE, THROUGHPUT)
"""Metrics that are computed from the time of the same interval and phase alone."""
MAX_UNEXPLAINED: Final = 0.05  # share by which a time may be off what its formula explains
FAITHFUL_RATIO: Final = (0.97, 1.05)  # measured over predicted: what a faithful run reaches
HEARTBEATS = "heartbeats"  # no workload of the experiment's: what watching for silence costs


def grouped(rows: Iterable[Grouped], *keys: str) -> dict[Any, list[Grouped]]:
    """Return the rows that are alike in these attributes, by their values (of one attribute: its value)."""
    found: defaultdict[Any, list[Grouped]] = defaultdict(list)
    values = attrgetter(*keys)
    for row in rows:
        found[values(row)].append(row)
    return dict(found)


@dataclass(frozen=True, slots=True)
class Spread:
    """The repeats of one measurement, their worst verdict, and the ratios that the theory explains of them."""

    values: tuple[float, ...]
    predicted: float | None
    verdict: Verdict = "ok"
    with_latency: float | None = None  # the prediction with the latency of its steps
    explained: tuple[float, float] = (0.0, inf)
    not_compared: str = ""  # the reason, if it isn't

    @property
    def median(self) -> float:
        """Median of the repeats."""
        return median(self.values)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None if that isn't compared."""
        return self.median / self.predicted if self.predicted and self.verdict not in NOT_COMPARED else None

    @property
    def displayed_ratio(self) -> float | None:
        """The ratio for tables and figures: None if the row is invalid too. Data files have `ratio` and the verdict."""
        return None if self.verdict == "invalid" else self.ratio

    @property
    def ratio_with_latency(self) -> float | None:
        """Measured over the prediction with latency, for tables; None without one, if invalid or not compared."""
        return None if self.displayed_ratio is None or not self.with_latency else self.median / self.with_latency

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        extremes = {"min": min(self.values), "max": max(self.values), "repeats": len(self.values)}
        return {
            "median": self.median,
            **extremes,
            "predicted": self.predicted,
            "ratio": self.ratio,
            "verdict": self.verdict,
            "predicted_with_latency": self.with_latency,
            "not_compared": self.not_compared,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one phase, for every fabric (by label) that measured it.

    `kinds`: of its traffic, TP to EP; `operations`: the collectives that this belongs to.
    """

    work: IntervalId
    phase: str
    metric: str
    unit: str
    kinds: tuple[str, ...]
    by_fabric: dict[str, Spread]
    operations: tuple[str, ...] = ()

    @property
    def workload(self) -> str:
        """Its label."""
        return workload_label(self.work)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        what = {name: getattr(self, name) for name in ("workload", "phase", "metric", "unit")}
        fabrics = {name: spread.as_dict() for name, spread in self.by_fabric.items()}
        return {**what, "kinds": list(self.kinds), "fabrics": fabrics}


def time_label(row: Row) -> str:
    """Return the label of a row of times: its phase, or the iteration as a whole."""
    if row.phase:
        return row.phase
    return "iteration" if row.metric == "iteration_time" else row.workload


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The time of a row on a rail-only fabric over that on the rail-optimized fabric of the same size and rates.

    `nominal` is the paper's C_S/C_F (Rail-only IV-B): the share by which all-to-all is slower, once x, y >> 1.
    `explained`: the least and the most that the theory explains, of measured over predicted.
    """

    interval: IntervalId  # on the rail-only fabric
    row: Row
    rail_only: str
    rail_optimized: str
    measured: float
    predicted: float | None
    nominal: float
    explained: tuple[float, float]

    @property
    def of_times(self) -> Verdict:
        """The worst verdict of all repeats on both fabrics."""
        return worst_verdict(self.row.by_fabric[name].verdict for name in (self.rail_only, self.rail_optimized))

    @property
    def invalid_fabrics(self) -> tuple[str, ...]:
        """The fabrics whose time is invalid: with one of them the fabrics are not compared."""
        names = (self.rail_only, self.rail_optimized)
        return tuple(name for name in names if self.row.by_fabric[name].verdict == "invalid")

    @property
    def not_compared(self) -> str:
        """The reason why the two times are not compared; "" if they are."""
        match self.invalid_fabrics:
            case ():
                return ""
            case (fabric,):
                return f"the time on {fabric} is invalid"
            case fabrics:
                return f"the times on {' and '.join(fabrics)} are invalid"

    @property
    def displayed(self) -> float | None:
        """The measured value for tables and figures; None if the times are not compared."""
        return None if self.not_compared else self.measured

    @property
    def off(self) -> float:
        """The share by which it is off what the formulas explain; 0 if it isn't compared with them."""
        is_compared = self.predicted and self.of_times not in (*NOT_COMPARED, "invalid")
        return unexplained(self.measured / self.predicted, *self.explained) if is_compared and self.predicted else 0.0

    @property
    def verdict(self) -> Verdict:
        """The verdict of the times, or degraded if it is off its formula."""
        own: Verdict = "degraded" if self.off > MAX_UNEXPLAINED else "ok"
        return worst_verdict((self.of_times, own))

    @property
    def is_all_to_all(self) -> bool:
        """True for an all-to-all, which `nominal` is about, that the two fabrics carry differently."""
        return self.row.operations == ("all-to-all",) and (self.predicted is None or not isclose(self.predicted, 1))


def unexplained(ratio: float, least: float, most: float) -> float:
    """Return the share by which measured over predicted is off the ratios that the theory explains; `least` 0: none."""
    return max(0.0, ratio / most - 1, 1 - ratio / least if least else 0.0)


def labels(run: Run) -> dict[tuple[str, str], str]:
    """Return labels by (fabric, policy): the fabric, and the policy too where one fabric ran with several."""
    built = [] if policies_in_turn(run) else [(f.label, f.policy) for f in run.fabrics]
    records: list[Record] = list(run.measurements)
    for kind in record_kinds().values():
        if kind.has_labels:
            records += run.rows(kind)
    pairs = dict.fromkeys([*built, *((record.fabric, record.policy) for record in records)])
    count = Counter(fabric for fabric, _ in pairs)
    return {(fabric, policy): fabric if count[fabric] == 1 else f"{fabric} {policy}" for fabric, policy in pairs}


def kinds_of(flows: Sequence[Flow], attribute: str = "kind") -> dict[tuple[IntervalId, str], tuple[str, ...]]:
    """Return the kinds of traffic, or the `operation`s, by what ran and phase; phase "" is the whole workload."""
    found: defaultdict[tuple[IntervalId, str], dict[str, None]] = defaultdict(dict)
    for interval, phase, kind in dict.fromkeys((f.interval, f.phase, getattr(f, attribute)) for f in flows):
        for part in (phase, ""):
            found[interval.work, part][kind] = None
    return {key: tuple(kinds) for key, kinds in found.items()}


def measurements_frame(run: Run, verdict_of: Callable[[Measurement], Verdict]) -> pd.DataFrame:
    """Return a row for each measurement, with the label of its fabric and what ran; unknown predictions are NaN."""
    names = labels(run)
    works = {interval: interval.work for interval in dict.fromkeys(m.interval for m in run.measurements)}
    columns = (
        "label",
        "fabric",
        "policy",
        "work",
        "phase",
        "metric",
        "unit",
        "repeat",
        "value",
        "predicted",
        "ratio",
        "verdict",
        "with_latency",
        "explained_least",
        "explained_most",
        "not_compared",
    )
    rows = [
        (
            *(names[m.fabric, m.policy], m.fabric, m.policy, works[m.interval], m.phase, m.metric, m.unit, m.repeat),
            *(m.value, nan if m.predicted is None else m.predicted, m.ratio or nan, verdict_of(m)),
            *(m.predicted_with_latency or nan, m.explained_least, m.explained_most, m.not_compared),
        )
        for m in run.measurements
    ]
    return pd.DataFrame(rows, columns=list(columns))


def none_if_nan(value: float) -> float | None:
    """Return a value of a frame; None where it has none."""
    return None if isnan(value) else float(value)


def rows_of(run: Run, measurements: pd.DataFrame) -> tuple[Row, ...]:
    """Return every measurement, repeats together, in the order in which they were first measured."""
    kinds = kinds_of(run.flows)
    operations = kinds_of(run.flows, "operation")
    spreads: defaultdict[tuple[IntervalId, str, str, str], dict[str, Spread]] = defaultdict(dict)
    repeats = measurements.groupby(["work", "phase", "metric", "unit", "label"], sort=False)
    for (*key, label), values, predicted, verdict, with_latency, least, most, reason in repeats.agg(
        values=("value", tuple),
        predicted=("predicted", "median"),
        verdict=("verdict", worst_verdict),
        with_latency=("with_latency", "median"),
        least=("explained_least", "min"),
        most=("explained_most", "max"),
        reason=("not_compared", "max"),
    ).itertuples(name=None):
        latency = none_if_nan(with_latency)
        spreads[tuple(key)][label] = Spread(values, none_if_nan(predicted), verdict, latency, (least, most), reason)
    found = []
    for (work, phase, metric, unit), by_label in spreads.items():
        of_kinds, of_operations = (each.get((work, phase)) or each.get((work, ""), ()) for each in (kinds, operations))
        found.append(Row(work, phase, metric, unit, of_kinds, by_label, of_operations))
    return tuple(found)


def pairs(run: Run) -> tuple[tuple[FabricRun, FabricRun], ...]:
    """Return (fabric, baseline of its kind) where they are alike in everything else, so that times can be compared."""
    size = attrgetter("domains", "rails", "rail_bps", "hb_bps", "mtu")
    known = [fabric for fabric in run.fabrics if fabric.kind in FABRIC_KINDS]
    found = product(known, run.fabrics)
    return tuple((a, b) for a, b in found if FABRIC_KINDS[a.kind].baseline == b.kind and size(a) == size(b))


def slowdowns(run: Run, timed: Sequence[Row]) -> tuple[Slowdown, ...]:
    """Return rail-only over rail-optimized for each time that both have, under one policy if several ran in turn."""
    names = labels(run)
    found = []
    in_turn = [(policy, policy) for policy in policies_in_turn(run)]
    for a, b in pairs(run):
        for own, other_policy in in_turn or [(a.policy, b.policy)]:
            one = names.get((a.label, own), "")
            other = names.get((b.label, other_policy), "")
            for row in timed:
                slow = row.by_fabric.get(one)
                fast = row.by_fabric.get(other)
                if slow and fast and fast.median > 0:
                    expected = slow.predicted / fast.predicted if slow.predicted and fast.predicted else None
                    interval = replace(row.work, fabric=a.label, policy=own)
                    measured = slow.median / fast.median
                    (slow_least, slow_most), (fast_least, fast_most) = slow.explained, fast.explained
                    explained = (0.0, inf)
                    if slow_least and fast_least:
                        explained = (slow_least / fast_most, slow_most / fast_least)
                    nominal = a.rail_bps / a.hb_bps
                    found.append(Slowdown(interval, row, one, other, measured, expected, nominal, explained))
    return tuple(found)


class Outlier(NamedTuple):
    """A median outside FAITHFUL_RATIO: its row and fabric in words, measured over predicted, and the known reason."""

    what: str
    ratio: float
    reason: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """Number of medians of times that were compared with a formula, and those outside FAITHFUL_RATIO, worst first.

    `invalid`: how many more have a formula and were not compared, since the machine was measured, and not the fabric.
    """

    compared: int
    outliers: tuple[Outlier, ...]
    invalid: int = 0

    @property
    def verdict(self) -> Verdict:
        """The worst of: invalid times, which were not compared, and outliers; ok if there are none."""
        if self.invalid:
            return "invalid"
        return "degraded" if self.outliers else "ok"

    @property
    def text(self) -> str:
        """`6 of 8 within 0.97-1.05, worst 1.080 (moe moe-a2a on rail-optimized)`; invalid times are among the 8."""
        left_out = f"; {self.invalid} invalid, not compared" if self.invalid else ""
        number = self.compared + self.invalid
        if not number:
            return "no time has a formula to compare with"
        if not self.compared:
            return (
                f"not compared: all {number} times are invalid" if number > 1 else "not compared: the time is invalid"
            )
        within = f"{self.compared - len(self.outliers)} of {number} within {'{:g}-{:g}'.format(*FAITHFUL_RATIO)}"
        worst = next(iter(self.outliers), None)
        return (f"{within}, worst {ratio(worst.ratio)} ({worst.what})" if worst else within) + left_out

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        outliers = [outlier._asdict() for outlier in self.outliers]
        within = self.compared - len(outliers)
        return {"compared": self.compared, "within": within, "outliers": outliers, "invalid": self.invalid}


def agreement(timed: Iterable[Row]) -> Agreement:
    """Compare every time that has a prediction with it, unless it is invalid."""
    known = [(row, fabric, s, s.ratio) for row in timed for fabric, s in row.by_fabric.items() if s.ratio]
    compared = [found for found in known if found[2].verdict != "invalid"]
    low, high = FAITHFUL_RATIO

    def outlier(row: Row, fabric: str, spread: Spread, found: float) -> Outlier:
        with_latency = spread.median / spread.with_latency if spread.with_latency else 0.0
        reasons = [f"its interval is {spread.verdict}: the machine was busy"] if spread.verdict != "ok" else []
        if low <= with_latency <= high:
            reasons.append(f"{ratio(with_latency)} with the latency of its sequential steps")
        what = f"{row.workload} {row.phase}".strip()
        return Outlier(f"{what} on {fabric}", found, "; ".join(reasons))

    outliers = [outlier(*found) for found in compared if not low <= found[3] <= high]
    worst_first = tuple(sorted(outliers, key=lambda o: -abs(log(o.ratio))))
    return Agreement(len(compared), worst_first, len(known) - len(compared))
