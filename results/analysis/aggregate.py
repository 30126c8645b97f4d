"""The rows that the summary and the report share: repeats folded into medians, fabrics set side by side. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from operator import attrgetter
from statistics import median
from typing import Any, Final, TypeVar

import pandas as pd

from railyard.core.records import IntervalId, Record
from railyard.results.format import workload_label
from railyard.results.measured import policies_in_turn
from railyard.results.runs.records import (
    NOT_COMPARED,
    THROUGHPUT,
    Flow,
    Measurement,
    Run,
    Verdict,
    record_kinds,
    worst_verdict,
)

Grouped = TypeVar("Grouped")
TIME_METRICS = ("iteration_time", "completion_time")
SAME_SHAPE = "projected_same_shape"
FULL_SIZE = "projected_full_size"
FOLLOW_FROM_TIME: Final = (SAME_SHAPE, FULL_SIZE, THROUGHPUT)
"""Metrics that are computed from the time of the same interval and phase alone."""
MAX_UNEXPLAINED: Final = 0.05  # share by which a time may be off what its formula explains
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
