"""Failures in the report: recovery from each fault beside its targets, its timeline, and the cost of heartbeats."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import inf
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.text import Text

from railyard.core.records import IntervalId, Recovered, Recovery
from railyard.experiments.measures.faults import analysis as stats
from railyard.experiments.measures.faults import plot as recovery
from railyard.experiments.measures.faults import targets as goals
from railyard.experiments.measures.faults.analysis import RecoveryRow, Side, verdict
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.experiments.measures.faults.states import FirstPacket
from railyard.experiments.measures.faults.targets import PUBLISHED_SYSTEMS, Published, times_slower
from railyard.experiments.measures.faults.texts import (
    first_packet_text,
    goodput_text,
    missing_first_packet,
    row_goodput_text,
)
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Row
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.repeats import Figure, median_and_p95, median_p95_ms
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Target, measured_targets
from railyard.results.runs.records import GoodputTrace
from railyard.results.views.report import SPREAD_UNKNOWN, Card, Section
from railyard.results.views.table import Column, Table, text
from railyard.results.views.targets import MARKS, targets_table

_MS: Final = "\u00a0ms"
_FIRST_PACKET: Final = "1st packet ms"
CONTROLLER_STEPS: Final = tuple(
    Column(title, name, fmt.milliseconds)
    for title, name in (("detected", "detect_ms"), ("decided", "decided_ms"), ("installed", "reroute_ms"))
)
"""Columns of the controller's steps after a fault."""


