"""Health-routing policies in the report: what each achieved, over time, and rail-only's path beside the spine's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from rich.console import Console

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.core.records import IntervalId
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Row
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.spine_condition import TIE, Cell, as_dict
from railyard.results.analysis.steering import (
    BASELINE_POLICY,
    ORACLE_POLICY,
    FabricWorkload,
    MeasurementInterval,
    PolicyRow,
)
from railyard.results.plots import steering
from railyard.results.plots import times as plots
from railyard.results.runs.records import Verdict, worst_verdict
from railyard.results.views.report import Card, Section, section, spread_text
from railyard.results.views.table import Column, Table, text

_MAX_DRAWN: Final = 6
_MAX_POLICY_ROWS: Final = 20
_MAX_GRID_ROWS: Final = 27
_BOTTLENECK_RATES: Final = "{near} is left on rail-only's path, {far} on the spine's"
_REASON_TEXT: Final = {
    "": "",
    "lowest score": f"the slowest link decides, and not the product: {_BOTTLENECK_RATES}",
    "HB rate": f"HB links have {{ratio:.3g}} times a rail's rate: {_BOTTLENECK_RATES}",
    "hops": f"hops decide where links leave as much: {_BOTTLENECK_RATES}",
    "not known": f"no rule here knows: {_BOTTLENECK_RATES}",
}


@section("comparison")
class _Comparison(Section):
    """Latency of rail-only's path and of the spine's, scene by scene (health routing, part 2)."""

    title = "Rail-only's path and the spine's"
    order = 10
    template = "comparison.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.cells)

    def cards(self, analysis: Analysis) -> list[Card]:
        agreeing = sum(c.agrees for c in analysis.cells)
        cells = len(analysis.cells)
        by_bottleneck = sum(c.by_slowest_link == c.measured for c in analysis.cells)
        theory = f"the slowest link of each path does in {by_bottleneck}"
        title = "Cells in which the papers' condition names the faster path"
        verdict = _worst(analysis.cells)
        return [Card(title, f"{agreeing} of {cells}", theory, verdict=verdict)]

    def headline(self, analysis: Analysis) -> list[str]:
        return [finding(analysis.cells)]

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        by_pair: dict[str, list[Cell]] = {}
        for cell in analysis.cells:
            by_pair.setdefault(f"{cell.src} to {cell.dst}, {cell.workload} on {cell.fabric}", []).append(cell)
        return {
            "plots": [(name, plots.spine_condition(cells, name)) for name, cells in by_pair.items()],
            "differences": [
                f"{c.scene.name}: {c.predicted} by the papers' condition, {c.measured} as measured; {reason_text(c)}."
                for c in analysis.cells
                if not c.agrees
            ],
            "cells": spine_table(analysis.cells),
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        if cells := analysis.cells:
            shown = fmt.rows_with_room(cells, _MAX_GRID_ROWS)
            if len(shown) < len(cells):
                shown = fmt.rows_with_room(sorted(cells, key=lambda c: c.agrees), _MAX_GRID_ROWS)
            pairs = ", ".join(dict.fromkeys(f"{c.src} to {c.dst}" for c in cells))
            title = f"Which path is faster there, {pairs}? (even: within {fmt.percent(TIE, 0)})"
            console.print(spine_terminal_table(shown, title, len(cells) - len(shown)).to_terminal())
            console.print(finding(cells), highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        return {"spine_condition": as_dict(analysis.cells) if analysis.cells else None}


def finding(cells: Sequence[Cell]) -> str:
    """Return the outcome in a sentence."""
    by_condition = sum(c.agrees for c in cells)
    by_bottleneck = sum(c.by_slowest_link == c.measured for c in cells)
    doubtful = sum(c.verdict != "ok" for c in cells)
    return (
        f"papers' condition g(G1) < 1/H(S) agrees with measured latency in {by_condition} of {len(cells)} cells; "
        f"the slowest link on each path does in {by_bottleneck}"
        + (f"; verdict not ok in {doubtful}, at worst {_worst(cells)}" if doubtful else "")
    )


def _worst(judged: Iterable[Cell | PolicyRow]) -> Verdict:
    return worst_verdict(each.verdict for each in judged)


def _verdicts(judged: Sequence[Cell | PolicyRow]) -> Column:
    """Return the column of verdicts; in JSON alone if all are ok."""
    return text("" if _worst(judged) == "ok" else "verdict", "verdict", key="verdict")


def reason_text(cell: Cell) -> str:
    """Return why the condition differs from what was measured, with the figures that it follows from."""
    near, far = (fmt.rate(cell.slowest(path).value) for path in ("rail-only", "spine"))
    return _REASON_TEXT[cell.reason].format(near=near, far=far, ratio=cell.rates.hb / cell.rates.rail)


_SCORES: Final = tuple(
    Column(title, attrgetter(f"scores.{part}"), "{:.2f}".format, style="dim")
    for title, part in (("H(d1)", "domain"), ("H(g1)", "rail"), ("H(S)", "spine"), ("H(g2)", "far_rail"))
)
"""Scores as they were measured."""


def spine_terminal_table(cells: Sequence[Cell], title: str, more: int) -> Table:
    """Return a line a cell, with the loads that were asked for."""
    columns = (
        Column("d1", lambda c: fmt.percent(c.scene.domain, 0)),
        Column("g1", lambda c: fmt.percent(c.scene.rail, 0)),
        Column("S", lambda c: fmt.percent(c.scene.spine, 0)),
        *_SCORES,
        Column("rail-\nonly", lambda c: c.latency["rail-only"], unit="s"),
        Column("spine", lambda c: c.latency["spine"], unit="s"),
        text("papers", "predicted"),
        text("measured"),
        text("slowest\nlink", "by_slowest_link", style="dim"),
        Column("agree", "agrees", {True: "yes", False: "no"}.__getitem__, style="bold"),
        text("why not", "reason"),
        _verdicts(cells),
    )
    return Table(columns, cells, title, more=more)


def spine_table(cells: Sequence[Cell]) -> Table:
    """Return a row a cell. The reasons of differences are in `differences`, with figures."""
    has_pairs = len({(c.fabric, c.workload, c.src, c.dst) for c in cells}) > 1

    def name(c: Cell) -> str:
        return f"{c.src} to {c.dst}, {c.workload} on {c.fabric}: {c.scene.name}" if has_pairs else c.scene.name

    columns = (
        text("scene", name),
        *_SCORES,
        Column("rail-only's path", lambda c: c.latency["rail-only"], unit="s"),
        Column("spine's path", lambda c: c.latency["spine"], unit="s"),
        Column("papers", "predicted"),
        Column("slowest link", "by_slowest_link"),
        Column("measured"),
        *(Column("agree", "agrees", {True: "yes", False: "no"}.__getitem__), Column("why not", "reason")),
        _verdicts(cells),
    )
    return Table(columns, cells)


@section("policies")
class _Policies(Section):
    """What each policy achieved, beside dr and the oracle."""

    title = "Policies"
    order = 20
    template = "policies.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return (bool(analysis.policy_rows) and not analysis.cells) or bool(drawn(analysis.intervals)[0])

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        for work, rows in analysis.policy_rows.items() if not analysis.cells else ():
            by_policy = {row.policy: row for row in rows}
            ours = [r for r in rows if r.over_dr is not None and r.policy not in (BASELINE_POLICY, ORACLE_POLICY)]
            if ours:
                best = max(ours, key=lambda row: row.over_dr or 0.0)
                oracle = by_policy.get(ORACLE_POLICY)
                yield Card(
                    f"{_title(work)}: {best.policy} faster than {BASELINE_POLICY}",
                    fmt.times(best.over_dr),
                    f"{ORACLE_POLICY} {fmt.times(oracle.over_dr)}" if oracle and oracle.over_dr else "",
                    spread_text(best.times, fmt.seconds),
                    best.verdict,
                )

    def headline(self, analysis: Analysis) -> list[Table]:
        return [] if analysis.cells else [policies_table(r, _title(w)) for w, r in analysis.policy_rows.items()]

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        shown, others = drawn(analysis.intervals)
        policies = []
        for work, rows in analysis.policy_rows.items() if not analysis.cells else ():
            labels = {analysis.labels[work[0], row.policy]: row.policy for row in rows}
            policies.append((_title(work), plots.policies(rows, work), phases_table(analysis.times, work, labels)))
        names: dict[str, list[str]] = {}
        for s in others:
            names.setdefault(_title((s.fabric, s.interval)), []).append(s.policy)
        not_drawn = "; ".join(f"{work} under {', '.join(of)}" for work, of in names.items())
        where = "Their scores and choices are in health.parquet and choices.parquet."
        return {
            "policies": policies,
            "over_time": [(f"{s.policy}: {_title((s.fabric, s.interval))}", steering.over_time(s)) for s in shown],
            "not_drawn": f"Not drawn: {not_drawn}. {where}" if not_drawn else "",
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print a table for each fabric and workload, as many as there is room for."""
        rows_left = _MAX_POLICY_ROWS
        places = analysis.policy_rows if not analysis.cells else {}
        for number, (work, rows) in enumerate(places.items()):
            if rows_left <= 0:
                console.print(f"… {len(places) - number} more such tables in report.html", highlight=False)
                return
            title = f"{_title(work)}, by policy (m/p: measured over predicted)"
            table = policies_table(rows[:rows_left], title, len(rows) - rows_left)
            console.print(table.to_terminal())
            rows_left -= len(rows)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        return {"steering": [r for rows in analysis.policy_rows.values() for r in policies_table(rows).to_dicts()]}


