"""`predict`: compute the formulas of an experiment, or a figure of a paper beside what the paper states."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.memory import keep_freed_memory
from railyard.experiments.measures.definition import measures_of
from railyard.experiments.options import (
    Overrides,
    PluginFiles,
    Topo,
    catalogue_names,
    completion,
    console,
    experiment_of,
    plain_table,
    platform_names,
    shows_progress,
)
from railyard.experiments.spec import loading
from railyard.experiments.spec.loading import load_any
from railyard.results.format import digits, rows_with_room
from railyard.results.published.catalogue import FIGURES, Cell, Claim, Figure

PURPOSE = "Compute and check, without packets"

if TYPE_CHECKING:
    import matplotlib.figure

    from railyard.experiments.predict.output import Predicted
    from railyard.experiments.spec.experiment import ExperimentSpec

BUSBW: Final = "busbw"
MOE_COST: Final = "moe-cost"
BUSBW_OPTIONS: Final = "Options of busbw"
MOE_COST_OPTIONS: Final = "Options of moe-cost"
BOTH_OPTIONS: Final = "Options of busbw and moe-cost"
OWN_OPTIONS: Final = {
    BUSBW: ("platform", "gpus", "domain_gpus", "collective", "nccl", "form", "forwarding"),
    MOE_COST: ("platform", "domain_gpus", "model", "ep", "precision"),
}
"""Predictions with options, and the names of these."""
SHOWN: Final = 40  # rows in the terminal; NAME.csv has all


def figure_of(name: str, compute: Callable[[], Figure] | None = None) -> "Predicted":
    """Compute a figure of a paper. Its status is 1 if a claim is not met and has no note that explains it.

    compute: computes it with options, in place of the figure of this name
    """
    # this import loads matplotlib, which shell completion need not do
    from railyard.experiments.predict.output import Predicted
    from railyard.results.plots import style

    figure = (compute or FIGURES[name])()

    def draw() -> "matplotlib.figure.Figure":
        drawn = style.new_figure(*figure.inches)
        figure.draw(drawn)
        return drawn

    claims: list[dict[str, Any]] = []
    has_unexplained = False
    for claim in figure.claims:
        claims.append(asdict(claim) | {"agrees": claim.agrees})
        has_unexplained |= not (claim.agrees or claim.note)
    return Predicted(
        name,
        f"{figure.title} ({figure.source})",
        figure.columns,
        figure.rows,
        draw,
        partial(_print_figure, name, figure),
        {"claims": claims, "notes": list(figure.notes)},
        int(has_unexplained),
    )


def _print_figure(name: str, figure: Figure, console: Console) -> None:
    """Print its rows, what the paper states, and the notes."""
    title = f"{figure.title} ({figure.source})"
    numeric: set[str] = set()
    for row in figure.rows:
        for column, value in zip(figure.columns, row, strict=True):
            if isinstance(value, int | float):
                numeric.add(column)
    table = plain_table(*figure.columns, right=numeric, title=title)
    shown = rows_with_room(figure.rows, SHOWN)
    for row in shown:
        table.add_row(*map(_cell, row))
    console.print(table)
    if len(figure.rows) > len(shown):
        console.print(f"… {len(figure.rows) - len(shown)} more rows in {name}.csv", style="dim")
    for claim in figure.claims:
        console.print(_claim_text(claim), highlight=False, soft_wrap=True)
    for note in figure.notes:
        console.print(f"note: {note}", style="dim", highlight=False)


def _claim_text(claim: Claim) -> str:
    """Return a number of the paper beside ours, and why they differ."""
    mark = "✓" if claim.agrees else "≠"
    unit = claim.unit
    if unit != "%":
        unit = f" {unit}"
    published = f"{claim.bound} {_claimed(claim.published)}".lstrip()
    line = f"{mark} {claim.what}: {claim.stated} {published}{unit}, ours {_claimed(claim.ours)}{unit}"
    if claim.note:
        line += f"; {claim.note}"
    return line


def _claimed(value: float) -> str:
    """Return counts, and what a paper printed without decimals, as they are; other values with four digits."""
    if value == int(value):
        return f"{value:,.0f}"
    return digits(value, 4)


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return digits(value, 4)
    if isinstance(value, int):
        return f"{value:,}"
    return value


def predicted(spec: "ExperimentSpec") -> "Predicted":
    """Return the times of an experiment by formulas. BadInput if no measure has any."""
    keys: list[str] = []
    for measure in measures_of(spec):
        prediction = measure.predict(spec)
        if prediction:
            return prediction
        keys.append(measure.key)
    sections = " and ".join(keys) or "fabrics"
    raise BadInput("NAME", spec.name, f"has only {sections}: there is no formula for these, so run it")


@shows_progress
def command(
    overrides: Overrides,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME|FILE|FIGURE]",
            show_default=False,
            help="An experiment, a figure or table of the papers (fig8, table2; `list` shows all), or busbw: what "
            "nccl-tests should show.",
            autocompletion=completion(lambda: [*loading.names(), *FIGURES, BUSBW]),
        ),
    ] = "",
    topo: Topo = "",
    out: Annotated[
        Path | None, typer.Option(help="The folder for NAME.csv and NAME.png.", show_default="this folder")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of shuffled transfers and uneven experts.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows as JSON, times in seconds; write files only to --out.")
    ] = False,
    platform: Annotated[
        str,
        typer.Option(
            help="The platform, or your own YAML file.",
            show_default="h100; moe-cost: h100 and gb200-nvl72",
            rich_help_panel=BOTH_OPTIONS,
            autocompletion=completion(platform_names),
        ),
    ] = "",
    gpus: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=2**20,
            show_default="16, or the file's",
            help="GPUs of the collective.",
            rich_help_panel=BUSBW_OPTIONS,
        ),
    ] = None,
    domain_gpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**20,
            show_default="the platform's, or a host's",
            help="GPUs in an HB domain (K).",
            rich_help_panel=BOTH_OPTIONS,
        ),
    ] = None,
    collective: Annotated[
        str,
        typer.Option(
            help="all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or reduce.",
            show_default="all-reduce",
            rich_help_panel=BUSBW_OPTIONS,
        ),
    ] = "",
    nccl: Annotated[
        Path | None,
        typer.Option(
            help="Take the constants from your nccl-tests output.",
            show_default=False,
            rich_help_panel=BUSBW_OPTIONS,
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            help="As measured, or ideal: full rates and no latency.",
            show_default="measured",
            rich_help_panel=BUSBW_OPTIONS,
        ),
    ] = "",
    forwarding: Annotated[
        bool,
        typer.Option(
            "--forwarding", help="An all-to-all through HB domains, as on rail-only.", rich_help_panel=BUSBW_OPTIONS
        ),
    ] = False,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL[,FILE...]",
            help="Mixtures of experts: of the catalogue, your own YAML file, or a config.json of Hugging Face.",
            show_default="six of the catalogue",
            rich_help_panel=MOE_COST_OPTIONS,
            autocompletion=completion(catalogue_names),
        ),
    ] = "",
    ep: Annotated[
        str,
        typer.Option(
            metavar="N[,N...]",
            help="GPUs of an expert-parallel group.",
            show_default="8,32,64",
            rich_help_panel=MOE_COST_OPTIONS,
        ),
    ] = "",
    precision: Annotated[
        str,
        typer.Option(
            help="Number format of matmuls with parameters: bf16, fp8, mxfp8 or nvfp4.",
            show_default="bf16",
            rich_help_panel=MOE_COST_OPTIONS,
        ),
    ] = "",
    *,
    plugin_files: PluginFiles,
) -> int:
    """Compute the formulas without running anything; write NAME.csv and NAME.png. Needs no root."""
    values = {
        "platform": platform,
        "gpus": gpus,
        "domain_gpus": domain_gpus,
        "collective": collective,
        "nccl": str(nccl or ""),
        "form": form,
        "forwarding": forwarding,
        "model": model,
        "ep": ep,
        "precision": precision,
    }
    own_options = {key: value for key, value in values.items() if value}
    _check_own_options(name, own_options)
    if name == BUSBW:
        return _finish(_busbw(own_options, overrides, topo), out, as_json)
    name = experiment_of(name, topo)
    if loading.is_figure(name):
        if topo:
            raise BadInput("--topo", topo, f"{name} is a figure of a paper, on its own fabrics")
        if overrides:
            allowed = f"{name} is as the paper has it: nothing of it can be changed"
            if name == MOE_COST:
                allowed = f"{name} has options: --{', --'.join(OWN_OPTIONS[name]).replace('_', '-')}"
            raise BadInput("-o", overrides[0], allowed)
        compute = _moe_cost(own_options) if name == MOE_COST else None
        result = figure_of(name, compute)
    else:
        keep_freed_memory()
        spec = load_any(name, overrides, seed, topo)
        result = predicted(spec)
    return _finish(result, out, as_json)


def _check_own_options(name: str, own_options: dict[str, Any]) -> None:
    """BadInput for an option that the prediction doesn't have, which would be taken for one that changed something."""
    for key, value in own_options.items():
        owners = [owner for owner, keys in OWN_OPTIONS.items() if key in keys]
        if name not in owners:
            allowed = f"is an option of {' and '.join(owners)}: {name or 'an experiment'} doesn't have it"
            raise BadInput(f"--{key.replace('_', '-')}", value, allowed)


def _moe_cost(own_options: dict[str, Any]) -> Callable[[], Figure]:
    """Return what computes the cost of rail-only for mixtures of experts with these options."""
    # numerical libraries aren't needed to complete a command line
    from railyard.experiments.predict.moe_cost import MoeCostOptions, moe_cost_figure

    return partial(moe_cost_figure, MoeCostOptions(**own_options))


def _busbw(busbw_options: dict[str, Any], overrides: list[str], topo: str) -> "Predicted":
    """Return what nccl-tests should show, with these options."""
    # numerical libraries aren't needed to complete a command line
    from railyard.experiments.predict.busbw import BusbwOptions, predict_busbw

    if overrides or topo:
        raise BadInput("-o" if overrides else "--topo", overrides[0] if overrides else topo, "is not for busbw")
    return predict_busbw(BusbwOptions(**busbw_options))


def _finish(result: "Predicted", out: Path | None, as_json: bool) -> int:
    """Write the files of a prediction, print it, and return its status."""
    files = result.save(out or Path()) if out or not as_json else ()
    if as_json:
        print(json.dumps(result.as_dict(), indent=1))
    else:
        result.show(console())
        print(*files, sep="\n")
    return result.status
