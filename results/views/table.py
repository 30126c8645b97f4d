"""Tables: columns and rows, described once, and rendered to the terminal (rich), HTML and JSON."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import compress, groupby
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
        if value is None:
            return NOTHING
        if self.unit:
            return quantity(value, self.unit)
        return str(value)


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
        rows: list[tuple[str, ...]] = []
        for row in self.rows:
            rows.append(tuple(column.cell(row) for column in self.shown))
        return tuple(rows)

    def without_empty(self, kept: Collection[str] = ()) -> "Table":
        """Return it without columns in which no row has anything, apart from those whose title is in `kept`."""
        columns: list[Column] = []
        for column, *cells in zip(self.shown, *self.cells, strict=True):
            if column.title in kept or not {"", NOTHING}.issuperset(cells):
                columns.append(column)
        return replace(self, columns=columns)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict a row for JSON: values as they are, by the keys of their columns."""
        columns = [column for column in self.columns if column.key]
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            rows.append({column.key: column.get(row) for column in columns})
        return rows

    def to_html(self, look: str = "") -> Markup:
        """Return the element for report.html; `look`: its CSS class beside "wide"."""
        titles = Markup().join(map(_title_cell, self.shown))
        rows = Markup()
        for row, cells in zip(self.rows, self.cells, strict=True):
            is_never_bad = self.is_never_bad(row)
            cell_elements = Markup()
            for column, content in zip(self.shown, cells, strict=True):
                cell_elements += _cell_element(column, content, is_never_bad)
            rows += Markup("<tr>{}</tr>\n").format(cell_elements)
        return Markup(
            '<div class="{}" style="--columns: {}"><table>\n<thead>\n{}<tr>{}</tr>\n</thead>\n'
            "<tbody>\n{}</tbody></table></div>"
        ).format(f"wide {look}".strip(), len(self.shown), self._group_row(), titles, rows)

    def _group_row(self) -> Markup:
        """Return the row with headings above several columns; nothing if no column has a group."""
        groups = [column.group for column in self.shown]
        if not any(groups):
            return Markup()
        cells = Markup()
        for name, columns in groupby(groups):
            width = len(list(columns))
            if name:
                cells += Markup('<th colspan="{}" scope="colgroup">{}</th>').format(width, name)
            else:
                cells += Markup('<td colspan="{}"></td>').format(width)
        return Markup('<tr class="groups">{}</tr>\n').format(cells)

    def to_terminal(self) -> FittingTable:
        """Return it as a table that is split into blocks where the screen is too narrow, so that nothing is cut."""
        notes = [self.note] if self.note else []
        if self.more > 0:
            notes.append(f"… {self.more} more {self.elsewhere}")
        caption = "\n".join(notes) or None
        together: list[str] = []
        terminal_table = FittingTable(
            title=self.title, title_style="bold", title_justify="left", caption=caption, caption_justify="left",
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True,
        )  # fmt: skip
        for column in self.shown:
            if not column.on_terminal:
                continue
            title = column.short or column.title
            if column.is_text:
                terminal_table.add_column(title, style=column.style, overflow="fold")
            else:
                terminal_table.add_column(title, style=column.style, justify="right", no_wrap=True)
            together.append(column.together)
        terminal_table.together = together
        is_on_terminal = [column.on_terminal for column in self.shown]
        for cells in self.cells:
            terminal_table.add_row(*compress(cells, is_on_terminal))
        return terminal_table


def _title_cell(column: Column) -> Markup:
    if not column.title:
        return Markup("<td></td>")
    look = Markup("") if column.is_text else Markup(' class="n"')
    return Markup('<th scope="col"{}>{}</th>').format(look, column.title)


def _cell_element(column: Column, content: str, is_never_bad: bool) -> Markup:
    """Return a cell. `is_never_bad`: whether "never" is a failure in this row."""
    if column.is_text:
        name = _CLASSES.get(content, "")
    elif content == "not met" or (content == "never" and is_never_bad):
        name = "n bad"
    else:
        name = "n"
    look = Markup(f' class="{name}"') if name else Markup("")
    return Markup("<td{}>{}</td>").format(look, content)


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: int, **table: Any) -> Table:
    """Return a table of cells that are text already; from column `numbers` on they are right-aligned."""
    columns = [Column(title, itemgetter(n), str, is_text=n < numbers) for n, title in enumerate(titles)]
    return Table(columns, rows, **table)
