"""Tables: columns and rows, described once, and rendered to the terminal (rich), HTML and JSON."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from markupsafe import Markup
from rich import box

from railyard.core.terminal import FittingTable
from railyard.results.format import NOTHING, quantity
from railyard.results.runs.records import NOT_COMPARED

_CLASSES: Final = {"not met": "bad", "✗": "bad", "degraded": "degraded", "invalid": "invalid"}
_CLASSES.update(dict.fromkeys(NOT_COMPARED, "degraded"))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, and what it shows of a row.

    `value` is a function of a row, or the name of its attribute, by default that of the title. `show` makes text of it;
    without that it is shown in its `unit` (see format.quantity), None as a dash. `is_text`: left-aligned and broken
    over lines; other cells are right-aligned. `group`: a heading above this column and its neighbours of the same
    group. On the terminal its title is `short`, if there is one, and it is left out unless it is `on_terminal`; where
    the screen is too narrow, columns with the same `together` stay in one block if they can. `key`: its key in JSON;
    a column without one is left out there, and one with a key and no title is there alone.
    """

    title: str
    value: Callable[[Any], Any] | str = ""
    show: Callable[[Any], str] | None = None
    unit: str = ""
    is_text: bool = False
    group: str = ""
    short: str = ""
    on_terminal: bool = True
    together: str = ""
    style: str = ""
    key: str = ""

    def get(self, row: Any) -> Any:
        """Return its value of a row."""
        if callable(self.value):
            return self.value(row)
        return getattr(row, self.value or self.title.replace(" ", "_"))

    def cell(self, row: Any) -> str:
        """Return the text of its cell in a row."""
        value = self.get(row)
        if self.show:
            return self.show(value)
        return NOTHING if value is None else quantity(value, self.unit) if self.unit else str(value)


text = partial(Column, is_text=True)  # a left-aligned column


def texts(*titles: str) -> list[Column]:
    """Return left-aligned columns of the attributes that are called as they are."""
    return list(map(text, titles))


@dataclass(frozen=True)
class Table:
    """Columns and rows, which are any objects. `title`, `note`, and how many `more` rows are `elsewhere`: terminal."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    note: str = ""
    more: int = 0
    elsewhere: str = "in report.html"
    is_never_bad: Callable[[Any], bool] = lambda row: True
    """Whether "never" in a row is a failure, and not what is expected there."""

    @cached_property
    def shown(self) -> tuple[Column, ...]:
        """The columns that are not in JSON alone."""
        return tuple(column for column in self.columns if column.title or not column.key)

    @cached_property
    def cells(self) -> tuple[tuple[str, ...], ...]:
        """The text of every cell of the shown columns, row by row."""
        return tuple(tuple(column.cell(row) for column in self.shown) for row in self.rows)

    def without_empty(self, kept: Collection[str] = ()) -> "Table":
        """Return it without columns in which no row has anything, apart from those whose title is in `kept`."""
        columns = [
            column
            for column, *cells in zip(self.shown, *self.cells, strict=True)
            if column.title in kept or any(cell not in ("", NOTHING) for cell in cells)
        ]
        return replace(self, columns=columns)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict a row for JSON: values as they are, by the keys of their columns."""
        return [{column.key: column.get(row) for column in self.columns if column.key} for row in self.rows]

    def to_html(self, look: str = "") -> Markup:
        """Return the element for report.html; `look`: its CSS class beside "wide"."""
        spans = [(name, len(list(columns))) for name, columns in groupby(c.group for c in self.shown)]
        group = Markup('<th colspan="{}" scope="colgroup">{}</th>')
        column = Markup('<th scope="col"{}>{}</th>')
        groups = Markup().join(
            group.format(n, name) if name else Markup('<td colspan="{}"></td>').format(n) for name, n in spans
        )
        titles = (
            column.format(Markup("" if c.is_text else ' class="n"'), c.title) if c.title else Markup("<td></td>")
            for c in self.shown
        )

        def cell(column: Column, content: str, is_never_bad: bool) -> Markup:
            is_bad = content == "not met" or (content == "never" and is_never_bad)
            name = _CLASSES.get(content, "") if column.is_text else "n bad" if is_bad else "n"
            return Markup("<td{}>{}</td>").format(Markup(f' class="{name}"' if name else ""), content)

        rows = (
            Markup().join(
                cell(column, content, self.is_never_bad(row)) for column, content in zip(self.shown, cells, strict=True)
            )
            for row, cells in zip(self.rows, self.cells, strict=True)
        )
        return Markup(
            '<div class="{}" style="--columns: {}"><table>\n<thead>\n{}<tr>{}</tr>\n</thead>\n'
            "<tbody>\n{}</tbody></table></div>"
        ).format(
            f"wide {look}".strip(),
            len(self.shown),
            Markup('<tr class="groups">{}</tr>\n').format(groups) if any(name for name, _ in spans) else "",
            Markup().join(titles),
            Markup().join(Markup("<tr>{}</tr>\n").format(row) for row in rows),
        )

    def to_terminal(self) -> FittingTable:
        """Return it as a table that is split into blocks where the screen is too narrow, so that nothing is cut."""
        more = f"… {self.more} more {self.elsewhere}" if self.more > 0 else ""
        caption = "\n".join(filter(None, (self.note, more))) or None
        terminal_table = FittingTable(
            title=self.title, title_style="bold", title_justify="left", caption=caption, caption_justify="left",
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True,
        )  # fmt: skip
        numbers = [number for number, column in enumerate(self.shown) if column.on_terminal]
        for column in (self.shown[number] for number in numbers):
            look: dict[str, Any] = {"overflow": "fold"} if column.is_text else {"justify": "right", "no_wrap": True}
            terminal_table.add_column(column.short or column.title, style=column.style, **look)
        terminal_table.together = [self.shown[number].together for number in numbers]
        for cells in self.cells:
            terminal_table.add_row(*(cells[number] for number in numbers))
        return terminal_table


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: int, **table: Any) -> Table:
    """Return a table of cells that are text already; from column `numbers` on they are right-aligned."""
    columns = [Column(title, itemgetter(n), str, is_text=n < numbers) for n, title in enumerate(titles)]
    return Table(columns, rows, **table)
