"""Tables on the terminal: as many columns as the screen has room for, so that no cell is cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.measure import Measurement as RichMeasurement
from rich.table import Table

UNLIMITED_WIDTH: Final = 1000  # columns: no table is so wide


@dataclass(frozen=True, slots=True)
class Column:
    """`drop`: 0 is always there; where the screen is too narrow, the columns of the highest number go first."""

    name: str
    cells: tuple[str, ...]
    drop: int = 0
    text: bool = False
    style: str = ""


def fit_to_width(console: Console, title: str, columns: Sequence[Column], more: int, note: str = "") -> Table:
    """The table with as many columns as the screen has room for, so that no cell is cut."""
    notes = [note] if note else []
    caption = "\n".join([*notes, f"… {more} more in report.html"] if more > 0 else notes)
    table = _table(title, columns, caption)
    highest_drop = max(c.drop for c in columns)
    if (
        highest_drop
        and RichMeasurement.get(console, console.options.update(width=UNLIMITED_WIDTH), table).maximum > console.width
    ):
        return fit_to_width(console, title, [c for c in columns if c.drop < highest_drop], more, note)
    return table


def _table(title: str, columns: Sequence[Column], caption: str) -> Table:
    table = Table(
        title=title,
        caption=caption or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
        show_edge=False,
    )
    for column in columns:
        column_options: dict[str, Any] = {"overflow": "fold"} if column.text else {"justify": "right", "no_wrap": True}
        table.add_column(column.name, style=column.style, vertical="bottom", **column_options)
    for cells in zip(*(c.cells for c in columns), strict=True):
        table.add_row(*cells)
    return table
