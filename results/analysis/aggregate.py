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
# measured over predicted, as faithful runs reach it
FAITHFUL_RATIO: Final = (0.97, 1.05)
# no workload of the experiment's: what watching for silence costs
HEARTBEATS = "heartbeats"


def grouped(rows: Iterable[Grouped], *keys: str) -> dict[Any, list[Grouped]]:
    """Return the rows that are alike in these attributes, by their values (of one attribute: its value)."""
    groups: defaultdict[Any, list[Grouped]] = defaultdict(list)
    values = attrgetter(*keys)
    for row in rows:
        groups[values(row)].append(row)
    return dict(groups)


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
        if not self.predicted or self.verdict in NOT_COMPARED:
            return None
        return self.median / self.predicted

    @property
    def displayed_ratio(self) -> float | None:
        """The ratio for tables and figures: None if the row is invalid too. Data files have `ratio` and the verdict."""
        return None if self.verdict == "invalid" else self.ratio

    @property
    def ratio_with_latency(self) -> float | None:
        """Measured over the prediction with latency, for tables; None without one, if invalid or not compared."""
        if self.displayed_ratio is None or not self.with_latency:
            return None
        return self.median / self.with_latency

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        return {
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "repeats": len(self.values),
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
        """The label of its workload."""
        return workload_label(self.work)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        return {
            "workload": self.workload,
            "phase": self.phase,
            "metric": self.metric,
            "unit": self.unit,
            "kinds": list(self.kinds),
            "fabrics": {name: spread.as_dict() for name, spread in self.by_fabric.items()},
        }


def time_label(row: Row) -> str:
    """Return the label of a row of times: its phase, or the iteration as a whole."""
    if row.phase:
        return row.phase
    if row.metric == "iteration_time":
        return "iteration"
    return row.workload


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
    def _verdicts(self) -> dict[str, Verdict]:
        """The verdicts of the two times, by fabric."""
        times = self.row.by_fabric
        return {name: times[name].verdict for name in (self.rail_only, self.rail_optimized)}

    @property
    def of_times(self) -> Verdict:
        """The worst verdict of all repeats on both fabrics."""
        return worst_verdict(self._verdicts.values())

    @property
    def invalid_fabrics(self) -> tuple[str, ...]:
        """The fabrics whose time is invalid: with one of them the fabrics are not compared."""
        return tuple(name for name, verdict in self._verdicts.items() if verdict == "invalid")

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
        if self.not_compared:
            return None
        return self.measured

    @property
    def off(self) -> float:
        """The share by which it is off what the formulas explain; 0 if it isn't compared with them."""
        verdict = self.of_times
        if not self.predicted or verdict == "invalid" or verdict in NOT_COMPARED:
            return 0.0
        least, most = self.explained
        return unexplained(self.measured / self.predicted, least, most)

    @property
    def verdict(self) -> Verdict:
        """The verdict of the times, or degraded if it is off its formula."""
        if self.off > MAX_UNEXPLAINED:
            return worst_verdict((self.of_times, "degraded"))
        return self.of_times

    @property
    def is_all_to_all(self) -> bool:
        """True for an all-to-all, which `nominal` is about, that the two fabrics carry differently."""
        return self.row.operations == ("all-to-all",) and (self.predicted is None or not isclose(self.predicted, 1))


def unexplained(ratio: float, least: float, most: float) -> float:
    """Return the share by which measured over predicted is off the ratios that the theory explains; `least` 0: none."""
    deviation = max(0.0, ratio / most - 1)
    if least:
        deviation = max(deviation, 1 - ratio / least)
    return deviation


def labels(run: Run) -> dict[tuple[str, str], str]:
    """Return labels by (fabric, policy): the fabric, and the policy too where one fabric ran with several."""
    places: list[tuple[str, str]] = []
    # with policies in turn, the records alone say which of them each fabric was measured with
    if not policies_in_turn(run):
        places += [(fabric.label, fabric.policy) for fabric in run.fabrics]
    records: list[Record] = list(run.measurements)
    for kind in record_kinds().values():
        if kind.has_labels:
            records += run.rows(kind)
    places += [(record.fabric, record.policy) for record in records]
    distinct = dict.fromkeys(places)

    policy_counts = Counter(fabric for fabric, _ in distinct)
    names: dict[tuple[str, str], str] = {}
    for fabric, policy in distinct:
        names[fabric, policy] = fabric if policy_counts[fabric] == 1 else f"{fabric} {policy}"
    return names


def kinds_of(flows: Sequence[Flow], attribute: str = "kind") -> dict[tuple[IntervalId, str], tuple[str, ...]]:
    """Return the kinds of traffic, or the `operation`s, by what ran and phase; phase "" is the whole workload."""
    # `work` makes a new identity, which would take long for every single flow
    distinct = dict.fromkeys((flow.interval, flow.phase, getattr(flow, attribute)) for flow in flows)
    kinds: defaultdict[tuple[IntervalId, str], dict[str, None]] = defaultdict(dict)
    for interval, phase, kind in distinct:
        kinds[interval.work, phase][kind] = None
        kinds[interval.work, ""][kind] = None
    return {key: tuple(names) for key, names in kinds.items()}


def measurements_frame(run: Run, verdict_of: Callable[[Measurement], Verdict]) -> pd.DataFrame:
    """Return a row for each measurement, with the label of its fabric and what ran; unknown predictions are NaN."""
    names = labels(run)
    works: dict[IntervalId, IntervalId] = {}
    for measurement in run.measurements:
        if measurement.interval not in works:
            works[measurement.interval] = measurement.interval.work
    columns: dict[str, Callable[[Measurement], Any]] = {
        "label": lambda m: names[m.fabric, m.policy],
        "fabric": attrgetter("fabric"),
        "policy": attrgetter("policy"),
        "work": lambda m: works[m.interval],
        "phase": attrgetter("phase"),
        "metric": attrgetter("metric"),
        "unit": attrgetter("unit"),
        "repeat": attrgetter("repeat"),
        "value": attrgetter("value"),
        "predicted": lambda m: nan if m.predicted is None else m.predicted,
        "ratio": lambda m: m.ratio or nan,
        "verdict": verdict_of,
        "with_latency": lambda m: m.predicted_with_latency or nan,
        "explained_least": attrgetter("explained_least"),
        "explained_most": attrgetter("explained_most"),
        "not_compared": attrgetter("not_compared"),
    }
    return pd.DataFrame({name: [value(row) for row in run.measurements] for name, value in columns.items()})


def none_if_nan(value: float) -> float | None:
    """Return a value of a frame; None where it has none."""
    if isnan(value):
        return None
    return float(value)


def rows_of(run: Run, measurements: pd.DataFrame) -> tuple[Row, ...]:
    """Return every measurement, repeats together, in the order in which they were first measured."""
    kinds = kinds_of(run.flows)
    operations = kinds_of(run.flows, "operation")
    spreads: defaultdict[tuple[IntervalId, str, str, str], dict[str, Spread]] = defaultdict(dict)
    repeats = measurements.groupby(["work", "phase", "metric", "unit", "label"], sort=False)
    statistics = repeats.agg(
        values=("value", tuple),
        predicted=("predicted", "median"),
        verdict=("verdict", worst_verdict),
        with_latency=("with_latency", "median"),
        least=("explained_least", "min"),
        most=("explained_most", "max"),
        reason=("not_compared", "max"),
    )
    for row in statistics.reset_index().to_dict("records"):
        key = (row["work"], row["phase"], row["metric"], row["unit"])
        spreads[key][row["label"]] = Spread(
            values=row["values"],
            predicted=none_if_nan(row["predicted"]),
            verdict=row["verdict"],
            with_latency=none_if_nan(row["with_latency"]),
            explained=(row["least"], row["most"]),
            not_compared=row["reason"],
        )

    rows: list[Row] = []
    for (work, phase, metric, unit), by_label in spreads.items():
        # a phase of which no transfer was recorded has the traffic of its workload
        traffic_kinds = kinds.get((work, phase)) or kinds.get((work, ""), ())
        collectives = operations.get((work, phase)) or operations.get((work, ""), ())
        rows.append(Row(work, phase, metric, unit, traffic_kinds, by_label, collectives))
    return tuple(rows)


def pairs(run: Run) -> tuple[tuple[FabricRun, FabricRun], ...]:
    """Return (fabric, baseline of its kind) where they are alike in everything else, so that times can be compared."""
    size = attrgetter("domains", "rails", "nics", "rail_bps", "hb_bps", "mtu")
    comparable: list[tuple[FabricRun, FabricRun]] = []
    for fabric, other in product(run.fabrics, repeat=2):
        # the kind may be a plugin's that isn't loaded
        if fabric.kind not in FABRIC_KINDS:
            continue
        if FABRIC_KINDS[fabric.kind].baseline == other.kind and size(fabric) == size(other):
            comparable.append((fabric, other))
    return tuple(comparable)


def slowdowns(run: Run, timed: Sequence[Row]) -> tuple[Slowdown, ...]:
    """Return rail-only over rail-optimized for each time that both have, under one policy if several ran in turn."""
    names = labels(run)
    in_turn = [(policy, policy) for policy in policies_in_turn(run)]
    compared: list[Slowdown] = []
    for rail_only, rail_optimized in pairs(run):
        nominal = rail_only.gpu_rail_bps / rail_only.hb_bps
        for policy, baseline_policy in in_turn or [(rail_only.policy, rail_optimized.policy)]:
            label = names.get((rail_only.label, policy), "")
            baseline_label = names.get((rail_optimized.label, baseline_policy), "")
            for row in timed:
                interval = replace(row.work, fabric=rail_only.label, policy=policy)
                slowdown = _slowdown(row, interval, label, baseline_label, nominal)
                if slowdown:
                    compared.append(slowdown)
    return tuple(compared)


def _slowdown(row: Row, interval: IntervalId, label: str, baseline_label: str, nominal: float) -> Slowdown | None:
    """Return the time of a row on one fabric over that on its baseline; None if either wasn't measured."""
    slow = row.by_fabric.get(label)
    fast = row.by_fabric.get(baseline_label)
    if not slow or not fast or fast.median <= 0:
        return None
    predicted = None
    if slow.predicted and fast.predicted:
        predicted = slow.predicted / fast.predicted
    slow_least, slow_most = slow.explained
    fast_least, fast_most = fast.explained
    explained = (0.0, inf)
    if slow_least and fast_least:
        explained = (slow_least / fast_most, slow_most / fast_least)
    measured = slow.median / fast.median
    return Slowdown(interval, row, label, baseline_label, measured, predicted, nominal, explained)


class Outlier(NamedTuple):
    """A median outside FAITHFUL_RATIO: its row and fabric in words, measured over predicted, and the known reason."""

    time: str
    ratio: float
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        return {"what": self.time, "ratio": self.ratio, "reason": self.reason}


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
        if self.outliers:
            return "degraded"
        return "ok"

    @property
    def text(self) -> str:
        """`6 of 8 within 0.97-1.05, worst 1.080 (moe moe-a2a on rail-optimized)`; invalid times are among the 8."""
        number = self.compared + self.invalid
        if not number:
            return "no time has a formula to compare with"
        if not self.compared and number == 1:
            return "not compared: the time is invalid"
        if not self.compared:
            return f"not compared: all {number} times are invalid"
        low, high = FAITHFUL_RATIO
        text = f"{self.compared - len(self.outliers)} of {number} within {low:g}-{high:g}"
        if self.outliers:
            worst = self.outliers[0]
            text += f", worst {ratio(worst.ratio)} ({worst.time})"
        if self.invalid:
            text += f"; {self.invalid} invalid, not compared"
        return text

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        outliers = [outlier.as_dict() for outlier in self.outliers]
        within = self.compared - len(outliers)
        return {"compared": self.compared, "within": within, "outliers": outliers, "invalid": self.invalid}


def agreement(timed: Iterable[Row]) -> Agreement:
    """Compare every time that has a prediction with it, unless it is invalid."""
    low, high = FAITHFUL_RATIO
    compared = 0
    invalid = 0
    outliers: list[Outlier] = []
    for row in timed:
        for fabric, spread in row.by_fabric.items():
            if not spread.ratio:
                continue
            if spread.verdict == "invalid":
                invalid += 1
                continue
            compared += 1
            if not low <= spread.ratio <= high:
                time = f"{row.workload} {row.phase}".strip()
                outliers.append(Outlier(f"{time} on {fabric}", spread.ratio, _known_reason(spread)))
    # half and twice the prediction are equally far off
    outliers.sort(key=lambda outlier: abs(log(outlier.ratio)), reverse=True)
    return Agreement(compared, tuple(outliers), invalid)


def _known_reason(spread: Spread) -> str:
    """Return why a median may be off its prediction, as far as that is known: a busy machine, or latency."""
    low, high = FAITHFUL_RATIO
    reasons: list[str] = []
    if spread.verdict != "ok":
        reasons.append(f"its interval is {spread.verdict}: the machine was busy")
    if spread.with_latency:
        with_latency = spread.median / spread.with_latency
        if low <= with_latency <= high:
            reasons.append(f"{ratio(with_latency)} with the latency of its sequential steps")
    return "; ".join(reasons)
