"""Options and arguments that several commands share, their console and tables. Light to import: `list` needs it."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from railyard.core import plugins


def load_plugins(files: list[Path]) -> list[Path]:
    """Load plugin files while the command line is read, before any name in it is looked up."""
    for file in files:
        from railyard.core.sandbox.hidden import check_visible

        plugins.load(file)
        check_visible("--plugin", file)
    return files


Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="An experiment of `list`, or your own YAML file.")]
Overrides = Annotated[
    list[str],
    typer.Option(
        "-o",
        metavar="KEY=VALUE",
        default_factory=list,
        show_default=False,
        help="Change the experiment: domains=8, workloads.0.duration=2s.",
    ),
]
PluginFiles = Annotated[
    list[Path],
    typer.Option(
        "--plugin",
        metavar="FILE",
        default_factory=list,
        show_default=False,
        is_eager=True,
        callback=load_plugins,
        help="Load your own definitions: faults, policies, workloads, ... (docs/extending.md).",
    ),
]
LiveRunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run that `ps` lists: its name, its experiment, or its pid.")
]


def console() -> Console:
    """Return a console as wide as the terminal, or 120 columns where there is none."""
    return Console(width=None if sys.stdout.isatty() else 120)


def plain_table(*columns: str, right: Collection[str] = (), title: str | None = None) -> Table:
    """Return a table without lines; the columns in `right` are right-aligned."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
