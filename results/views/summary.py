"""The run in short: summary.json, and one screen in the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from railyard.results.analysis import replacements
from railyard.results.analysis.aggregate import Row, Slowdown, Spread
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.checks import Check
from railyard.results.runs.records import ByteCheck
from railyard.results.theory import spine_condition
from railyard.results.views import allreduce, recovery_terminal, spine_condition_tables
from railyard.results.views import format as fmt
from railyard.results.views.format import workload_label
from railyard.results.views.recovery_summary import recovery_dicts
from railyard.results.views.recovery_text import missed_targets
from railyard.results.views.steering_tables import policies_table
from railyard.results.views.terminal import Column, fit_to_width

_COLOUR: Final = {"ok": "green", "degraded": "yellow", "invalid": "red"}
_MAX_TIME_ROWS: Final = 7  # as many as leave room for the rest on a screen of 40 lines
_MAX_SIDE_BY_SIDE: Final = 2  # fabrics that the table of times sets side by side
_MAX_SLOWDOWN_LINES: Final = 2
_MAX_POLICY_ROWS: Final = 20
_MAX_GRID_ROWS: Final = 27
_MAX_REASONS: Final = 3


def summarise(analysis: Analysis) -> dict[str, Any]:
    """The content of summary.json: verdict, reasons, checks and headline figures. Times in s, rates in bit/s."""
    run, judgement = analysis.run, analysis.judgement
    return {
        "name": run.name,
        "title": run.spec.get("title", run.name),
        "started_utc": run.started_utc,
        "duration_s": run.duration_s,
        "seed": run.spec.get("seed"),
        "interrupted": run.interrupted,
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
        "findings": [finding.as_dict() for finding in judgement.deviations],
        "intervals": [{**interval.as_dict(), "verdict": verdict} for interval, verdict in judgement.intervals.items()],
        "passed": analysis.passed,
        "checks": [check.as_dict() for check in analysis.checks],
        "targets_missed": missed_targets(analysis.target_outcomes),
        "headline": {
            "fabrics": list(analysis.labels.values()),
            "times": [_time(row) for row in analysis.times],
            "slowdown": [_slowdown(s) for s in analysis.slowdowns],
            "steering": [row.as_dict() for group in analysis.policy_rows.values() for row in group],
            "spine_condition": spine_condition.as_dict(analysis.cells) if analysis.cells else None,
            **recovery_dicts(analysis),
            "replacements": [row.as_dict() for row in analysis.replacement_rows],
            "heartbeats": _heartbeats(analysis.heartbeat_rows),
            "bytes": _bytes(run.bytes, analysis.labels),
            "targets": [outcome.as_dict() for outcome in analysis.performance],
            "skipped": [asdict(policy) for policy in analysis.allreduce.skipped],
        },
    }


def _time(row: Row) -> dict[str, Any]:
    fabrics = {name: _spread(spread) for name, spread in row.by_fabric.items()}
    what = {"workload": row.workload, "phase": row.phase, "metric": row.metric, "unit": row.unit}
    return {**what, "kinds": list(row.kinds), "fabrics": fabrics}


def _spread(spread: Spread) -> dict[str, Any]:
    extremes = {"min": min(spread.values), "max": max(spread.values), "repeats": len(spread.values)}
    return {"median": spread.median, **extremes, "predicted": spread.predicted, "ratio": spread.ratio}


def _slowdown(s: Slowdown) -> dict[str, Any]:
    return {
        "workload": s.workload,
        "phase": s.phase,
        "metric": s.metric,
        "kinds": list(s.kinds),
        "of": s.rail_only,
        "over": s.rail_optimized,
        "measured": s.measured,
        "predicted": s.predicted,
        "nominal_cs_over_cf": s.nominal,
    }


def _heartbeats(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """What watching costs: fabric -> figure -> median."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        for fabric, spread in row.by_fabric.items():
            found.setdefault(fabric, {})[row.metric] = spread.median
    return found


