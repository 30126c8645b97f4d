"""Times of workloads on the terminal: fabrics side by side, or a line a fabric, and reasons below the table."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

from rich.console import Console
from rich.text import Text

from railyard.experiments.measures.workloads.report.tables import difference_text, of_spread, slowdown_columns
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Row, Spread
from railyard.results.analysis.slowdowns import Slowdown
from railyard.results.views.table import Column, Table, text

# as many as leave room for the other tables on a screen of 40 lines
_MAX_TIME_ROWS: Final = 7
_MAX_SIDE_BY_SIDE: Final = 2  # fabrics that the table of times on the terminal sets side by side
_MAX_SLOWDOWN_LINES: Final = 2
_MAX_NAMED_ROWS: Final = 3  # in a line below the table
_RATIO: Final = "m/p"
_WITH_LATENCY: Final = "m/pl"


def print_times(rows: Sequence[Row], fabrics: Sequence[str], slowdowns: Sequence[Slowdown], console: Console) -> None:
    """Print the times of fabrics, then why some are not compared, and the slow-down of all-to-alls."""
    if len(fabrics) > _MAX_SIDE_BY_SIDE:
        table = terminal_sweep(rows, fabrics)
    else:
        table = terminal_times(rows, fabrics, slowdowns)
    console.print(table.to_terminal())
    for line in _reason_lines(rows, slowdowns):
        console.print(line, style="dim", highlight=False)
    all_to_alls = [slowdown for slowdown in slowdowns if slowdown.is_all_to_all]
    for slowdown in all_to_alls[:_MAX_SLOWDOWN_LINES]:
        # a line above has the reason of those that aren't compared; without a formula the bytes are too few to compare
        if slowdown.predicted is not None and not slowdown.not_compared:
            console.print(_slowdown_line(slowdown), highlight=False)


def _slowdown_line(slowdown: Slowdown) -> Text:
    """Return how much slower an all-to-all is on rail-only, as measured and by the formulas."""
    name = f"{slowdown.row.workload} {slowdown.row.phase}".strip()
    measured = (f"{fmt.change(slowdown.measured)} measured", "bold")
    formula = f", {fmt.change(slowdown.predicted)} Eq. 3/Eq. 2, nominal C_S/C_F {fmt.percent(slowdown.nominal)}"
    verdict = ""
    if slowdown.verdict != "ok":
        verdict = f", {slowdown.verdict}"
    return Text.assemble(f"{name}: {slowdown.rail_only} slower by ", measured, (formula, "dim"), (verdict, "bold red"))


def _reason_lines(rows: Sequence[Row], slowdowns: Sequence[Slowdown]) -> Iterator[str]:
    """Yield a line for each reason why rows are not compared with a formula, or fabrics with each other."""
    for reason, names in _reasons(rows).items():
        yield f"not compared with a formula: {', '.join(names)}, since it {reason}"
    for reason, names in _reasons_of_differences(rows, slowdowns).items():
        listed = ", ".join(names)
        if len(names) > _MAX_NAMED_ROWS:
            listed = f"in {len(names)} rows"
        yield f"fabrics not compared: {listed}, since {reason}"


def _reasons(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the rows that aren't compared with a prediction, by reason."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        reasons = dict.fromkeys(spread.not_compared for spread in row.by_fabric.values())
        for reason in filter(None, reasons):
            by_reason.setdefault(reason, []).append(row_name(row))
    return by_reason


def _reasons_of_differences(rows: Sequence[Row], slowdowns: Sequence[Slowdown]) -> dict[str, list[str]]:
    """Return the rows whose fabrics are not compared with each other, by reason; none without the column."""
    by_reason: dict[str, list[str]] = {}
    if not slowdown_columns(slowdowns):
        return by_reason
    for slowdown in slowdowns:
        if slowdown.not_compared and slowdown.row in rows:
            by_reason.setdefault(slowdown.not_compared, []).append(row_name(slowdown.row))
    return by_reason


def row_name(row: Row) -> str:
    """Return `moe moe-a2a`: the workload, and the phase if it is of one."""
    return f"{row.workload} {row.phase}".strip()


def terminal_times(rows: Sequence[Row], fabrics: Sequence[str], slowdowns: Sequence[Slowdown]) -> Table:
    """Return fabrics side by side for the terminal; if some rows are left to the report, then phases."""
    shown = fmt.rows_with_room(rows, _MAX_TIME_ROWS)
    if len(shown) < len(rows):
        whole_first = sorted(rows, key=lambda row: bool(row.phase))
        shown = fmt.rows_with_room(whole_first, _MAX_TIME_ROWS)
    columns = [text("workload", row_name)]
    for fabric in fabrics:
        columns.append(Column(fabric, partial(of_spread, fabric, "median"), unit="s", together=fabric))
        columns.append(Column(_RATIO, partial(_ratio_of_fabric, fabric), style="dim", together=fabric))
        if _has_latency(shown):
            with_latency = partial(of_spread, fabric, "ratio_with_latency")
            columns.append(Column(_WITH_LATENCY, with_latency, unit="ratio", style="dim", together=fabric))
    differences = slowdown_columns(slowdowns)
    if differences:
        # as wide as its title: "not compared" would split the table
        measured = partial(_short_difference, differences[0])
        columns.append(replace(differences[0], value=measured, title="difference", together="difference"))
        columns.append(replace(differences[2], style="dim", together="difference"))
    return Table(columns, shown, _times_title(shown), more=len(rows) - len(shown))


def _ratio_of_fabric(fabric: str, row: Row) -> str:
    return _judged_ratio(row.by_fabric.get(fabric))


def _judged_ratio(spread: Spread | None) -> str:
    """Return the ratio of a time, with its verdict unless that is ok."""
    if spread is None or not (spread.predicted or spread.not_compared):
        return fmt.NOTHING
    ratio = ""
    if spread.displayed_ratio is not None:
        ratio = fmt.ratio(spread.displayed_ratio)
    if spread.verdict == "ok":
        return ratio
    return f"{ratio} {spread.verdict}".strip()


def _short_difference(column: Column, row: Row) -> str:
    """Return the cell of a difference; "invalid" where one of the times is, which a line below the table explains."""
    cell = column.cell(row)
    if cell == difference_text(None):
        return "invalid"
    return cell


def terminal_sweep(rows: Sequence[Row], fabrics: Sequence[str]) -> Table:
    """Return a line a fabric, where there are too many to stand beside each other: a sweep."""
    whole = [row for row in rows if not row.phase]
    lines: list[tuple[Row, str, Spread]] = []
    for row in whole or rows:
        for fabric in fabrics:
            if fabric in row.by_fabric:
                lines.append((row, fabric, row.by_fabric[fabric]))
    shown = fmt.rows_with_room(lines, _MAX_TIME_ROWS)
    columns = [
        text("workload", lambda line: row_name(line[0])),
        text("fabric", lambda line: line[1]),
        Column("measured", lambda line: line[2].median, unit="s"),
        Column("predicted", lambda line: line[2].predicted, unit="s"),
        Column(_RATIO, lambda line: _judged_ratio(line[2])),
    ]
    if _has_latency(rows):
        columns.append(Column(_WITH_LATENCY, lambda line: line[2].ratio_with_latency, unit="ratio"))
    more = sum(len(row.by_fabric) for row in rows) - len(shown)
    return Table(columns, shown, _times_title(rows), more=more)


def _has_latency(rows: Sequence[Row]) -> bool:
    """Return whether any of these times has a prediction with latency; runs of earlier versions have none."""
    spreads = chain.from_iterable(row.by_fabric.values() for row in rows)
    return any(spread.with_latency for spread in spreads)


def _times_title(rows: Sequence[Row]) -> str:
    latency = ""
    if _has_latency(rows):
        latency = f", {_WITH_LATENCY}: predicted with latency"
    return f"Time ({_RATIO}: measured over predicted{latency})"