class FailuresSection(Section):
    """Recovery from faults that were injected alone."""

    title = "Failures"
    order = 60
    template = "faults.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with faults that came alone, or targets of recovery."""
        is_traced = any(not (t.script or t.link) for t in analysis.run.rows(GOODPUT))
        return bool(stats.recovery_rows(analysis) or goals.shown_outcomes(analysis) or is_traced)

    def cards(self, analysis: Analysis) -> Iterable[Card]:
        """Yield the first packet after each fault, on the slower side."""
        for row in [r for r in stats.recovery_rows(analysis) if r.reroute == "on" and not missing_reason(r)]:
            line = max(lines_of(row, both_sides=False), key=lambda x: inf if x.first.median is None else x.first.median)
            least = line.first.least
            most = line.first.most
            spread = f"{fmt.milliseconds(least)} to {fmt.milliseconds(most)}, {line.first.n} runs"
            yield Card(
                f"{row.name} on {row.fabric}: first packet{f', {line.side} side' if line.side else ''}",
                fmt.milliseconds(line.first.median),
                f"target ≤ {line.target.limits_text}" if line.target else "",
                spread if line.first.n > 1 and least is not None else SPREAD_UNKNOWN,
                verdict(row.repeats, analysis.judgement),
            )

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the tables of all faults, and a part for each kind of fault."""
        rows = stats.recovery_rows(analysis)
        return {
            "first_packets": first_packets_table(rows, analysis.judgement),
            "steps": steps_table(rows),
            "targets": targets_table(goals.shown_outcomes(analysis)),
            "published": published_table(rows),
            "published_sources": [other.source for other in PUBLISHED_SYSTEMS],
            "failures": _failures(rows, _traces_of_faults(analysis)),
            "heartbeats": heartbeats_table(stats.heartbeat_rows(analysis)),
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print every fault: the rows are what such a run is for, so none is left to the report."""
        if stats.recovery_rows(analysis):
            console.print(terminal_table(stats.recovery_rows(analysis), analysis.judgement).to_terminal())
        # a line for each target other than first packets and checks, with every fabric on which it was measured
        shown_above = goals.first_packet_targets().values()
        shown = (o for o in goals.shown_outcomes(analysis) if o.samples and o.target not in shown_above)
        for target, group in groupby((o for o in shown if not o.target.claim), key=lambda o: o.target):
            line = Text(f"{target.quantity} (≤ {target.limits_text}):")
            for o in group:
                mark, worst = (("✓", "green"), "") if o.met else (("✗", "bold red"), f" ({o.worst.of})")
                where = (f" {o.fabric} (n={len(o.values)})", "dim")
                line.append(" ").append_text(Text.assemble(mark, f" {o.text}{worst}", where))
            console.print(line, highlight=False)
        for fabric, figures in _heartbeat_medians(stats.heartbeat_rows(analysis)).items():
            units = {row.metric: row.unit for row in stats.heartbeat_rows(analysis)}
            parts = (f"{name} {fmt.quantity(value, units[name])}" for name, value in figures.items())
            figures_text = ", ".join(part.replace("_", " ").replace(" ", "\u00a0") for part in parts)
            console.print(Text(f"heartbeats on {fabric}: {figures_text}", style="dim"), highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return the statistics of each fault, all targets, and the cost of heartbeats."""
        rows: list[dict[str, Any]] = []
        outcomes: Sequence[Outcome] = ()
        if analysis.run.rows(RECOVERIES) or measured_targets(analysis.outcomes):
            outcomes = analysis.outcomes
        totals = ("lost_bytes", "probes_lost", "probes_lost_after_repair", "above_max_flow", "connections_lost")
        for row in stats.recovery_rows(analysis):
            first = row.steps["first_packet_ms"].median
            rows.append({
                **{name: getattr(row, name) for name in ("fabric", "fault", "target", "reroute")},
                "verdict": verdict(row.repeats, analysis.judgement),
                "repeats": len(row.repeats),
                "recovered": row.recovered(Recovered.YES),
                "not_recovered": row.recovered(Recovered.NO),
                "unaffected": row.unaffected,
                "first_packet": missing_first_packet(row) or FirstPacket.RETURNED,
                "unprobed": row.unprobed,
                **{step: found.as_dict() for step, found in row.steps.items()},
                **{f"{step}_did_not_fall": row.unfallen(step) for step in stats.GOODPUT_STEPS},
                **{f"{side}_side_ms": found.as_dict() for side, found in row.sides.items()},
                **{name: row.total(name) for name in totals},
                "published_times_slower": {system.name: times_slower(system, first) for system in PUBLISHED_SYSTEMS},
            })  # fmt: skip
        return {
            "recovery": rows,
            "recovery_targets": [outcome.as_dict() for outcome in outcomes],
            "heartbeats": _heartbeat_medians(stats.heartbeat_rows(analysis)),
        }


def _traces_of_faults(analysis: Analysis) -> list[GoodputTrace]:
    """Return the traces of goodput around faults that came alone."""
    return [trace for trace in analysis.run.rows(GOODPUT) if not (trace.script or trace.link)]


def _failures(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace]) -> list[dict[str, Any]]:
    """Return a part of the section for each kind of fault, with all its fabrics.

    Where a fabric had several targets of a kind, each has a part of its own.
    """
    repeats = [repeat for row in rows for repeat in row.repeats]
    several = stats.with_several_targets([*repeats, *traces])
    traces_by_name: dict[str, list[GoodputTrace]] = {row.name: [] for row in rows}
    for trace in traces:
        name = stats.fault_name(trace.fault, trace.target, (trace.fabric, trace.fault) in several)
        traces_by_name.setdefault(name, []).append(trace)
    failures: list[dict[str, Any]] = []
    for name, fault_traces in traces_by_name.items():
        fault_rows = [row for row in rows if row.name == name]
        targets = ", ".join(dict.fromkeys(row.target for row in fault_rows if not row.is_one_of_several))
        plot = recovery.recovery(fault_rows, fault_traces, name)
        if failures:
            plot = replace(plot, caption="")  # it is the same for all
        failures.append({"name": name, "targets": targets, "plot": plot, "repeats": repeats_table(fault_rows)})
    return failures


class Line(NamedTuple):
    """A line of a table: a fault's first packets on a side (None: either), and their target.

    `judged`: those of intervals in which the machine was not disturbed; None if there are none.
    """

    row: RecoveryRow
    side: Side | None
    first: Figure
    judged: Figure | None
    target: Target | None
    is_first_line: bool  # the first of its row's lines

    @property
    def met(self) -> bool | None:
        """Result of the target; None where there is none, or nothing that it can be judged by."""
        return not self.target.missed(self.judged) if self.target and self.judged else None

    @property
    def result(self) -> str:
        """The result in words."""
        return {True: "met", False: "not met", None: "not judged" if self.target else ""}[self.met]


def lines_of(row: RecoveryRow, both_sides: bool, disturbed: Collection[IntervalId] = ()) -> list[Line]:
    """Return a line a side, if asked for `both_sides` or each has a target of its own; else one for the slower.

    First packets in `disturbed` intervals are not judged.
    """
    judged = replace(row, repeats=tuple(r for r in row.repeats if r.interval not in disturbed))
    target_of = partial(goals.first_packet_target, row.fault)
    has_target = row.reroute == "on" and not missing_reason(row)
    lines: list[Line] = []
    for side in _shown_sides(row, both_sides):
        first = _first_packets(row, side)
        assert first is not None
        target = target_of(side) if has_target else None
        lines.append(Line(row, side, first, _first_packets(judged, side), target, not lines))
    return lines


def _shown_sides(row: RecoveryRow, both_sides: bool) -> Sequence[Side | None]:
    """Return the sides that have lines of their own; None for a line of either."""
    has_targets_by_side = (
        goals.first_packet_target(row.fault, None) is None and goals.first_packet_target(row.fault, "far") is not None
    )
    probed = [side for side in stats.SIDES if side in row.sides]
    if probed and (has_targets_by_side or (both_sides and len(probed) > 1)):
        return probed
    return [None]


def _first_packets(row: RecoveryRow, side: Side | None) -> Figure | None:
    """Return the statistics of first packets on a side; None without repeats."""
    if not row.repeats:
        return None
    return row.sides.get(side) if side else row.steps["first_packet_ms"]


def missing_reason(row: RecoveryRow) -> str:
    """Return why a fault has no first packets to speak of; empty if it has."""
    state = missing_first_packet(row)
    return state if state in (FirstPacket.NOT_PROBED, FirstPacket.NONE_LOST) else ""


def first_packets_table(rows: Sequence[RecoveryRow], judgement: Judgement) -> Table:
    """Return a row a fault, fabric, rerouting and side: when packets flowed again, beside the target."""
    columns = (
        text("fault", lambda x: x.row.name),
        text("fabric", lambda x: x.row.fabric),
        text("reroute", lambda x: x.row.reroute),
        text("side", lambda x: x.side or ""),
        text("fidelity", lambda x: verdict(x.row.repeats, judgement)),
        Column("n", lambda x: x.first.n),
        Column("median", lambda x: missing_first_packet(x.row) or median_and_p95(x.first)[0]),
        Column("p95", lambda x: fmt.NOTHING if missing_first_packet(x.row) else median_and_p95(x.first)[1]),
        Column("target", lambda x: x.target.limits_text if x.target else None),
        text("is", "result"),
    )
    lines = [line for row in rows for line in lines_of(row, True, judgement.disturbed)]
    return Table(columns, lines, is_never_bad=lambda x: x.row.reroute == "on")


def steps_table(rows: Sequence[RecoveryRow]) -> Table:
    """Return a row a fault, fabric and rerouting: the controller's steps, goodput, the return and the cost.

    Dashes where no other GPU was affected, so that there was nothing to recover.
    """

    def median(title: str, step: str) -> Column:
        def cell(row: RecoveryRow) -> str:
            ms = row.steps[step].median
            has_no_step = missing_reason(row) or (row.reroute == "off" and step != "detect_ms")
            return fmt.NOTHING if ms is None and has_no_step else fmt.milliseconds(ms)

        return Column(title, cell, group="medians")

    def goodput(title: str, step: str) -> Column:
        return Column(title, lambda row: row_goodput_text(row, step), group="goodput in ms, median / p95")

    def recovered(row: RecoveryRow) -> str:
        states = {r.recovered for r in row.repeats}
        if len(states) == 1 and not states & {Recovered.YES, Recovered.NO}:
            return states.pop()
        return f"{row.recovered(Recovered.YES)} of {len(row.repeats)}"

    def withdrawn(row: RecoveryRow) -> str:
        found = row.steps["primary_path_ms"]
        return fmt.NOTHING if row.reroute == "off" or found.median == 0 else median_p95_ms(found)

    columns = (
        *(text("fault", "name"), text("fabric"), text("reroute")),
        Column("recovered", recovered),
        *(median("detected", "detect_ms"), median("decided", "decided_ms"), median("installed", "reroute_ms")),
        *(goodput("back to 95%", "goodput_ms"), goodput("after repair", "goodput_after_repair_ms")),
        Column("detours withdrawn", withdrawn, group="after repair, ms"),
        *_costs(lambda row, column: row.total(column), group="in all repeats"),
    )
    return Table(columns, rows, is_never_bad=lambda row: row.reroute == "on")


def _costs(total: Callable[[Any, str], int], group: str = "") -> tuple[Column, ...]:
    """Return the columns of what was lost: `total` of a row and a column of recovery.csv."""
    return (
        Column("probes lost", lambda r: total(r, "probes_lost"), "{:,}".format, group=group),
        Column("after repair", lambda r: total(r, "probes_lost_after_repair"), "{:,}".format, group=group),
        Column("bytes lost", lambda r: total(r, "lost_bytes"), fmt.size, group=group),
        Column("conns lost", lambda r: total(r, "connections_lost"), group=group),
    )


def repeats_table(rows: Iterable[RecoveryRow]) -> Table:
    """Return every repeat of one fault."""
    fabrics = {r: row.fabric for row in rows for r in row.repeats}

    def side(title: str, name: Side) -> Column:
        def cell(r: Recovery) -> str:
            is_known = stats.pairs_probed(r, name) and not r.is_unaffected
            return fmt.milliseconds(getattr(r, f"{name}_side_ms")) if is_known else fmt.NOTHING

        return Column(title, cell)

    def goodput(title: str, step: str) -> Column:
        return Column(title, lambda r: goodput_text(r, step))

    columns = (
        *(text("fabric", fabrics.__getitem__), text("reroute"), text("target")),
        Column("repeat"),
        *CONTROLLER_STEPS,
        *(Column("first packet", first_packet_text), side("source side", "source"), side("far side", "far")),
        *(goodput("goodput", "goodput_ms"), goodput("after repair", "goodput_after_repair_ms")),
        Column("detours withdrawn", lambda r: None if r.reroute == "off" else fmt.milliseconds(r.primary_path_ms)),
        *_costs(getattr),
    )
    return Table(columns, list(fabrics), is_never_bad=lambda r: r.reroute == "on")


def published_table(rows: Iterable[RecoveryRow]) -> Table:
    """Compare faults that affected other GPUs, with rerouting on, with published systems."""

    def times(system: Published) -> Column:
        def cell(row: RecoveryRow) -> str:
            ratio = times_slower(system, row.steps["first_packet_ms"].median)
            return fmt.NOTHING if ratio is None else f"{ratio:,.1f} times"

        return Column(f"{system.name}'s {system.ms:g} ms is", cell)

    columns = (
        *(text("fault", "name"), text("fabric")),
        Column("n", lambda r: r.steps["first_packet_ms"].n),
        Column("first packet", lambda r: median_p95_ms(r.steps["first_packet_ms"], _MS)),
        Column("goodput back", lambda r: row_goodput_text(r, "goodput_ms", partial(median_p95_ms, unit=_MS))),
        *map(times, PUBLISHED_SYSTEMS),
    )
    shown = [r for r in rows if r.reroute == "on" and r.steps["first_packet_ms"].median != 0 and not r.unprobed]
    return Table(columns, shown)


def heartbeats_table(rows: Iterable[Row]) -> Table:
    """Return the cost of heartbeats: a row for each figure and fabric."""
    columns = (
        *(text("figure", lambda x: x[0].metric.replace("_", " ")), text("fabric", lambda x: x[1])),
        Column("median", lambda x: fmt.quantity(x[2].median, x[0].unit)),
        Column("n", lambda x: len(x[2].values)),
    )
    return Table(columns, [(row, fabric, spread) for row in rows for fabric, spread in row.by_fabric.items()])


def _heartbeat_medians(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        for fabric, spread in row.by_fabric.items():
            found.setdefault(fabric, {})[row.metric] = spread.median
    return found


class _FaultLine(NamedTuple):
    """A fault on a fabric: its row (with rerouting, if there is one), its line with rerouting, and its row without."""

    row: RecoveryRow
    on: Line | None
    off: RecoveryRow | None


def terminal_table(rows: Sequence[RecoveryRow], judgement: Judgement) -> Table:
    """Return the table: with rerouting the first packet beside its target, and the steps; without it goodput alone."""

    def on(show: Callable[[Line], str]) -> Callable[[_FaultLine], str]:
        return lambda x: show(x.on) if x.on else fmt.NOTHING

    def median_ms(figure: Figure) -> str:
        return fmt.milliseconds(figure.median)

    def step(title: str, name: str) -> Column:
        def cell(line: Line) -> str:  # once for both sides
            if not line.is_first_line:
                return ""
            if name in stats.GOODPUT_STEPS:
                return row_goodput_text(line.row, name, median_ms)
            ms = line.row.steps[name].median
            return fmt.NOTHING if missing_reason(line.row) and not ms else fmt.milliseconds(ms)

        return Column(title, on(cell))

    def first_packet(line: Line) -> str:
        if state := missing_first_packet(line.row):
            return state
        # 0 in every repeat: no probe of this side was lost
        return FirstPacket.NONE_LOST if line.first.most == 0 else median_p95_ms(line.first)

    def limits(line: Line) -> str:
        return line.target.limits_text.removesuffix(_MS) if line.target else fmt.NOTHING

    def without(x: _FaultLine) -> str:
        return row_goodput_text(x.off, "goodput_ms", median_ms) if x.off else fmt.NOTHING

    def fidelity(x: _FaultLine) -> str:
        found = verdict(x.row.repeats, judgement)
        return "" if found == "ok" else found

    columns = (
        text("fault", lambda x: f"{x.row.name}, {x.on.side}" if x.on and x.on.side else x.row.name),
        text("fabric", lambda x: x.row.fabric),
        Column("n", lambda x: len(x.row.repeats)),
        *(step("detected", "detect_ms"), step("installed", "reroute_ms")),
        Column(_FIRST_PACKET, on(first_packet)),
        Column("target ms", on(limits), together="target"),
        Column("", lambda x: MARKS[x.on.met] if x.on and x.on.target else "", together="target"),
        step("goodput", "goodput_ms"),
        Column(
            "conns\nlost",
            on(lambda line: str(line.row.total("connections_lost")) if line.is_first_line else ""),
        ),
        Column("no reroute", without),
        Column("fidelity", fidelity),
    )
    by_fault: dict[tuple[str, str], dict[str, RecoveryRow]] = {}
    for row in rows:
        by_fault.setdefault((row.name, row.fabric), {})[row.reroute] = row
    lines = []
    for sides in by_fault.values():
        on_lines: list[Line | None] = [*lines_of(sides["on"], False, judgement.disturbed)] if "on" in sides else [None]
        for line in on_lines:
            off = sides.get("off") if line is None or line.is_first_line else None
            lines.append(_FaultLine(line.row if line else sides["off"], line, off))
    title = "Recovery from the fault (1st packet: median / p95; the rest: medians)"
    return Table(columns, lines, title).without_empty({_FIRST_PACKET} if any(x.on for x in lines) else ())