def _bytes(rows: Iterable[ByteCheck], names: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    all_checks = list(rows)
    columns = ("asked_bytes", "delivered_bytes", "pairs_wrong", "rail_port_bytes", "rail_expected_bytes")
    cross_rail_bytes_by_fabric: dict[str, dict[str, int]] = {}
    for row in all_checks:
        label = names.get((row.fabric, row.policy), row.fabric)
        cross_rail_bytes_by_fabric.setdefault(label, {})[workload_label(row.interval)] = row.cross_rail_bytes
    return {
        **{n: sum(getattr(r, n) for r in all_checks) for n in columns},
        "cross_rail_bytes": cross_rail_bytes_by_fabric,
    }


def print_summary(analysis: Analysis, console: Console) -> None:
    """The same on one screen of 100 columns by 40 lines; what doesn't fit is in report.html."""
    run, judgement = analysis.run, analysis.judgement
    state = " [bold red]interrupted[/]" if run.interrupted else ""
    verdict = f"[bold {_COLOUR[judgement.verdict]}]{judgement.verdict}[/]"
    console.print(f"[bold]{run.name}[/]{state}  fidelity {verdict}  {fmt.seconds(run.duration_s)}", highlight=False)
    for reason in judgement.reasons[:_MAX_REASONS]:
        console.print(Text(f"  {reason}"), no_wrap=True, overflow="ellipsis", highlight=False)
    if len(judgement.reasons) > _MAX_REASONS:
        console.print(f"  … and {len(judgement.reasons) - _MAX_REASONS} more", highlight=False)
    if run.rails:
        allreduce.print_tables(analysis, console)
    elif run.is_steered:
        _print_policies(analysis, console)
    else:
        _print_times(analysis, console)
    _print_recovery(analysis, console)
    for check in analysis.checks:
        console.print(_check_line(check), no_wrap=True, overflow="ellipsis", highlight=False)
    if line := recovery_terminal.missed_targets_line(analysis.target_outcomes):
        console.print(line, no_wrap=True, overflow="ellipsis", highlight=False)


def _print_recovery(analysis: Analysis, console: Console) -> None:
    """Every fault: the rows are what such a run is for, so none is left to the report."""
    if faults := analysis.recovery_rows:
        console.print(recovery_terminal.recovery_table(console, faults, analysis.judgement))
    if analysis.replacement_rows:
        console.print(replacements.terminal_table(console, analysis.replacement_rows))
    for line in recovery_terminal.outcome_lines(analysis.target_outcomes):
        console.print(line, highlight=False)
    for line in recovery_terminal.script_lines(analysis.script_rows):
        console.print(line, highlight=False)
    for fabric, figures in _heartbeats(analysis.heartbeat_rows).items():
        units = {row.metric: row.unit for row in analysis.heartbeat_rows}
        figures_text = ", ".join(_non_breaking(f"{k} {fmt.quantity(v, units[k])}") for k, v in figures.items())
        console.print(Text(f"heartbeats on {fabric}: {figures_text}", style="dim"), highlight=False)


def _non_breaking(figure: str) -> str:
    """Not to be broken over two lines."""
    return figure.replace("_", " ").replace(" ", "\u00a0")


def _print_times(analysis: Analysis, console: Console) -> None:
    slow = analysis.slowdowns
    if measured := analysis.times:
        console.print(_times_table(console, measured, list(analysis.labels.values()), slow))
    for one in [s for s in slow if s.is_all_to_all][:_MAX_SLOWDOWN_LINES]:
        console.print(_slow_line(one), highlight=False)


def _print_policies(analysis: Analysis, console: Console) -> None:
    """A table for each fabric and workload, as many as there is room for; the formulas know nothing of background.

    Where the papers' comparison was made, that in their place.
    """
    if found := analysis.cells:
        console.print(spine_condition_tables.terminal_table(console, found, _MAX_GRID_ROWS))
        console.print(spine_condition_tables.finding(found), highlight=False)
        return
    rows_left, places = _MAX_POLICY_ROWS, analysis.policy_rows
    for number, ((fabric, work), rows) in enumerate(places.items()):
        if rows_left <= 0:
            console.print(f"… {len(places) - number} more such tables in report.html", highlight=False)
            return
        title = f"{workload_label(work)} on {fabric}, by policy (m/p: measured over predicted)"
        console.print(policies_table(rows[:rows_left], title, len(rows) - rows_left).to_terminal(console))
        rows_left -= len(rows)


def _slow_line(s: Slowdown) -> Text:
    what = f"{s.workload} {s.phase}".strip()
    formula = f", {fmt.change(s.predicted)} Eq. 3/Eq. 2, nominal C_S/C_F {fmt.percent(s.nominal)}"
    measured = (f"{fmt.change(s.measured)} measured", "bold")
    return Text.assemble(f"{what}: {s.rail_only} slower by ", measured, (formula, "dim"))


def _check_line(check: Check) -> Text:
    mark = Text("✓ ", style="green") if check.passed else Text("✗ ", style="bold red")
    return Text.assemble(mark, check.name, (f": {check.detail}", "dim"))


def _times_table(console: Console, rows: Sequence[Row], fabrics: Sequence[str], slow: Sequence[Slowdown]) -> Table:
    if len(fabrics) > _MAX_SIDE_BY_SIDE:
        return _times_table_by_fabric(console, rows, fabrics)
    shown = _whole_workloads_first(rows)[:_MAX_TIME_ROWS]
    columns = [Column("workload", tuple(f"{r.workload} {r.phase}".strip() for r in shown), text=True)]
    for fabric in fabrics:
        spreads = [r.by_fabric.get(fabric) for r in shown]
        columns.append(Column(fabric, tuple(fmt.seconds(s.median) if s else fmt.NOTHING for s in spreads)))
        ratios = tuple(fmt.ratio(s.ratio) if s else fmt.NOTHING for s in spreads)
        columns.append(Column("m/p", ratios, drop=1, style="dim"))
    if len({(s.rail_only, s.rail_optimized) for s in slow}) == 1:
        columns += _slowdown_columns([(r.workload, r.phase, r.metric) for r in shown], slow)
    return fit_to_width(console, "Time (m/p: measured over predicted)", columns, len(rows) - len(shown))


def _whole_workloads_first(rows: Sequence[Row]) -> list[Row]:
    """If some must be left to the report, then phases rather than wholes."""
    return sorted(rows, key=lambda row: bool(row.phase)) if len(rows) > _MAX_TIME_ROWS else list(rows)


def _times_table_by_fabric(console: Console, rows: Sequence[Row], fabrics: Sequence[str]) -> Table:
    """A line a fabric, where there are too many to stand beside each other: a sweep."""
    whole_workloads = [row for row in rows if not row.phase] or list(rows)
    lines = [
        (row, fabric, row.by_fabric[fabric]) for row in whole_workloads for fabric in fabrics if fabric in row.by_fabric
    ]
    shown = lines[:_MAX_TIME_ROWS]
    predicted = tuple(fmt.NOTHING if s.predicted is None else fmt.seconds(s.predicted) for _, _, s in shown)
    columns = [
        Column("workload", tuple(f"{r.workload} {r.phase}".strip() for r, _, _ in shown), text=True),
        Column("fabric", tuple(fabric for _, fabric, _ in shown), text=True),
        Column("measured", tuple(fmt.seconds(s.median) for _, _, s in shown)),
        Column("predicted", predicted),
        Column("m/p", tuple(fmt.ratio(s.ratio) for _, _, s in shown)),
    ]
    more = sum(len(row.by_fabric) for row in rows) - len(shown)
    return fit_to_width(console, "Time (m/p: measured over predicted)", columns, more)


def _slowdown_columns(rows: Sequence[tuple[str, str, str]], slow: Sequence[Slowdown]) -> tuple[Column, Column]:
    known = {(s.workload, s.phase, s.metric): s for s in slow}
    found = [known.get(row) for row in rows]
    measured = tuple(fmt.change(s.measured) if s else fmt.NOTHING for s in found)
    formula = tuple(fmt.change(s.predicted) if s else fmt.NOTHING for s in found)
    return Column("difference", measured), Column("formula", formula, drop=2, style="dim")
