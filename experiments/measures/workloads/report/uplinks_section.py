"""Uplinks of switches in the report: how unevenly flows loaded them, and what that is expected to cost."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

from matplotlib.lines import Line2D
from rich.console import Console

from railyard.core.records import IntervalId
from railyard.experiments.measures.workloads.records import UPLINK_BYTES, UPLINK_IMBALANCE
from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import ratio, workload_label
from railyard.results.plots import style
from railyard.results.runs.records import Measurement, Run
from railyard.results.views.report import Section
from railyard.results.views.table import Column, Table, text

_Work = tuple[str, str, IntervalId]  # fabric, policy, and the identity without both and without the repeat
_Loads = Mapping[IntervalId, Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class _Row:
    """A fabric and workload, all repeats. `loads`: each uplink over the mean of its switch and direction, by name.

    Of a kind that is a graph, whose uplinks are not counted, `measured` is empty and `expected` None.
    """

    fabric: str
    workload: str
    measured: tuple[float, ...]
    expected: float | None
    time: float | None
    expected_time: float | None
    loads: dict[str, tuple[float, ...]]


class UplinksSection(Section):
    """Loads of the uplinks of rail switches, and what collisions on cables between the switches of a graph cost."""

    title = "Uplinks"
    order = 55
    template = "uplinks.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with counted uplinks, or with times that depend on collisions."""
        return bool(_rows(analysis))

    def headline(self, analysis: Analysis) -> Iterator[str]:
        """Yield a sentence for each workload that collisions are expected to prolong."""
        for row in _rows(analysis):
            if row.expected_time and row.expected_time > 1.005:
                cause = "flows collide on cables between switches"
                if row.measured:
                    busiest = ratio(median(row.measured))
                    cause = f"flows collide on uplinks, the busiest of which had {busiest} of the mean"
                    cause += f", {ratio(row.expected)} expected"
                yield (
                    f"{row.workload} on {row.fabric}: {cause}. So the time is expected to be "
                    f"{ratio(row.expected_time)} of the formula's; it was {ratio(row.time)}."
                )

    def tables(self, analysis: Analysis) -> list[Table]:
        """Return a row for each fabric and workload."""

        def busiest(row: _Row) -> float | None:
            return _median(row.measured)

        columns = (
            text("fabric"),
            text("workload"),
            Column("busiest uplink over mean", busiest, unit="ratio"),
            Column("expected", unit="ratio"),
            Column("time over formula", "time", unit="ratio"),
            Column("expected with collisions", "expected_time", unit="ratio"),
        )
        return [Table(columns, _rows(analysis))]

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the figures of its template."""
        plots: list[style.Plot] = []
        for number, row in enumerate(_rows(analysis)):
            if row.loads and row.expected:
                plots.append(_draw(row, number))
        return {"plots": plots}

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print the sentences."""
        for sentence in self.headline(analysis):
            console.print(sentence, highlight=False, markup=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return measured and expected loads of uplinks."""
        counted: list[dict[str, Any]] = []
        for row in _rows(analysis):
            if row.measured:
                names = {"fabric": row.fabric, "workload": row.workload}
                counted.append({**names, "measured": row.measured, "expected": row.expected})
        return {"uplink_imbalance": counted}


def _rows(analysis: Analysis) -> Sequence[_Row]:
    """Return a row for each workload on a fabric whose uplinks were counted, or whose time depends on collisions."""
    imbalances: defaultdict[_Work, list[Measurement]] = defaultdict(list)
    times: defaultdict[_Work, list[Measurement]] = defaultdict(list)
    for measurement in analysis.run.measurements:
        if measurement.metric == UPLINK_IMBALANCE:
            imbalances[_work_of(measurement)].append(measurement)
    for measurement in analysis.run.measurements:
        if _is_predicted_time(measurement):
            times[_work_of(measurement)].append(measurement)
            # uplinks of a graph are not counted: the row has times only
            if _collision_factor(measurement) > 1:
                imbalances.setdefault(_work_of(measurement), [])
    loads = _loads(analysis.run)
    return [_row(analysis, work, rows, times[work], loads) for work, rows in imbalances.items()]


def _work_of(measurement: Measurement) -> _Work:
    return measurement.fabric, measurement.policy, measurement.interval.work


def _is_predicted_time(measurement: Measurement) -> bool:
    """Return True for the time of a whole workload that has a prediction."""
    is_of_phase = bool(measurement.phase)
    return measurement.metric in TIME_METRICS and not is_of_phase and bool(measurement.predicted)


def _collision_factor(measurement: Measurement) -> float:
    """Return the predicted time with collisions on uplinks, over the one without."""
    without_collisions = measurement.predicted or 0.0
    with_collisions = measurement.predicted_by_uplink or without_collisions
    return with_collisions / (without_collisions or 1)


def _loads(run: Run) -> _Loads:
    """Return the bytes of each uplink of each switch, by interval."""
    loads: dict[IntervalId, Mapping[str, Sequence[int]]] = {}
    for event in run.events:
        if event.what == UPLINK_BYTES:
            loads[IntervalId.of(event.detail)] = event.detail["bytes"]
    return loads


def _row(
    analysis: Analysis, work: _Work, imbalances: list[Measurement], times: list[Measurement], loads: _Loads
) -> _Row:
    """Return the row of a workload. `imbalances`, `times`: its measurements, one of each for each repeat."""
    fabric, policy, interval = work
    # all repeats have the same expectation
    expected = imbalances[0].predicted if imbalances else None
    valid_ratios = [time.ratio or 0 for time in times if analysis.judgement.of_row(time) != "invalid"]
    return _Row(
        fabric=analysis.labels[fabric, policy],
        workload=workload_label(interval),
        measured=tuple(row.value for row in imbalances),
        expected=expected,
        time=_median(valid_ratios),
        expected_time=_median(list(map(_collision_factor, times))),
        loads=_loads_over_mean([row.interval for row in imbalances], loads),
    )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _loads_over_mean(intervals: Sequence[IntervalId], loads: _Loads) -> dict[str, tuple[float, ...]]:
    """Return each uplink's bytes over the mean of its switch, one value for each interval, by the uplink's name."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for interval in intervals:
        for switch, sizes in loads.get(interval, {}).items():
            total = sum(sizes) or 1
            for number, size in enumerate(sizes):
                values[f"{switch} spine{number}"].append(size * len(sizes) / total)
    return {name: tuple(ratios) for name, ratios in values.items()}


def _draw(row: _Row, number: int) -> style.Plot:
    """Draw a dot for each uplink and repeat, in the order of the switches, with the mean and the expected maximum."""
    with style.drawing(2.6) as figure:
        axes = figure.subplots()
        axes.axhline(1, color=style.MUTED, lw=1)
        for position, values in enumerate(row.loads.values()):
            colour = style.SKY if position % 2 else style.BLUE
            axes.plot([position] * len(values), values, "o", ms=4, mew=0, alpha=0.8, color=colour)
        handles = [Line2D([], [], ls="none", marker="o", color=style.BLUE, label="an uplink, one direction")]
        if row.expected:
            handles += axes.plot([], [], color=style.VERMILION, ls="--", label="expected of the busiest")
            axes.axhline(row.expected, color=style.VERMILION, ls="--", lw=1.2)
        highest = max(row.expected or 1, *chain.from_iterable(row.loads.values()))
        axes.set_ylim(0, highest * 1.1)
        axes.set_xticks([])
        style.quiet(axes, grid="y", xlabel="uplinks, switch by switch", ylabel="bytes over the mean")
        style.top_legend(figure, handles)
        name = f"{row.workload} on {row.fabric}"
        alt = f"Bytes of each uplink over the mean of its switch, {name}: at most {median(row.measured):.2f}"
        return style.finish(figure, f"uplinks-{number}", f"{alt}, expected {ratio(row.expected)}", name)
