"""What a recomputed figure or table of a paper is: rows, a drawing, and the paper's claims beside our figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it takes half a second to load, and names are listed without it
    import matplotlib.figure

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A number that the paper states, and ours. `within`: the largest difference that agrees, in `unit`.

    `unit` is as people read it: "%", "s", "USD", "switches"; percentages are 0 to 100. `at_least` and `at_most` claims
    ("over 99%") set `bound`. `note` says why ours differs, or what we assumed that the paper leaves open. `stated`
    says whose number it is, where no paper states it.
    """

    what: str
    published: float
    ours: float
    unit: str
    within: float = 0.0
    bound: str = ""
    note: str = ""
    stated: str = "published"

    @property
    def agrees(self) -> bool:
        if self.bound == "at least":
            return self.ours >= self.published - self.within
        if self.bound == "at most":
            return self.ours <= self.published + self.within
        return abs(self.ours - self.published) <= self.within


@dataclass(frozen=True)
class Figure:
    """`rows` have a cell for each of `columns` (with units in their names: iteration_s, cost_usd); they become
    NAME.csv. `draw` fills an empty matplotlib figure, which becomes NAME.png.

    `source`: paper, section, figure or table. `notes`: assumptions, a line each.
    """

    name: str
    title: str
    source: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    draw: "Callable[[matplotlib.figure.Figure], None]"
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    inches: tuple[float, float] = (9.0, 4.5)
