"""A comparison as people read it: table on the terminal, Markdown for a job's summary."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import isinf
from typing import Final

from rich.console import Console

from railyard.results import format as fmt
from railyard.results.analysis.comparison import Compared, Comparison
from railyard.results.format import markdown_cell
from railyard.results.views.table import Column, Table, text

MAX_ROWS: Final = 40  # on the terminal


def _value(name: str) -> Callable[[Compared], str]:
    def show(row: Compared) -> str:
        value = getattr(row, name)
        if value is not None and isinf(value):
            return "never"
        if value and row.key.unit == "ms":
            return fmt.milliseconds(value)
        return fmt.quantity(value, row.key.unit)

    return show


def _interval(row: Compared) -> str:
    if row.interval is None:
        return fmt.NOTHING
    return " to ".join(map(_ratio, row.interval))


def _ratio(value: float | None) -> str:
    if value is not None and isinf(value):
        return "∞"
    return fmt.ratio(value)


COLUMNS: Final = (
    text("fabric", lambda row: " ".join(filter(None, (row.key.where.fabric, row.key.where.policy)))),
    text("axes", lambda row: row.key.axes),
    text("what", lambda row: row.key.label),
    text("metric", lambda row: row.key.metric),
    Column("A", _value("median_a"), str),
    Column("B", _value("median_b"), str),
    Column("B / A", lambda row: row.ratio, _ratio),
    Column("interval", _interval, str),
    Column("n", lambda row: f"{row.n_a}, {row.n_b}", str),
    Column("verdict", lambda row: row.verdict, str),
    text("reason", lambda row: row.reason, on_terminal=False),
)


def table(comparison: Comparison, most: int | None = None) -> Table:
    """Return the rows, of which only the first `most`."""
    rows: Sequence[Compared] = comparison.rows
    if most is not None:
        rows = fmt.rows_with_room(rows, most)
    more = len(comparison.rows) - len(rows)
    return Table(COLUMNS, rows, more=more, elsewhere="with --json").without_empty(("verdict",))


def headline(comparison: Comparison) -> str:
    """Return the result in a line: `regression: ...`, or how many rows have which verdict."""
    counts = ", ".join(f"{n} {verdict}" for verdict, n in comparison.counts.items())
    if comparison.failure:
        return f"{comparison.failure}; {counts}"
    return counts


def show(comparison: Comparison, console: Console) -> None:
    """Print it."""
    console.print(table(comparison, MAX_ROWS).to_terminal())
    limit = fmt.percent(comparison.limit)
    confidence = fmt.percent(comparison.confidence, 0)
    console.print(f"a change of {limit} or less is none; intervals at {confidence} for all rows together")
    reasons = Counter(filter(None, (row.reason for row in comparison.rows)))
    for reason, count in reasons.items():
        console.print(f"not enough data: {count} rows: {reason}", highlight=False, soft_wrap=True)
    for line in comparison.notes:
        console.print(f"note: {line}", style="dim", highlight=False, soft_wrap=True)
    for line in comparison.problems:
        console.print(f"problem: {line}", highlight=False, soft_wrap=True)
    console.print(headline(comparison), style="red" if comparison.failure else "green", highlight=False)


def markdown(comparison: Comparison, a: str, b: str) -> bytes:
    """Return it as Markdown."""
    whole = table(comparison)
    mark = "❌" if comparison.failure else "✅"
    lines = [f"### {mark} {markdown_cell(b)} against {markdown_cell(a)}", "", markdown_cell(headline(comparison)), ""]
    for line in (*comparison.problems, *comparison.notes):
        lines.append(f"- {markdown_cell(line)}")
    titles = [column.title for column in whole.shown]
    rules = ["---" if column.is_text else "---:" for column in whole.shown]
    lines += ["", f"| {' | '.join(titles)} |", f"|{'|'.join(rules)}|"]
    for cells in whole.cells:
        lines.append(f"| {' | '.join(map(markdown_cell, cells))} |")
    return ("\n".join(lines) + "\n").encode()
