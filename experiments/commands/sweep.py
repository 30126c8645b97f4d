"""`sweep`: run an experiment at every combination of values, on this machine or on those of a Dask cluster."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import pandas as pd
import typer
from rich.console import Console

from railyard.core.errors import BadInput, print_error
from railyard.core.host import detect, require
from railyard.core.units import format_time
from railyard.experiments.machines import dask
from railyard.experiments.measures.workloads.predict import predictions
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.options import Insecure, KeyFile, Name, Overrides, PluginFiles, console, plain_table
from railyard.experiments.run.folder import reporting_path_errors
from railyard.experiments.spec.duration import about, duration_s
from railyard.experiments.spec.parsing import parse
from railyard.experiments.sweep import access
from railyard.experiments.sweep import spec as specification
from railyard.experiments.sweep.access import LOCAL
from railyard.experiments.sweep.driver import Driver, Machines
from railyard.experiments.sweep.folder import FAILED, MACHINES, TABLE, SweepFolder, swept_kinds
from railyard.experiments.sweep.local import Local
from railyard.experiments.sweep.spec import Cell, Sweep
from railyard.results import format as fmt
from railyard.results.analysis.limits import LINK_RATE
from railyard.results.sources import RUNS
from railyard.results.views import sweep as views
from railyard.results.views.table import Table

if TYPE_CHECKING:
    from railyard.experiments.sweep.keys import Keys

PURPOSE = "Run experiments"
RETRIES: Final = ("degraded", "invalid", FAILED)
MAX_SHOWN: Final = 40


class _Terminated(Exception):
    """SIGTERM."""


def command(
    name: Name,
    overrides: Overrides,
    *,
    axis: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=V1,V2,...",
            default_factory=list,
            show_default=False,
            help="An axis: a key as `-o` takes it, and its values.",
        ),
    ],
    seeds: Annotated[str, typer.Option(metavar="1..5", show_default=False, help="An axis of seeds.")] = "",
    zipped: Annotated[
        bool, typer.Option("--zip", help="Combine only the first values of all axes, then the second ones, ...")
    ] = False,
    where: Annotated[
        str,
        typer.Option(
            metavar="EXPRESSION", show_default=False, help="Run only these combinations: 'domains * rails <= 16'."
        ),
    ] = "",
    on: Annotated[
        str,
        typer.Option(
            metavar="local|tls://SCHEDULER|ssh:H1,H2", help="The machines: this one, or those of Dask workers."
        ),
    ] = LOCAL,
    keys: KeyFile = None,
    insecure: Insecure = False,
    out: Annotated[Path | None, typer.Option(show_default="sweeps/NAME", help="The sweep's folder.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and what is there; run nothing.")] = False,
    retry: Annotated[
        str, typer.Option(metavar="invalid,degraded,failed", show_default=False, help="Repeat runs with these results.")
    ] = "",
    no_queue: Annotated[
        bool, typer.Option("--no-queue", help="Start runs at once, also while others measure on the machine.")
    ] = False,
    plugin_files: PluginFiles,
) -> int:
    """Run an experiment at every combination of values of its axes, one run at a time on each machine.

    Runs that are in the folder already are not run again, so a sweep that was stopped goes on where it was. The axes
    are those of the command line and of `axes:` in the file.

    Exit status 1 if a run failed or is invalid, or if machines differ.
    """
    with console(stderr=True).status("checking each run's values"):
        sweep = specification.load(name, overrides, axis, seeds, zipped, where)
    again = _retries(retry)
    path = out or Path("sweeps", sweep.name)
    screen = console(stderr=False)
    access.check(on, keys, insecure)
    if dry_run:
        with reporting_path_errors("--out", path):
            _show_plan(sweep, path, again, screen)
        return 0
    if on == LOCAL:
        require(detect())
    else:
        dask.require()
    loaded = access.load_keys(keys)
    with reporting_path_errors("--out", path), SweepFolder(path, sweep) as folder:
        folder.claim()
        missing = [cell for cell in sweep.cells if folder.state(cell.name) in ("", *again)]
        with _machines(on if missing else LOCAL, loaded) as machines, _terminating():
            return _run(sweep, folder, machines, missing, screen, no_queue)


def _run(
    sweep: Sweep, folder: SweepFolder, machines: Machines, missing: Sequence[Cell], screen: Console, no_queue: bool
) -> int:
    if there := len(sweep.cells) - len(missing):
        screen.print(f"{there} of {len(sweep.cells)} runs are there already", highlight=False)
    failed = list[str]()
    status = 0
    try:
        driver = Driver(folder, machines, screen, lambda: write(sweep, folder), no_queue)
        failed = driver.run(missing, seed=len(sweep.cells)).failed
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except _Terminated:
        status = 128 + signal.SIGTERM
    finally:
        shown, notes = write(sweep, folder)
    for table in shown:
        screen.print(table.to_terminal())
    for line in notes:
        screen.print(f"note: {line}", highlight=False, soft_wrap=True)
    for line in failed:
        print_error(line, 1)
    unusable = list(_unusable(sweep, folder))
    for line in unusable:
        screen.print(line, highlight=False, soft_wrap=True)
    if status:
        there = sum(bool(folder.state(cell.name)) for cell in sweep.cells)
        screen.print(
            f"stopped: {there} of {len(sweep.cells)} runs are there; the same command goes on", highlight=False
        )
    screen.print(f"{folder.path / 'report.html'}", highlight=False, soft_wrap=True)
    return status or (1 if failed or notes or unusable else 0)


def _unusable(sweep: Sweep, folder: SweepFolder) -> Iterator[str]:
    """Yield a line for runs that failed or are damaged, and one for invalid ones: how many, the first, the remedy."""
    for state, words in ((FAILED, "failed or damaged"), ("invalid", "invalid")):
        cells = [cell for cell in sweep.cells if folder.state(cell.name) == state]
        if cells:
            first = f"{cells[0].label} ({RUNS}/{cells[0].name})"
            yield f"{words}: {len(cells)} of {len(sweep.cells)} runs, first {first}; run again with --retry {state}"


def write(sweep: Sweep, folder: SweepFolder) -> tuple[list[Table], list[str]]:
    """Write tables and report; return what to show, and what is wrong with putting the machines' results together."""
    axes = list(sweep.axes)
    machines = folder.machines()
    tables = folder.write_results()
    results = tables.get(TABLE, pd.DataFrame())
    shown = views.tables(results, axes)
    axes_without_seed = [axis for axis in axes if axis != views.SEED]
    for measure, kind in swept_kinds():
        if kind.sweep_file in tables:
            table = measure.sweep_table(kind, tables[kind.sweep_file], axes_without_seed)
            if table is not None:
                shown.append(table)
    notes = list(_differences(machines))
    runs = [
        {
            **folder.record(cell.name),
            "folder": cell.name,
            "label": cell.label,
            "state": folder.state(cell.name) or views.MISSING,
        }
        for cell in sweep.cells
    ]
    drawn = views.figures(results, axes)
    csv = views.csv_of(results, axes)
    folder.write("report.html", views.render(sweep.name, shown, drawn, csv, runs, machines, notes))
    return shown, notes


