"""Trainings under faults in the report: when each was detected, how long it stalled, what was lost, and the weights."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich.console import Console

from railyard.core.records import IntervalId
from railyard.experiments.measures.training import outcome
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import NOTHING, seconds
from railyard.results.runs.records import Measurement, worst_verdict
from railyard.results.views.report import Card, Section, spread_text
from railyard.results.views.table import Column, Table, text

Values = tuple[float, ...]


@dataclass(frozen=True)
class _Row:
    """A program and a fault on a fabric, all repeats; times in s."""

    fabric: str
    program: str
    reroute: str
    fault: str
    values: dict[tuple[str, str], Values]
    verdict: str

    def of(self, metric: str, phase: str = "") -> Values:
        """Return the values of a metric, in the order of the repeats."""
        return self.values.get((metric, phase), ())


def _share(values: Values) -> str:
    """Return in how many repeats of all a claim was true."""
    if not values:
        return NOTHING
    return f"{sum(map(bool, values))} of {len(values)}"


def _spread(values: Values) -> str:
    """Return `1.2 s (1.1 s to 1.4 s)`: the median, and the range if there are several."""
    if not values:
        return NOTHING
    middle = seconds(median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({seconds(min(values))} to {seconds(max(values))})"


def _steps(values: Values) -> str:
    if not values:
        return NOTHING
    middle = f"{median(values):g}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):g} to {max(values):g})"


class TrainingSection(Section):
    """Trainings of real programs while something failed."""

    title = "Training under faults"
    order = 45

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with trainings under faults."""
        return bool(_rows(analysis))

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        """Yield how long the first training stalled."""
        for row in _rows(analysis)[:1]:
            stalled = row.of(outcome.STALLED)
            value = seconds(median(stalled))
            spread = spread_text(stalled, seconds)
            yield Card(f"{row.program}, {row.fault}: stalled for", value, spread=spread, verdict=row.verdict)

    def tables(self, analysis: Analysis) -> list[Table]:
        """Return one table: medians of the repeats, with the range of times."""
        before = (outcome.STEP_TIME, outcome.BEFORE)
        during = (outcome.STEP_TIME, outcome.DURING)
        columns = [
            text("program", key="program"),
            text("fault", key="fault"),
            text("fabric", key="fabric"),
            text("reroute", key="reroute"),
            Column("detected after", lambda row: row.of(outcome.DETECTED), _spread, key="detected_s"),
            Column("stalled for", lambda row: row.of(outcome.STALLED), _spread, key="stalled_s"),
            Column("steps lost", lambda row: row.of(outcome.LOST), _steps, key="steps_lost"),
            Column("step before", lambda row: row.of(*before), _median, key="step_s"),
            Column("step during", lambda row: row.of(*during), _median, key="step_during_s"),
            Column("ended", lambda row: row.of(outcome.COMPLETED), _share, key="completed"),
            Column("ranks equal", lambda row: row.of(outcome.RANKS), _share, key="ranks_equal"),
            Column("weights equal", lambda row: row.of(outcome.WEIGHTS), _share, key="weights_equal"),
            text("verdict", key="verdict"),
        ]
        return [Table(columns, _rows(analysis))]

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print the table."""
        if not self.applies(analysis):
            return
        for table in self.tables(analysis):
            console.print(replace(table, title=self.title).to_terminal(), "")

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return the rows of the table."""
        if not self.applies(analysis):
            return {}
        (table,) = self.tables(analysis)
        return {"training": table.to_dicts()}


def _median(values: Values) -> str:
    if not values:
        return NOTHING
    return seconds(median(values))


def _rows(analysis: Analysis) -> Sequence[_Row]:
    """Return a row for each program and fault; trainings without a fault have none."""
    measurements = analysis.run.measurements
    trainings = {measurement.interval for measurement in measurements if measurement.metric == outcome.COMPLETED}
    repeats = defaultdict[IntervalId, list[Measurement]](list)
    for measurement in measurements:
        if measurement.interval in trainings:
            repeats[replace(measurement.interval, repeat=0)].append(measurement)
    rows: list[_Row] = []
    for interval, interval_measurements in repeats.items():
        values: dict[tuple[str, str], Values] = {}
        for measurement in interval_measurements:
            key = (measurement.metric, measurement.phase)
            values[key] = (*values.get(key, ()), measurement.value)
        verdict = worst_verdict(map(analysis.judgement.of_row, interval_measurements))
        label = analysis.labels[interval.fabric, interval.policy]
        rows.append(_Row(label, interval.workload, interval.reroute, interval.script, values, verdict))
    return rows
