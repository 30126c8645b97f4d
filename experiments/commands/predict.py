"""`predict`: compute the formulas of an experiment, or a figure of a paper beside what the paper states."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from railyard.core.errors import BadInput
from railyard.experiments.commands.options import Overrides, PluginFiles, console
from railyard.experiments.predict.unsteered import PNG_METADATA, save
from railyard.experiments.spec import loading
from railyard.experiments.spec.kind import kind_of
from railyard.experiments.spec.loading import load_any
from railyard.results.plots import style
from railyard.results.published.catalogue import FIGURES, Cell, Claim, Figure
from railyard.results.views.format import digits

SHOWN: Final = 40  # rows in the terminal; NAME.csv has all


def show(name: str, overrides: Sequence[str], folder: Path, console: Console) -> int:
    """Compute, write NAME.csv and NAME.png, print. 1 if a claim of the paper is not met and nothing explains it."""
    if overrides:
        raise BadInput("-o", overrides[0], f"{name} is as the paper has it: nothing of it can be changed")
    with console.status(f"computing {name}"):
        figure = FIGURES[name]()
        files = save(name, to_csv(figure), to_png(figure), folder)
    print_figure(figure, console)
    print(*files, sep="\n")
    return 0 if all(claim.agrees or claim.note for claim in figure.claims) else 1


def to_csv(figure: Figure) -> bytes:
    """The rows with a header."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(figure.columns)
    writer.writerows(figure.rows)
    return sink.getvalue().encode()


def to_png(figure: Figure) -> bytes:
    """Its drawing, under its title."""
    with style.styled():
        drawn = style.new_figure(*figure.inches)
        drawn.set_facecolor("white")
        figure.draw(drawn)
        drawn.suptitle(f"{figure.title} ({figure.source})", fontweight="bold", x=0.01, ha="left")
        sink = io.BytesIO()
        drawn.savefig(sink, format="png", dpi=120, facecolor="white", metadata=PNG_METADATA)
    return sink.getvalue()


def print_figure(figure: Figure, console: Console) -> None:
    """The rows, what the paper states beside ours, and the notes."""
    table = Table(title=f"{figure.title} ({figure.source})", title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(figure.columns):
        numeric = any(isinstance(row[number], int | float) for row in figure.rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in figure.rows[:SHOWN]:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)
    if len(figure.rows) > SHOWN:
        console.print(f"… {len(figure.rows) - SHOWN} more rows in {figure.name}.csv", style="dim")
    for claim in figure.claims:
        console.print(_claim(claim), highlight=False, soft_wrap=True)
    for note in figure.notes:
        console.print(f"note: {note}", style="dim", highlight=False)


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return digits(value, 4)
    return f"{value:,}" if isinstance(value, int) else value


def _number(value: float) -> str:
    """Counts, and what a paper printed without decimals, as they are."""
    return f"{value:,.0f}" if value == int(value) else digits(value, 4)


def _claim(claim: Claim) -> str:
    mark = "✓" if claim.agrees else "≠"
    bound = f"{claim.bound} " if claim.bound else ""
    unit = "" if claim.unit == "%" else " "
    stated_value = f"{bound}{_number(claim.published)}{unit}{claim.unit}"
    text = f"{mark} {claim.what}: {claim.stated} {stated_value}, ours {_number(claim.ours)}{unit}{claim.unit}"
    return f"{text}; {claim.note}" if claim.note else text


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
    if loading.is_figure(name):
        return show(name, overrides, out, console())
    spec = load_any(name, overrides, seed)
    return kind_of(spec).predict(spec, out, console())
