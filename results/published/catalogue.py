"""Figures and tables that `predict` computes: one module each, loaded when it is computed.

Those of papers are in figures/, in a folder for each paper, our own in predictions/. The first line of the module's
docstring describes it; its function `figure()` computes it. A plugin registers such a function, with a docstring:
`@FIGURES.register("my-figure")`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from railyard.core.installation import file_in_project
from railyard.core.plugins import BadDefinition, Source
from railyard.core.registry import Registry

if TYPE_CHECKING:
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
        """True if our value is within the tolerance, or on the right side of the bound."""
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

    title: str
    source: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    draw: "Callable[[matplotlib.figure.Figure], None]"
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    inches: tuple[float, float] = (9.0, 4.5)


FOLDERS: Final = ("figures", "predictions")
Compute = Callable[[], Figure]


def _later(module: str, description: str) -> Compute:
    """Return a function that imports a module of a folder when it is called, and computes its figure."""

    # once in a process, since it has no input that could change
    @cache
    def compute() -> Figure:
        # matplotlib and models of training take a second to load, so they are not loaded before
        made: Figure = import_module(f"railyard.results.published.{module}").figure()
        return made

    compute.__doc__ = description
    return compute


def _missing_parts(_name: str, compute: object) -> Iterator[str]:
    if not callable(compute):
        yield "must be a function that returns a Figure"
    if not compute.__doc__:
        yield "has no docstring, whose first line describes it"


FIGURES: Final = Registry[Compute]("figure", __name__, check=_missing_parts)
"""Functions by the name of the figure or table."""


def describe(name: str) -> str:
    """Return what a figure shows, in one line."""
    return (FIGURES[name].__doc__ or "").strip().splitlines()[0].rstrip(".")


def _register_modules() -> None:
    """Register every module of the folders and of those in them, in natural order: fig2 before fig10."""

    def natural(path: Path) -> list[str]:
        return [part.zfill(4) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]

    published = Path(__file__).parent
    paths: list[Path] = []
    for folder in FOLDERS:
        paths += (published / folder).rglob("[!_]*.py")
    for path in sorted(paths, key=natural):
        text = path.read_text()
        match = re.match(r'"""([^"\n]+)', text)
        source = Source("built-in", file_in_project(path), 1)
        if "\ndef figure() -> Figure:" not in text:
            raise BadDefinition(source, path.stem, "has no function figure() -> Figure")
        module = ".".join(path.relative_to(published).with_suffix("").parts)
        description = match[1] if match else ""
        FIGURES.add(path.stem.replace("_", "-"), _later(module, description), source)


_register_modules()
