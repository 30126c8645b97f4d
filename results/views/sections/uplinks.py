"""Uplinks of switches in the report: how unevenly flows loaded them, and what that is expected to cost."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.lines import Line2D
from rich.console import Console

from railyard.core.records import IntervalId
from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import ratio, workload_label
from railyard.results.plots import style
from railyard.results.runs.records import UPLINK_BYTES, UPLINK_IMBALANCE, Measurement
from railyard.results.views.report import Section, section
from railyard.results.views.table import Column, Table, text


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


@section("uplinks")
class _Uplinks(Section):
    """Loads of the uplinks of rail switches, and what collisions on cables between the switches of a graph cost."""

    title = "Uplinks"
    order = 55
    template = "uplinks.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return bool(_rows(analysis))

    def headline(self, analysis: Analysis) -> Iterator[str]:
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
        columns = (
            *(text("fabric"), text("workload")),
            Column(
                "busiest uplink over mean", lambda row: median(row.measured) if row.measured else None, unit="ratio"
            ),
            Column("expected", unit="ratio"),
            Column("time over formula", "time", unit="ratio"),
            Column("expected with collisions", "expected_time", unit="ratio"),
        )
        return [Table(columns, _rows(analysis))]

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        return {"plots": [_draw(row, n) for n, row in enumerate(_rows(analysis)) if row.loads and row.expected]}

    def show(self, analysis: Analysis, console: Console) -> None:
        for sentence in self.headline(analysis):
            console.print(sentence, highlight=False, markup=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        names = ("fabric", "workload", "measured", "expected")
        counted = [row for row in _rows(analysis) if row.measured]
        return {"uplink_imbalance": [{name: getattr(row, name) for name in names} for row in counted]}


def _rows(analysis: Analysis) -> Sequence[_Row]:
    run, found = analysis.run, []
    loads = {IntervalId.of(e.detail): e.detail["bytes"] for e in run.events if e.what == UPLINK_BYTES}
    by_work = defaultdict[tuple[str, str, IntervalId], list[Measurement]](list)
    for m in run.measurements:
        if m.metric == UPLINK_IMBALANCE:
            by_work[m.fabric, m.policy, m.interval.work].append(m)
    timed_by_work = defaultdict[tuple[str, str, IntervalId], list[Measurement]](list)
    for m in run.measurements:
        if m.metric in TIME_METRICS and not m.phase and m.predicted:
            timed_by_work[m.fabric, m.policy, m.interval.work].append(m)
            if (m.predicted_by_uplink or 0.0) > m.predicted:  # of a graph, whose uplinks are not counted
                by_work.setdefault((m.fabric, m.policy, m.interval.work), [])
    for (fabric, policy, work), rows in by_work.items():
        intervals = [row.interval for row in rows]
        times = timed_by_work[fabric, policy, work]
        valid_times = [m for m in times if analysis.judgement.of_row(m) != "invalid"]
        with_collisions = [(m.predicted_by_uplink or m.predicted or 0) / (m.predicted or 1) for m in times]
        by_uplink = [
            {f"{switch} spine{n}": size * len(sizes) / (sum(sizes) or 1) for n, size in enumerate(sizes)}
            for interval in intervals
            for switch, sizes in loads.get(interval, {}).items()
        ]
        names = dict.fromkeys(name for part in by_uplink for name in part)
        found.append(
            _Row(
                analysis.labels[fabric, policy],
                workload_label(work),
                tuple(row.value for row in rows),
                rows[0].predicted if rows else None,
                median(m.ratio or 0 for m in valid_times) if valid_times else None,
                median(with_collisions) if with_collisions else None,
                {name: tuple(part[name] for part in by_uplink if name in part) for name in names},
            )
        )
    return found


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
        axes.set_ylim(0, max(row.expected or 1, *(v for values in row.loads.values() for v in values)) * 1.1)
        axes.set_xticks([])
        style.quiet(axes, grid="y", xlabel="uplinks, switch by switch", ylabel="bytes over the mean")
        style.top_legend(figure, handles)
        what = f"{row.workload} on {row.fabric}"
        alt = f"Bytes of each uplink over the mean of its switch, {what}: at most {median(row.measured):.2f}"
        return style.finish(figure, f"uplinks-{number}", f"{alt}, expected {ratio(row.expected)}", what)
