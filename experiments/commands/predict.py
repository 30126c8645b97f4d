"""`predict`: compute what the formulas say about an experiment, or a figure of a paper."""

from pathlib import Path
from typing import Annotated

import typer

from railyard.experiments.commands import published
from railyard.experiments.commands.options import Overrides, PluginFiles, console
from railyard.experiments.spec import catalogue
from railyard.experiments.spec.kind import kind_of
from railyard.experiments.spec.loading import load_any


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|FIGURE",
            help="An experiment, or a figure or table of the papers: fig8, table2 (`list` shows all).",
        ),
    ],
    overrides: Overrides,
    out: Annotated[Path, typer.Option(help="The folder for NAME.csv and NAME.png.")] = Path(),
    seed: Annotated[int | None, typer.Option(help="Seed of shuffled transfers and uneven experts.")] = None,
    *,
    plugin_files: PluginFiles,
) -> int:
    """Compute the formulas without running anything; write NAME.csv and NAME.png. Needs no root."""
    if catalogue.is_figure(name):
        return published.show(name, overrides, out, console())
    spec = load_any(name, overrides, seed)
    return kind_of(spec).predict(spec, out, console())
