"""A multi-rail run on the terminal: the whole benchmark, a table a fabric, then what was wanted of it."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from railyard.results.multirail import tables
from railyard.results.multirail.compare import by_fabric
from railyard.results.multirail.records import Multirail
from railyard.results.multirail.targets import outcomes
from railyard.results.runs.fidelity import Judgement
from railyard.results.views.report_tables import Table
from railyard.results.views.terminal import Column, fit_to_width

_TITLE = "time of an allreduce (gain: nezha over the better single rail; m/p: measured over predicted)"


def print_tables(found: Multirail, judgement: Judgement, console: Console) -> None:
    """All of it: the table is what such a run is for."""
    invalid = tables.invalid_points(judgement)
    for title, table, fixed_columns, note in _tables(found, invalid):
        if table.rows:
            console.print(fit_to_width(console, title, _columns(table, fixed_columns), 0, note))
            console.print()
    if tables.slow_motion((*found.points, *found.trainings)):
        console.print(Text(f"{tables.SLOW_MOTION}: {tables.SLOW_MOTION_NOTE}", style="dim"), highlight=False)
    if invalid:
        console.print(Text("?: the machine was measured there, and not the fabric", style="dim"), highlight=False)
    missing = [o.target.what for o in outcomes(found) if not o.measured]
    if missing:
        console.print(Text(f"not measured: {'; '.join(missing)}", style="dim"), highlight=False)
    for skipped in found.skipped:
        console.print(
            Text(f"not run: {skipped.policy} on {skipped.fabric}: {skipped.why}", style="dim"), highlight=False
        )


def _tables(found: Multirail, invalid: tables.InvalidPoints) -> Iterator[tuple[str, Table, int, str]]:
    """(title, table, how many of its columns are always there, a line below it)."""
    for m in by_fabric(found):
        fixed_columns = 5 if tables.slow_motion(m.points) else 4
        yield f"{m.rails.label}: {_TITLE}", tables.benchmark_table(m, invalid), fixed_columns, tables.starts_text(m)
    paper = tables.table_1(found)
    if paper is not None:
        yield "Nezha's Table 1, and the same here", paper, 4, ""
    yield "nezha leaves to one rail", tables.thresholds_table(found), 4, ""
    yield "Throughput over the better single rail", tables.gains_table(found), 6, ""
    yield "Rails that went away and came back", tables.cuts_table(found.cuts), 6, ""
    yield "Trainings", tables.trainings_table(found), 6, ""
    yield "DDP over Gloo and over Railyard's backend", tables.ddp_runs_table(found), 5, ""
    yield "What it has to show", tables.targets_table([o for o in outcomes(found) if o.measured]), 5, ""


def _columns(table: Table, fixed_columns: int) -> list[Column]:
    """On a narrow screen the last columns go first."""
    cells = zip(*table.rows, strict=True)
    named = zip(table.columns, cells, strict=True)
    return [
        Column(name, column, drop=max(0, n - fixed_columns + 1), text=n < table.numbers)
        for n, (name, column) in enumerate(named)
    ]
