"""Workloads in the report: traffic, times of fabrics side by side, the formulas behind them, bytes."""

from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter
from statistics import median
from typing import Any

from markupsafe import Markup
from rich.console import Console

from railyard.experiments.measures.workloads.records import WAITS
from railyard.experiments.measures.workloads.report import figures, plots
from railyard.experiments.measures.workloads.report.formulas import filled_formulas, formulas
from railyard.experiments.measures.workloads.report.tables import (
    bytes_table,
    difference_text,
    others_table,
    slowdowns_table,
    times_table,
)
from railyard.experiments.measures.workloads.report.terminal import print_times, row_name
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Row, grouped
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.slowdowns import Slowdown, pairs
from railyard.results.format import workload_label
from railyard.results.measured import policies_in_turn
from railyard.results.runs.records import Run
from railyard.results.views.computing import computing_lines
from railyard.results.views.report import SPREAD_UNKNOWN, Card, Section, spread_text
from railyard.results.views.table import Table
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.workloads.matrix.waiting import REMEDY
from railyard.workloads.spec import traffic_kind


class WorkloadsSection(Section):
    """Traffic and times of each workload, fabrics side by side."""

    title = "Workloads"
    order = 50
    template = "workloads.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run on fabrics of GPUs."""
        return bool(analysis.run.fabrics)

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        """Yield the slow-down of each all-to-all, then the time of each workload on each fabric."""
        for slowdown in _all_to_all_slowdowns(analysis):
            name = f"{slowdown.row.workload} {slowdown.row.phase}"
            yield Card(
                f"{name}: {slowdown.rail_only} over {slowdown.rail_optimized}".replace(" :", ":"),
                difference_text(slowdown.displayed),
                f"theory {fmt.change(slowdown.predicted)} (Eq. 3 / Eq. 2)",
                slowdown.not_compared or _difference_spread(slowdown),
                slowdown.verdict,
            )
        for row in _side_by_side(analysis):
            if not row.phase:
                yield from _cards_of(row)

    def headline(self, analysis: Analysis) -> Iterator[str | Table]:
        """Yield sentences on all-to-alls, the table of times, and what planes do to these."""
        for slowdown in _all_to_all_slowdowns(analysis):
            yield _slowdown_sentence(slowdown)
        timed = _side_by_side(analysis)
        if timed:
            chosen = list(filter(_is_headline, timed))
            yield times_table(chosen or timed, list(analysis.labels.values()), analysis.slowdowns)
        yield from waiting_lines(analysis)
        yield from _computing_lines(analysis.run)
        yield from _plane_sentences(analysis.run)

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the tables and figures of its template."""
        run = analysis.run
        timed = _side_by_side(analysis)
        labels = list(analysis.labels.values())
        flows = figures.flows_by_work(run)
        by_workload = grouped(timed, "workload")
        workloads: list[dict[str, Any]] = []
        for name in dict.fromkeys([*by_workload, *flows]):
            times = by_workload.get(name, [])
            part = {
                "name": name,
                "heatmaps": figures.heatmaps(analysis, name, flows.get(name, {})),
                "times": None,
                "table": times_table(times, labels, analysis.slowdowns),
                "formulas": [],
            }
            if times:
                part["times"] = plots.completion(times, labels, name)
                part["formulas"] = filled_formulas(run, analysis.labels, times)
            workloads.append(part)
        # those of a single pair are columns of the tables of times
        slowdowns = analysis.slowdowns if len(pairs(run)) > 1 else ()
        return {
            "volumes": figures.volumes(flows, analysis.labels),
            "workloads": workloads,
            "sweeps": figures.sweeps(analysis),
            "slowdowns": slowdowns_table(slowdowns),
            "formulas": list(formulas(run)) if timed else [],
            "ratios": plots.ratios(timed, labels),
            "others": others_table(analysis.rows),
            "bytes": bytes_table(analysis),
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print times, and the slow-down of all-to-alls."""
        for line in waiting_lines(analysis):
            console.print(line, highlight=False, soft_wrap=True)
        timed = _side_by_side(analysis)
        if not timed:
            return
        print_times(timed, list(analysis.labels.values()), analysis.slowdowns, console)
        for line in _computing_lines(analysis.run):
            console.print(line, highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return times, slow-downs and bytes."""
        counts = analysis.run.bytes
        totals: dict[str, Any] = {}
        for name in ("asked_bytes", "delivered_bytes", "pairs_wrong", "rail_port_bytes", "rail_expected_bytes"):
            totals[name] = sum(map(attrgetter(name), counts))
        cross_rail: dict[str, dict[str, int]] = {}
        for count in counts:
            label = analysis.labels.get((count.fabric, count.policy), count.fabric)
            cross_rail.setdefault(label, {})[workload_label(count.interval)] = count.cross_rail_bytes
        waiting = list(waiting_lines(analysis))
        return {
            "times": [row.as_dict() for row in analysis.times],
            "computing": list(_computing_lines(analysis.run)),
            "slowdown": slowdowns_table(analysis.slowdowns).to_dicts(),
            **({"waiting": waiting} if waiting else {}),
            "bytes": {**totals, "cross_rail_bytes": cross_rail},
        }


def waiting_lines(analysis: Analysis) -> Iterator[str]:
    """Yield a sentence for each communicator that waited until the time limit, then the remedy."""
    waited_s: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for wait in analysis.run.rows(WAITS):
        fabric = analysis.labels.get((wait.fabric, wait.policy), wait.fabric)
        waited_s[f"{workload_label(wait.interval)} on {fabric}", wait.line].append(wait.waited_s)
    for (where, line), times_s in waited_s.items():
        yield f"{where}, ended by its time limit after {fmt.seconds(median(times_s))}: {line}"
    if waited_s:
        yield REMEDY


def _side_by_side(analysis: Analysis) -> tuple[Row, ...]:
    """Return times of fabrics side by side; none where policies ran in turn, which have tables of their own."""
    if policies_in_turn(analysis.run) or not analysis.run.fabrics:
        return ()
    return analysis.times


def _all_to_all_slowdowns(analysis: Analysis) -> list[Slowdown]:
    """Return the slow-downs that Rail-only IV-B is about; none where times aren't shown side by side."""
    if not _side_by_side(analysis):
        return []
    return [slowdown for slowdown in analysis.slowdowns if slowdown.is_all_to_all]


def _is_headline(row: Row) -> bool:
    """Return True for a whole workload, and for a phase of a kind of traffic that is a headline (not TP, PP or DP)."""
    if not row.phase:
        return True
    return any(traffic_kind(kind).is_headline for kind in row.kinds)


def _cards_of(row: Row) -> Iterator[Card]:
    """Yield a card for each fabric with the time of a whole workload."""
    for fabric, spread in row.by_fabric.items():
        theory = ""
        if spread.predicted:
            theory = f"theory {fmt.seconds(spread.predicted)}"
            if spread.displayed_ratio is not None:
                theory += f", measured / theory {fmt.ratio(spread.displayed_ratio)}"
        yield Card(
            f"{row.workload} on {fabric}",
            fmt.seconds(spread.median),
            theory,
            spread_text(spread.values, fmt.seconds),
            spread.verdict,
        )


def _difference_spread(slowdown: Slowdown) -> str:
    """Return between which values the repeats are, each repeat of one fabric over each of the other."""
    slow = slowdown.row.by_fabric[slowdown.rail_only].values
    fast = slowdown.row.by_fabric[slowdown.rail_optimized].values
    repeats = min(len(slow), len(fast))
    if repeats == 1:
        return SPREAD_UNKNOWN
    return f"{fmt.change(min(slow) / max(fast))} to {fmt.change(max(slow) / min(fast))}, {repeats} runs"


def _slowdown_sentence(slowdown: Slowdown) -> str:
    """Return how much longer an all-to-all takes on rail-only: as measured, by the formula, and by nominal rates."""
    name = row_name(slowdown.row)
    if slowdown.not_compared:
        fabrics = f"{slowdown.rail_only} and {slowdown.rail_optimized}"
        return f"{name}: {fabrics} are not compared, since {slowdown.not_compared}."
    direction = "longer" if slowdown.measured >= 1 else "shorter"
    verdict = ""
    if slowdown.verdict != "ok":
        verdict = f": {slowdown.verdict}"
    sentence = Markup(
        "{} on {}: {} {} than on {} as measured, {} by the formula (Eq. 3 / Eq. 2, exact for this grid), "
        "{} by the nominal C<sub>S</sub>/C<sub>F</sub>{}."
    )
    return sentence.format(
        name,
        slowdown.rail_only,
        fmt.percent(abs(slowdown.measured - 1)),
        direction,
        slowdown.rail_optimized,
        fmt.change(slowdown.predicted),
        fmt.percent(slowdown.nominal),
        verdict,
    )


def _computing_lines(run: Run) -> Iterator[str]:
    """Yield a line for each workload that keeps a part of its computing."""
    compared = [(fabric.label, baseline.label) for fabric, baseline in pairs(run)]
    return computing_lines(run.scale, compared)


def _plane_sentences(run: Run) -> Iterator[str]:
    """Yield a sentence for each fabric that hashes connections to several planes."""
    for fabric in run.fabrics:
        # the kind may be of a plugin that isn't loaded
        if fabric.kind not in FABRIC_KINDS:
            continue
        kind = FABRIC_KINDS[fabric.kind]
        planes = len(kind.carrying(kind.all_planes))
        if planes > 1:
            yield (
                f"{fabric.label}: each connection is hashed to one of {planes} planes, at 1/{planes} of the rail's "
                "rate. Predicted times are means over random hashes; one run has one of them, and varies around these."
            )