def _differences(machines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield why the results of machines should not be put together: their sentinels differ, or are invalid."""
    timed = [machine for machine in machines if machine["seconds"]]
    for machine in machines:
        if machine["verdict"] == FAILED:
            name = machine["machine"]
            yield (
                f"the sentinel experiment of {name} failed or is damaged ({MACHINES}/{name}), "
                "so it can't be compared with others: it is measured again before the next run there"
            )
        if machine["verdict"] == "invalid":
            yield f"the sentinel experiment is invalid on {machine['machine']}: its results are not to be believed"
    if timed:
        fast, slow = (choose(timed, key=lambda machine: machine["seconds"]) for choose in (min, max))
        off = slow["seconds"] / fast["seconds"] - 1
        if off > LINK_RATE.degraded:
            yield (
                f"machines differ: the sentinel takes {fmt.percent(off)} longer on {slow['machine']} than on "
                f"{fast['machine']} ({fmt.percent(LINK_RATE.degraded)} is the limit): compare results by machine"
            )


def _retries(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    for word in names:
        if word not in RETRIES:
            raise BadInput("--retry", word, f"must be of {', '.join(RETRIES)}")
    return names


@contextmanager
def _machines(on: str, keys: "Keys | None") -> Iterator[Machines]:
    if on == LOCAL:
        yield Local()
        return
    # this import loads Dask, which takes a second
    from railyard.experiments.sweep.cluster import Cluster

    cluster = Cluster(on, keys)
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def _terminating() -> Iterator[None]:
    def terminate(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_plan(sweep: Sweep, path: Path, again: Sequence[str], screen: Console) -> None:
    """Print the runs, what is there, and how long the others are expected to take."""
    states: dict[str, str] = {}
    median_s = None
    if path.exists():
        with SweepFolder(path, sweep) as folder:
            states = {cell.name: folder.state(cell.name) for cell in sweep.cells}
            median_s = _median_s(folder, [name for name, state in states.items() if state])
    missing = {cell.name for cell in sweep.cells if states.get(cell.name, "") in ("", *again)}
    table = plain_table("run", *sweep.axes, "state", "expected", right=("expected",))
    shown_cells = sweep.cells[: len(fmt.rows_with_room(sweep.cells, MAX_SHOWN))]
    with console(stderr=True).status("predicting how long each run takes"):
        for cell in shown_cells:
            values = [str(value) for value in cell.axes.values()]
            expected = _expected(cell, median_s) if cell.name in missing else ""
            table.add_row(cell.name, *values, states.get(cell.name) or views.MISSING, expected)
    screen.print(table)
    more = len(sweep.cells) - len(shown_cells)
    if more > 0:
        screen.print(f"… {more} more runs")
    line = f"{len(sweep.cells)} runs, {len(missing)} to do"
    if median_s and missing:
        line += f", about {format_time(round(median_s * len(missing)))} on one machine"
    screen.print(line, highlight=False)


def _median_s(folder: SweepFolder, names: Sequence[str]) -> float | None:
    """Return the median time of the runs of these names that have ended; None if none has."""
    records = [folder.record(name) for name in names]
    durations_s = [(record["end_ns"] - record["start_ns"]) / 1e9 for record in records if "end_ns" in record]
    return median(durations_s) if durations_s else None


def _expected(cell: Cell, measured: float | None) -> str:
    """Return how long a run takes: as the others did, by its times, or at least what is predicted of its workloads."""
    if measured is not None:
        return fmt.seconds(measured)
    spec = parse(cell.spec)
    if (seconds := duration_s(spec)) is not None:
        return f"about {about(seconds)}"
    if not spec.gpu_fabrics or not workloads_of(spec):
        return fmt.NOTHING
    # a workload has a time as a whole, or one phase
    longest: dict[tuple[str, str], float] = {}
    for row in predictions(spec):
        key = row.fabric, row.workload
        longest[key] = max(longest.get(key, 0.0), row.predicted or 0.0)
    return f"> {fmt.seconds(sum(longest.values()) * spec.repeats)}"
