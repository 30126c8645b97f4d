"""Rail-only's path beside the spine's in the report: latency, scene by scene, and the papers' condition."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from rich.console import Console

from railyard.experiments.measures.steering.plots import spine_condition
from railyard.experiments.measures.steering.policies_section import verdict_column, worst
from railyard.experiments.measures.steering.spine_condition import (
    TIE,
    Cell,
    Path,
    Spread,
    as_dict,
    cells_of,
    count_by_condition,
    count_by_p99,
    count_by_slowest_link,
)
from railyard.results import format as fmt
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.views.report import Card, Section
from railyard.results.views.table import Column, Table, text

_MAX_GRID_ROWS: Final = 27
_BOTTLENECK_RATES: Final = "{near} is left on rail-only's path, {far} on the spine's"
_REASON_TEXT: Final = {
    "": "",
    "lowest score": f"the slowest link decides, and not the product: {_BOTTLENECK_RATES}",
    "HB rate": f"HB links have {{ratio:.3g}} times a rail's rate: {_BOTTLENECK_RATES}",
    "hops": f"hops decide where links leave as much: {_BOTTLENECK_RATES}",
    "not known": f"no rule here knows: {_BOTTLENECK_RATES}",
}


class ComparisonSection(Section):
    """Latency of rail-only's path and of the spine's, scene by scene (health routing, part 2)."""

    title = "Rail-only's path and the spine's"
    order = 10
    template = "comparison.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run that measured both paths in scenes of a grid."""
        return bool(analysis.derived(cells_of))

    def cards(self, analysis: Analysis) -> list[Card]:
        """Return in how many cells the papers' condition holds."""
        cells = analysis.derived(cells_of)
        theory = f"the slowest link of each path does in {count_by_slowest_link(cells)}"
        title = "Cells in which the papers' condition names the faster path"
        return [Card(title, f"{count_by_condition(cells)} of {len(cells)}", theory, verdict=worst(cells))]

    def headline(self, analysis: Analysis) -> list[str]:
        """Return the outcome in a sentence."""
        return [finding(analysis.derived(cells_of))]

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the tables and figures of its template."""
        cells = analysis.derived(cells_of)
        by_pair: dict[str, list[Cell]] = {}
        for cell in cells:
            by_pair.setdefault(f"{cell.src} to {cell.dst}, {cell.workload} on {cell.fabric}", []).append(cell)
        return {
            "plots": [(name, spine_condition(pair_cells, name)) for name, pair_cells in by_pair.items()],
            "differences": [_difference(cell) for cell in cells if not cell.agrees],
            "cells": spine_table(cells),
            "latencies": latency_table(cells) if _have_latencies(cells) else None,
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print a line a cell; if there is no room for all, those first in which the condition fails."""
        cells = analysis.derived(cells_of)
        if not cells:
            return
        shown = fmt.rows_with_room(cells, _MAX_GRID_ROWS)
        if len(shown) < len(cells):
            shown = fmt.rows_with_room(sorted(cells, key=attrgetter("agrees")), _MAX_GRID_ROWS)
        pairs = ", ".join(dict.fromkeys(f"{cell.src} to {cell.dst}" for cell in cells))
        title = f"Which path is faster there, {pairs}? (even: within {fmt.percent(TIE, 0)})"
        console.print(spine_terminal_table(shown, title, len(cells) - len(shown)).to_terminal())
        if _have_latencies(cells):
            console.print(latency_table(shown, f"Latency, {pairs}", len(cells) - len(shown)).to_terminal())
        console.print(finding(cells), highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return all cells."""
        cells = analysis.derived(cells_of)
        if not cells:
            return {"spine_condition": None}
        return {"spine_condition": as_dict(cells)}


def finding(cells: Sequence[Cell]) -> str:
    """Return the outcome in a sentence."""
    sentence = (
        f"papers' condition g(G1) < 1/H(S) agrees with measured latency in {count_by_condition(cells)} of {len(cells)} "
        f"cells; the slowest link on each path does in {count_by_slowest_link(cells)}"
    )
    tails = [cell for cell in cells if cell.has_p99]
    if tails:
        sentence += f", and the 99th percentile in {count_by_p99(tails)} of {len(tails)}"
    doubtful = sum(cell.verdict != "ok" for cell in cells)
    if doubtful:
        sentence += f"; verdict not ok in {doubtful}, at worst {worst(cells)}"
    return sentence


def _difference(cell: Cell) -> str:
    """Return in words that the papers' condition names another path than was measured, and why."""
    return (
        f"{cell.scene.name}: {cell.predicted} by the papers' condition, {cell.measured} as measured; "
        f"{reason_text(cell)}."
    )


def reason_text(cell: Cell) -> str:
    """Return why the condition differs from what was measured, with the figures that it follows from."""
    near = fmt.rate(cell.slowest("rail-only").value)
    far = fmt.rate(cell.slowest("spine").value)
    return _REASON_TEXT[cell.reason].format(near=near, far=far, ratio=cell.rates.hb / cell.rates.rail)


_YES_OR_NO: Final = {True: "yes", False: "no"}.__getitem__


def _score_column(title: str, part: str) -> Column:
    """Return the column of a score as it was measured."""
    return Column(title, attrgetter(f"scores.{part}"), "{:.2f}".format, style="dim")


_SCORES: Final = (
    _score_column("H(d1)", "domain"),
    _score_column("H(g1)", "rail"),
    _score_column("H(S)", "spine"),
    _score_column("H(g2)", "far_rail"),
)


def spine_terminal_table(cells: Sequence[Cell], title: str, more: int) -> Table:
    """Return a line a cell, with the loads that were asked for."""
    columns = [
        Column("d1", lambda cell: fmt.percent(cell.scene.domain, 0)),
        Column("g1", lambda cell: fmt.percent(cell.scene.rail, 0)),
        Column("S", lambda cell: fmt.percent(cell.scene.spine, 0)),
    ]
    columns += _SCORES
    columns += [
        Column("rail-\nonly", lambda cell: cell.latency["rail-only"], unit="s"),
        Column("spine", lambda cell: cell.latency["spine"], unit="s"),
        text("papers", "predicted"),
        text("measured"),
        text("slowest\nlink", "by_slowest_link", style="dim"),
        Column("agree", "agrees", _YES_OR_NO, style="bold"),
        text("why not", "reason"),
        verdict_column(cells),
    ]
    return Table(columns, cells, title, more=more)


def spine_table(cells: Sequence[Cell]) -> Table:
    """Return a row a cell. The reasons of differences are in `differences`, with figures."""
    has_pairs = len({(cell.fabric, cell.workload, cell.src, cell.dst) for cell in cells}) > 1

    def name(cell: Cell) -> str:
        if not has_pairs:
            return cell.scene.name
        return f"{cell.src} to {cell.dst}, {cell.workload} on {cell.fabric}: {cell.scene.name}"

    columns = [text("scene", name)]
    columns += _SCORES
    columns += [
        Column("rail-only's path", lambda cell: cell.latency["rail-only"], unit="s"),
        Column("spine's path", lambda cell: cell.latency["spine"], unit="s"),
        Column("papers", "predicted"),
        Column("slowest link", "by_slowest_link"),
        Column("measured"),
        Column("agree", "agrees", _YES_OR_NO),
        Column("why not", "reason"),
        verdict_column(cells),
    ]
    return Table(columns, cells)


def _have_latencies(cells: Sequence[Cell]) -> bool:
    """Return whether there is more to show of latencies than a median: a 99th percentile, or several repeats."""
    return any(cell.has_p99 or len(cell.repeats["spine"]) > 1 for cell in cells)


def _spread(spread: Spread | None) -> str:
    """Return a spread in ms."""
    if spread is None:
        return fmt.NOTHING
    return spread.text(lambda seconds: fmt.digits(seconds * 1e3, 3))


_PATH_GROUPS: Final[Mapping[Path, str]] = {"rail-only": "rail-only's path, ms", "spine": "spine's path, ms"}


def latency_table(cells: Sequence[Cell], title: str = "", more: int = 0) -> Table:
    """Return a row a cell: median and 99th percentile of each path, and which path the condition and they name."""
    columns = [text("scene", attrgetter("scene.name"))]
    for path, group in _PATH_GROUPS.items():
        columns.append(Column("p50", partial(_p50, path), _spread, group=group, together=path))
        columns.append(Column("p99", partial(_p99, path), _spread, group=group, together=path))
    columns += [
        text("papers", "predicted"),
        text("by p50", "measured"),
        text("agree", "agrees", _YES_OR_NO),
        text("by p99", lambda cell: cell.measured_p99 or fmt.NOTHING),
        verdict_column(cells),
    ]
    return Table(columns, cells, title, more=more)


def _p50(path: Path, cell: Cell) -> Spread:
    return cell.p50(path)


def _p99(path: Path, cell: Cell) -> Spread | None:
    return cell.p99(path)
