"""Part 2's comparison, scene by scene: a line, a table on the terminal, and one in the report. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table as TerminalTable

from railyard.results.theory.spine_condition import TIE, Cell
from railyard.results.views import format as fmt
from railyard.results.views.report_tables import Table
from railyard.results.views.terminal import Column, fit_to_width

_BOTTLENECK_RATES: Final = "{near} is left on rail-only's way, {far} on the spine's"
_REASON_TEXT: Final = {
    "": "",
    "lowest score": f"the slowest link decides, and not the product: {_BOTTLENECK_RATES}",
    "HB rate": f"HB links have {{ratio:.3g}} times a rail's rate: {_BOTTLENECK_RATES}",
    "hops": f"hops decide where links leave as much: {_BOTTLENECK_RATES}",
    "not known": f"no rule here knows: {_BOTTLENECK_RATES}",
}


def finding(cells: Sequence[Cell]) -> str:
    """The outcome in a sentence."""
    condition_agrees, bottleneck_agrees = (
        sum(c.agrees for c in cells),
        sum(c.by_slowest_link == c.measured for c in cells),
    )
    return (
        f"papers' condition g(G1) < 1/H(S) agrees with measured latency in {condition_agrees} of {len(cells)} cells; "
        f"the slowest link on each way does in {bottleneck_agrees}"
    )


def reason_text(cell: Cell) -> str:
    """Why the condition says something else than what was measured, with the figures that it follows from."""
    near, far = (fmt.rate(cell.slowest(path).value) for path in ("rail-only", "spine"))
    return _REASON_TEXT[cell.reason].format(near=near, far=far, ratio=cell.rates.hb / cell.rates.rail)


def terminal_table(console: Console, cells: Sequence[Cell], max_rows: int) -> TerminalTable:
    """A line a cell, those that disagree first if there isn't room for all."""
    shown = list(cells) if len(cells) <= max_rows else sorted(cells, key=lambda c: c.agrees)[:max_rows]

    def column(name: str, cell: Callable[[Cell], str], drop: int = 0, text: bool = False, style: str = "") -> Column:
        return Column(name, tuple(cell(c) for c in shown), drop, text, style)

    columns = [
        *(column(name, cell, 0) for name, cell in _loads()),
        *(column(name, cell, 2, style="dim") for name, cell in _scores()),
        column("rail-\nonly", lambda c: fmt.seconds(c.latency["rail-only"])),
        column("spine", lambda c: fmt.seconds(c.latency["spine"])),
        column("papers", lambda c: c.predicted, text=True),
        column("measured", lambda c: c.measured, text=True),
        column("slowest\nlink", lambda c: c.by_slowest_link, 3, text=True, style="dim"),
        column("agree", lambda c: "yes" if c.agrees else "no", style="bold"),
        column("why not", lambda c: c.reason, 1, text=True),
    ]
    pairs = ", ".join(dict.fromkeys(f"{c.src} to {c.dst}" for c in cells))
    title = f"Which way is sooner there, {pairs}? (even: within {fmt.percent(TIE, 0)})"
    return fit_to_width(console, title, columns, len(cells) - len(shown))


def report_table(cells: Sequence[Cell]) -> Table:
    """A row a cell. Why not is in `differences`, with figures."""
    pairs = len({(c.fabric, c.workload, c.src, c.dst) for c in cells}) > 1
    columns = (
        *("scene", *(name for name, _ in _scores()), "rail-only's way", "spine's way"),
        *("papers", "slowest link", "measured", "agree", "why not"),
    )
    body = tuple(
        (
            _cell_name(c) if pairs else c.scene.name,
            *(cell(c) for _, cell in _scores()),
            *(fmt.seconds(c.latency["rail-only"]), fmt.seconds(c.latency["spine"])),
            *(c.predicted, c.by_slowest_link, c.measured, "yes" if c.agrees else "no", c.reason),
        )
        for c in cells
    )
    return Table(columns, body, 1)


def differences(cells: Sequence[Cell]) -> tuple[str, ...]:
    """A sentence for each cell in which the condition says something else than what was measured."""
    return tuple(
        f"{c.scene.name}: {c.predicted} by the papers' condition, {c.measured} as measured; {reason_text(c)}."
        for c in cells
        if not c.agrees
    )


def _cell_name(cell: Cell) -> str:
    return f"{cell.src} to {cell.dst}, {cell.workload} on {cell.fabric}: {cell.scene.name}"


def _loads() -> list[tuple[str, Callable[[Cell], str]]]:
    """As they were asked for."""
    return [
        ("d1", lambda c: fmt.percent(c.scene.domain, 0)),
        ("g1", lambda c: fmt.percent(c.scene.rail, 0)),
        ("S", lambda c: fmt.percent(c.scene.spine, 0)),
    ]


def _scores() -> list[tuple[str, Callable[[Cell], str]]]:
    """As they were measured."""
    return [
        ("H(d1)", lambda c: f"{c.scores.domain:.2f}"),
        ("H(g1)", lambda c: f"{c.scores.rail:.2f}"),
        ("H(S)", lambda c: f"{c.scores.spine:.2f}"),
        ("H(g2)", lambda c: f"{c.scores.far:.2f}"),
    ]
