"""Figures and tables of papers that `predict` computes anew: one module of figures/ each, loaded when it is computed.

The first line of the module's docstring describes it; its function `figure()` computes it. A plugin registers such a
function, with a docstring: `@FIGURES.register("my-figure")`.
"""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from railyard.core.plugins import BadDefinition, Source
from railyard.core.registry import Registry
from railyard.results.published.figure import Figure

FOLDER: Final = Path(__file__).parent / "figures"
Compute = Callable[[], Figure]


class _Module:
    """A module of figures/ that isn't imported yet: matplotlib and the models of training take a second to load."""

    def __init__(self, name: str, description: str) -> None:
        self._name, self.__doc__ = name, description

    def __call__(self) -> Figure:
        made: Figure = import_module(f"railyard.results.published.figures.{self._name}").figure()
        return made


def _missing_parts(_name: str, compute: object) -> Iterator[str]:
    if not callable(compute):
        yield "must be a function that returns a Figure"
    if not compute.__doc__:
        yield "has no docstring, whose first line describes it"


FIGURES: Final = Registry[Compute]("figure", __name__, _missing_parts)
"""Functions by the name of the figure or table."""


def describe(name: str) -> str:
    """Return what a figure shows, in one line."""
    return (FIGURES[name].__doc__ or "").strip().splitlines()[0].rstrip(".")


def _register_modules() -> None:
    """Register every module of figures/, in natural order: fig2 before fig10."""

    def natural(path: Path) -> list[str]:
        return [part.zfill(4) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]

    for path in sorted(FOLDER.glob("[!_]*.py"), key=natural):
        text = path.read_text()
        found = re.match(r'"""([^"\n]+)', text)
        source = Source("built-in", str(path), 1)
        if "\ndef figure() -> Figure:" not in text:
            raise BadDefinition(source, path.stem, "has no function figure() -> Figure")
        FIGURES.add(path.stem, _Module(path.stem, found[1] if found else ""), source)


_register_modules()