def _title(fabric_workload: FabricWorkload) -> str:
    return f"{fmt.workload_label(fabric_workload[1])} on {fabric_workload[0]}"


_times = fmt.or_dash("{:.2f}".format)
_tenths = fmt.or_dash("{:.1f}".format)


def policies_table(rows: Sequence[PolicyRow], title: str = "", more: int = 0) -> Table:
    """Return a row a policy. On the terminal `more` rows are in the report."""
    most_changed = fmt.or_dash("{0.changes} of {0.allowed}".format)
    dr_this = f"{BASELINE_POLICY} / this"
    this_oracle = f"this / {ORACLE_POLICY}"
    columns = (
        Column("", "fabric", key="fabric"),
        Column("", lambda r: fmt.workload_label(r.work), key="workload"),
        text("policy", key="policy"),
        Column("median", unit="s", key="median"),
        Column("least", lambda r: min(r.times), unit="s", key="min"),
        Column("most", lambda r: max(r.times), unit="s", key="max"),
        Column("", lambda r: len(r.times), key="repeats"),
        Column("predicted", unit="s", on_terminal=False, key="predicted"),
        Column("m/p", "displayed_ratio", unit="ratio", style="dim"),
        Column("", "ratio", key="ratio"),
        Column(dr_this, "over_dr", _times, short=dr_this.replace("/ ", "/\n"), style="bold", key="over_dr"),
        Column(this_oracle, "over_oracle", _times, short=this_oracle.replace("/ ", "/\n"), key="over_oracle"),
        Column("route changes a second", "changes_per_s", _tenths, short="routes\n/ s", key="route_changes_per_s"),
        Column("most of a pair", "most_changed", most_changed, short="most of\na pair"),
        Column("", lambda r: r.most_changed and r.most_changed.changes, key="most_changes_of_a_pair"),
        Column("", lambda r: r.most_changed and r.most_changed.allowed, key="allowed_changes_of_a_pair"),
        Column("ms to routes", "reaction_ms", _tenths, short="ms to\nroutes", key="reaction_ms_median"),
        Column("worst", "worst_reaction_ms", _tenths, key="reaction_ms_worst"),
        _verdicts(rows),
    )
    return Table(columns, rows, title, more=more)


