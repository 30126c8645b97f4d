"""Tables for the terminal that never cut a name or a number."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table

_GAP: Final = 2  # columns between two columns of a table, at most
_WIDE: Final = 10_000
_MAX_KEYS: Final = 4


class FittingTable(Table):
    """A table that is printed in several blocks, one below the other, where the terminal is too narrow for one.

    Every block begins with the columns that tell the rows apart. Text breaks between words, numbers don't break.
    `together`: a name for each column; neighbours of the same name are in one block if it has room for them, and those
    of an empty name are independent.
    """

    together: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or its blocks."""
        limits = [self._limits(console, options, column) for column in self.columns]
        available = options.max_width
        widths = [least for least, _ in limits]
        parts: list[Table] = []
        for block in self._blocks(widths, available):
            block_limits = [limits[number] for number in block]
            # a table without columns has one block, which is empty
            part = self._part(block, block_limits, available) if block else Table()
            parts.append(part)
        parts[0].title = self.title
        parts[-1].caption = self.caption
        for number, part in enumerate(parts):
            if number:
                yield ""
            yield from Table.__rich_console__(part, console, options)

    @staticmethod
    def _limits(console: Console, options: ConsoleOptions, column: Column) -> tuple[int, int]:
        """Return the width that a column needs, and the width that it would like."""
        wide = options.update(width=_WIDE, max_width=_WIDE)
        measurements = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
        most = max(each.maximum for each in measurements)
        if column.no_wrap or column.justify == "right":
            return most, most
        return max(each.minimum for each in measurements), most

    def _keys(self) -> int:
        """Return how many of the first columns tell the rows apart, 1 if none do."""
        cells = [[str(cell) for cell in column.cells] for column in self.columns[:_MAX_KEYS]]
        for count in range(1, len(cells) + 1):
            rows = list(zip(*cells[:count], strict=True))
            if len(set(rows)) == len(rows):
                return min(count, max(1, len(self.columns) - 1))
        return 1

    def _blocks(self, least: list[int], available: int) -> Iterator[list[int]]:
        """Yield the columns of each block, by number."""
        if sum(least) + _GAP * (len(least) - 1) <= available or len(least) < 2:
            yield list(range(len(least)))
            return
        keys = self._keys()
        while keys > 1 and sum(least[:keys]) + max(least[keys:]) + _GAP * keys > available:
            keys -= 1

        def width(numbers: Sequence[int]) -> int:
            return sum(least[number] for number in numbers) + _GAP * (len(numbers) - 1)

        block = list(range(keys))
        for unit in self._units(keys):
            if len(block) > keys and width([*block, *unit]) > available:
                yield block
                block = list(range(keys))
            for number in unit:
                if len(block) > keys and width([*block, number]) > available:
                    yield block
                    block = list(range(keys))
                block.append(number)
        yield block

    def _units(self, keys: int) -> list[list[int]]:
        """Return the columns after the first `keys`, those that belong together in one list."""
        units: list[list[int]] = []
        names = list(self.together) or [""] * len(self.columns)
        for number in range(keys, len(self.columns)):
            if number > keys and names[number] and names[number] == names[number - 1]:
                units[-1].append(number)
            else:
                units.append([number])
        return units

    def _part(self, block: list[int], limits: list[tuple[int, int]], available: int) -> Table:
        """Return a table of some of the columns, each as wide as it needs, and wider where there is room."""
        widths = [least for least, _ in limits]
        room = available - sum(widths) - _GAP * (len(widths) - 1)
        for _ in range(room):
            # the column whose text would break most often; an empty column has no width
            at = max(range(len(widths)), key=lambda n: limits[n][1] / max(1, widths[n]))
            if widths[at] >= limits[at][1]:
                break
            widths[at] += 1
        part = Table(**self._looks())
        for width, n in zip(widths, block, strict=True):
            old = self.columns[n]
            part.add_column(
                old.header, style=old.style, justify=old.justify, overflow="fold", no_wrap=old.no_wrap, width=width
            )
        cells = [list(self.columns[number].cells) for number in block]
        for row in zip(*cells, strict=True):
            part.add_row(*row)
        return part

    def _looks(self) -> dict[str, Any]:
        names = ("box", "show_edge", "pad_edge", "padding", "collapse_padding", "title_style", "title_justify")
        return {name: getattr(self, name) for name in (*names, "caption_justify")}
