"""Failures in the report: recovery from each fault beside its targets, its timeline, and the cost of heartbeats."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from math import inf
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.text import Text

from railyard.core.records import Recovered
from railyard.experiments.measures.faults import analysis as stats
from railyard.experiments.measures.faults import plot as recovery
from railyard.experiments.measures.faults import targets as goals
from railyard.experiments.measures.faults.analysis import RecoveryRow, verdict
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.experiments.measures.faults.states import FirstPacket
from railyard.experiments.measures.faults.tables import (
    Line,
    first_packets_table,
    heartbeats_table,
    lines_of,
    missing_reason,
    published_table,
    repeats_table,
    steps_table,
    terminal_table,
)
from railyard.experiments.measures.faults.targets import PUBLISHED_SYSTEMS, times_slower
from railyard.experiments.measures.faults.texts import missing_first_packet
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Row
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, measured_targets
from railyard.results.runs.records import GoodputTrace
from railyard.results.views.report import SPREAD_UNKNOWN, Card, Section
from railyard.results.views.targets import targets_table


class FailuresSection(Section):
    """Recovery from faults that were injected alone."""

    title = "Failures"
    order = 60
    template = "faults.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with faults that came alone, or targets of recovery."""
        is_traced = bool(_traces_of_faults(analysis))
        return bool(stats.recovery_rows(analysis) or goals.shown_outcomes(analysis) or is_traced)

    def cards(self, analysis: Analysis) -> Iterable[Card]:
        """Yield the first packet after each fault, on the slower side."""
        for row in stats.recovery_rows(analysis):
            if row.reroute != "on" or missing_reason(row):
                continue
            line = max(lines_of(row, both_sides=False), key=_median_ms)
            title = f"{row.name} on {row.fabric}: first packet"
            if line.side:
                title += f", {line.side} side"
            target_text = ""
            if line.target:
                target_text = f"target ≤ {line.target.limits_text}"
            spread = SPREAD_UNKNOWN
            if line.first.n > 1 and line.first.least is not None:
                span = f"{fmt.milliseconds(line.first.least)} to {fmt.milliseconds(line.first.most)}"
                spread = f"{span}, {line.first.n} runs"
            median_text = fmt.milliseconds(line.first.median)
            yield Card(title, median_text, target_text, spread, verdict(row.repeats, analysis.judgement))

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the tables of all faults, and a part for each kind of fault."""
        rows = stats.recovery_rows(analysis)
        return {
            "first_packets": first_packets_table(rows, analysis.judgement),
            "steps": steps_table(rows),
            "targets": targets_table(goals.shown_outcomes(analysis)),
            "published": published_table(rows),
            "published_sources": [system.source for system in PUBLISHED_SYSTEMS],
            "failures": _failures(rows, _traces_of_faults(analysis)),
            "heartbeats": heartbeats_table(stats.heartbeat_rows(analysis)),
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print every fault: the rows are what such a run is for, so none is left to the report."""
        if stats.recovery_rows(analysis):
            console.print(terminal_table(stats.recovery_rows(analysis), analysis.judgement).to_terminal())
        for target, group in groupby(_outcomes_below(analysis), key=attrgetter("target")):
            line = Text(f"{target.quantity} (≤ {target.limits_text}):")
            for outcome in group:
                line.append(" ").append_text(_outcome_text(outcome))
            console.print(line, highlight=False)
        heartbeats = stats.heartbeat_rows(analysis)
        units = {row.metric: row.unit for row in heartbeats}
        for fabric, figures in _heartbeat_medians(heartbeats).items():
            parts: list[str] = []
            for name, value in figures.items():
                # no line may break within a figure
                part = f"{name} {fmt.quantity(value, units[name])}"
                parts.append(part.replace("_", " ").replace(" ", "\u00a0"))
            console.print(Text(f"heartbeats on {fabric}: {', '.join(parts)}", style="dim"), highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return the statistics of each fault, all targets, and the cost of heartbeats."""
        rows: list[dict[str, Any]] = []
        outcomes: Sequence[Outcome] = ()
        if analysis.run.rows(RECOVERIES) or measured_targets(analysis.outcomes):
            outcomes = analysis.outcomes
        for row in stats.recovery_rows(analysis):
            rows.append(_row_summary(row, analysis.judgement))
        return {
            "recovery": rows,
            "recovery_targets": [outcome.as_dict() for outcome in outcomes],
            "heartbeats": _heartbeat_medians(stats.heartbeat_rows(analysis)),
        }


def _median_ms(line: Line) -> float:
    """Return the median of a line's first packets; infinite if they never came."""
    if line.first.median is None:
        return inf
    return line.first.median


def _outcomes_below(analysis: Analysis) -> Iterator[Outcome]:
    """Yield the measured targets that have lines below the terminal's table: others than first packets and checks."""
    targets_in_table = goals.first_packet_targets().values()
    for outcome in goals.shown_outcomes(analysis):
        if outcome.samples and outcome.target not in targets_in_table and not outcome.target.claim:
            yield outcome


def _outcome_text(outcome: Outcome) -> Text:
    """Return a target's result on a fabric, with the interval of the worst value if it is missed."""
    where = (f" {outcome.fabric} (n={len(outcome.values)})", "dim")
    if outcome.met:
        return Text.assemble(("✓", "green"), f" {outcome.text}", where)
    return Text.assemble(("✗", "bold red"), f" {outcome.text} ({outcome.worst.of})", where)


def _row_summary(row: RecoveryRow, judgement: Judgement) -> dict[str, Any]:
    """Return the statistics of a fault as plain data."""
    summary: dict[str, Any] = {
        "fabric": row.fabric,
        "fault": row.fault,
        "target": row.target,
        "reroute": row.reroute,
        "verdict": verdict(row.repeats, judgement),
        "repeats": len(row.repeats),
        "recovered": row.recovered(Recovered.YES),
        "not_recovered": row.recovered(Recovered.NO),
        "unaffected": row.unaffected,
        "first_packet": missing_first_packet(row) or FirstPacket.RETURNED,
        "unprobed": row.unprobed,
    }
    for step, statistics in row.steps.items():
        summary[step] = statistics.as_dict()
    for step in stats.GOODPUT_STEPS:
        summary[f"{step}_did_not_fall"] = row.unfallen(step)
    for side, statistics in row.sides.items():
        summary[f"{side}_side_ms"] = statistics.as_dict()
    for column in ("lost_bytes", "probes_lost", "probes_lost_after_repair", "above_max_flow", "connections_lost"):
        summary[column] = row.total(column)
    first_ms = row.steps["first_packet_ms"].median
    slower = {system.name: times_slower(system, first_ms) for system in PUBLISHED_SYSTEMS}
    return {**summary, "published_times_slower": slower}


def _traces_of_faults(analysis: Analysis) -> list[GoodputTrace]:
    """Return the traces of goodput around faults that came alone."""
    return [trace for trace in analysis.run.rows(GOODPUT) if not (trace.script or trace.link)]


def _failures(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace]) -> list[dict[str, Any]]:
    """Return a part of the section for each kind of fault, with all its fabrics.

    Where a fabric had several targets of a kind, each has a part of its own.
    """
    repeats = chain.from_iterable(row.repeats for row in rows)
    several = stats.with_several_targets([*repeats, *traces])
    traces_by_name: dict[str, list[GoodputTrace]] = {row.name: [] for row in rows}
    for trace in traces:
        name = stats.fault_name(trace.fault, trace.target, (trace.fabric, trace.fault) in several)
        traces_by_name.setdefault(name, []).append(trace)
    failures: list[dict[str, Any]] = []
    for name, fault_traces in traces_by_name.items():
        fault_rows = [row for row in rows if row.name == name]
        # of several targets each has a part of its own, whose name has the target
        targets = dict.fromkeys(row.target for row in fault_rows if not row.is_one_of_several)
        plot = recovery.recovery(fault_rows, fault_traces, name)
        if failures:
            # the caption is the same for all figures
            plot = replace(plot, caption="")
        part = {"name": name, "targets": ", ".join(targets), "plot": plot, "repeats": repeats_table(fault_rows)}
        failures.append(part)
    return failures


def _heartbeat_medians(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    medians: dict[str, dict[str, float]] = {}
    for row in rows:
        for fabric, spread in row.by_fabric.items():
            medians.setdefault(fabric, {})[row.metric] = spread.median
    return medians