def phases_table(timed: Sequence[Row], work: FabricWorkload, labels: Mapping[str, str]) -> Table:
    """Return medians: phases down, policies (by the label that their records carry) across."""

    def median(fabric: str, row: Row) -> float | None:
        return row.by_fabric[fabric].median if fabric in row.by_fabric else None

    phases = [r for r in timed if r.work == work[1] and r.phase]
    shown = {name: policy for name, policy in labels.items() if any(name in r.by_fabric for r in phases)}
    policies = [Column(policy, partial(median, name), unit="s") for name, policy in shown.items()]
    return Table([text("phase", plots.label), *policies], phases if shown else [])


def drawn(intervals: Sequence[MeasurementInterval]) -> tuple[list[MeasurementInterval], list[MeasurementInterval]]:
    """Return the first repeats of policies that use scores: those of one fabric and workload, to draw, and others."""
    first: dict[tuple[str, IntervalId, str], MeasurementInterval] = {}
    for interval in intervals:
        uses_scores = interval.policy not in HEALTH_POLICIES or HEALTH_POLICIES[interval.policy].uses_scores
        if uses_scores and interval.health:  # a plugin that isn't loaded now may use them
            first.setdefault((interval.fabric, interval.interval.work, interval.policy), interval)
    place = next(((s.fabric, s.interval.work) for s in first.values()), None)
    shown = [s for s in first.values() if (s.fabric, s.interval.work) == place][:_MAX_DRAWN]
    return shown, [s for s in first.values() if s not in shown]
