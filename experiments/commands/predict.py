"""`predict`: compute the formulas of an experiment, or a figure of a paper beside what the paper states."""

import csv
import io
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from railyard.core.errors import BadInput
from railyard.experiments.commands.options import (
    Overrides,
    PluginFiles,
    completion,
    console,
    plain_table,
    shows_progress,
)
from railyard.experiments.predict.unsteered import png, save
from railyard.experiments.spec import loading
from railyard.experiments.spec.loading import load_any
from railyard.results.plots import style
from railyard.results.published.catalogue import FIGURES, Cell
from railyard.results.views.format import digits

if TYPE_CHECKING:
    import matplotlib.figure

SHOWN: Final = 40  # rows in the terminal; NAME.csv has all


def show(name: str, folder: Path, console: Console) -> int:
    """Compute a figure, write NAME.csv and NAME.png, and print its rows, what the paper states, and the notes.

    Return 1 if a claim is not met and has no note that explains it.
    """
    with console.status(f"computing {name}"):
        figure = FIGURES[name]()
        title = f"{figure.title} ({figure.source})"

        def draw() -> "matplotlib.figure.Figure":
            drawn = style.new_figure(*figure.inches)
            figure.draw(drawn)
            return drawn

        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([figure.columns, *figure.rows])
        files = save(name, text.getvalue().encode(), png(title, draw), folder)
    numeric = [any(isinstance(row[n], int | float) for row in figure.rows) for n in range(len(figure.columns))]
    table = plain_table(*figure.columns, right=list(compress(figure.columns, numeric)), title=title)
    for row in figure.rows[:SHOWN]:
        table.add_row(*map(_cell, row))
    console.print(table)
    if len(figure.rows) > SHOWN:
        console.print(f"… {len(figure.rows) - SHOWN} more rows in {name}.csv", style="dim")
    for claim in figure.claims:
        mark, bound = "✓" if claim.agrees else "≠", f"{claim.bound} " if claim.bound else ""
        unit = claim.unit if claim.unit == "%" else f" {claim.unit}"
        published, ours = (
            # counts, and what a paper printed without decimals, as they are
            f"{value:,.0f}{unit}" if value == int(value) else f"{digits(value, 4)}{unit}"
            for value in (claim.published, claim.ours)
        )
        line = f"{mark} {claim.what}: {claim.stated} {bound}{published}, ours {ours}"
        console.print(f"{line}; {claim.note}" if claim.note else line, highlight=False, soft_wrap=True)
    for note in figure.notes:
        console.print(f"note: {note}", style="dim", highlight=False)
    print(*files, sep="\n")
    return 0 if all(claim.agrees or claim.note for claim in figure.claims) else 1


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return digits(value, 4)
    return f"{value:,}" if isinstance(value, int) else value


@shows_progress
def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|FIGURE",
            help="An experiment, or a figure or table of the papers: fig8, table2 (`list` shows all).",
            autocompletion=completion(lambda: [*loading.names(), *FIGURES]),
        ),
    ],
    overrides: Overrides,
    out: Annotated[Path, typer.Option(help="The folder for NAME.csv and NAME.png.")] = Path(),
    seed: Annotated[int | None, typer.Option(help="Seed of shuffled transfers and uneven experts.")] = None,
    *,
    plugin_files: PluginFiles,
) -> int:
    """Compute the formulas without running anything; write NAME.csv and NAME.png. Needs no root."""
    if loading.is_figure(name):
        if overrides:
            raise BadInput("-o", overrides[0], f"{name} is as the paper has it: nothing of it can be changed")
        return show(name, out, console())
    spec = load_any(name, overrides, seed)
    return spec.family.predict(spec, out, console())
