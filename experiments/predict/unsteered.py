"""What the papers' equations say of an experiment, without running it: a table, NAME.csv and NAME.png."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.core.units import format_rate
from railyard.experiments.run.folder import reporting_path_errors
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.results.analysis.aggregate import Spread
from railyard.results.plots import style, sweep
from railyard.results.theory.predict import WHOLE, equation, predict_schedule
from railyard.results.views import format as fmt
from railyard.topologies.spec import FabricSpec
from railyard.workloads.scale import payload_rates
from railyard.workloads.spec import Workload, build

PNG_METADATA: Final = {"Software": "Railyard"}
"""By this a drawing is known again as one that may be overwritten."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A row of NAME.csv, named as in results.csv. `predicted` is of one run of the phase, in s."""

    fabric: str
    policy: str
    workload: str
    phase: str
    metric: str
    predicted: float
    unit: str
    equation: str


def show(spec: ExperimentSpec, out: Path, console: Console) -> int:
    """Compute, write, print."""
    rows = predictions(spec)
    files = write(rows, spec, out)
    print_table(spec, rows, console)
    print(*files, sep="\n")
    return 0


def predictions(spec: ExperimentSpec) -> tuple[Prediction, ...]:
    """Every phase of every workload on every fabric. BadInput where there is no workload: faults have no formula."""
    if not spec.workloads:
        raise BadInput("NAME", spec.name, "has no workloads, only faults: there is no formula for these, so run it")
    return tuple(
        row
        for label, fabric in zip(spec.labels, spec.fabrics, strict=True)
        for name, workload in zip(spec.workload_labels, spec.workloads, strict=True)
        for row in _of(label, fabric, name, workload, spec.seed)
    )


def _of(label: str, fabric: FabricSpec, name: str, workload: Workload, seed: int) -> Iterable[Prediction]:
    plan = nominal_plan(fabric)
    schedule, _ = build(workload, fabric, plan.rail_bps, plan.hb_bps, seed=seed)
    rates = payload_rates(plan.hb_bps, plan.rail_bps, fabric.mtu)
    times = predict_schedule(schedule, rates, fabric)
    by_name = {phase.name: phase for phase in schedule.phases}
    what = (label, plan.policy, name)
    if WHOLE in times:
        named = ("iteration_time", "Eq. 6") if workload.is_iteration else ("completion_time", "all rounds")
        yield Prediction(*what, WHOLE, named[0], times[WHOLE], "s", named[1])
    for phase, run in by_name.items():
        yield Prediction(*what, phase, "completion_time", times[phase], "s", equation(run, rates, fabric))


def write(rows: Sequence[Prediction], spec: ExperimentSpec, folder: Path) -> tuple[Path, Path]:
    """NAME.csv and NAME.png."""
    return save(spec.name, to_csv(rows), to_png(rows, spec), folder)


def save(name: str, table: bytes, picture: bytes, folder: Path) -> tuple[Path, Path]:
    """Write NAME.csv and NAME.png, over older ones of their kind. BadInput if a file of that name is something else."""
    header, newline, _ = table.partition(b"\n")
    files = {
        f"{name}.csv": (header + newline, table),
        f"{name}.png": (f"tEXtSoftware\0{PNG_METADATA['Software']}".encode(), picture),
    }
    with reporting_path_errors("--out", folder):
        opened = Folder(folder, make=True)
    with opened:
        for file, (mark, _) in files.items():
            _check_replaceable(opened, file, mark)
        for file, (_, content) in files.items():
            with reporting_path_errors("--out", folder / file):
                opened.write(file, content)
    first, second = files
    return folder / first, folder / second


def _check_replaceable(folder: Folder, file: str, mark: bytes) -> None:
    """BadInput unless nothing is lost: no file, an empty one, or one with the mark of what is made anew at will."""
    path = folder.path / file
    with reporting_path_errors("--out", path):
        try:
            old = folder.read(file)
        except IsADirectoryError:
            allowed = "is there already and no file: move it away, or choose another --out"
            raise BadInput("--out", str(path), allowed) from None
    if old and mark not in old:
        allowed = "is there already and no prediction like this one, so it is left as it is: choose another --out"
        raise BadInput("--out", str(path), allowed)


def to_csv(rows: Sequence[Prediction]) -> bytes:
    """The rows with a header."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, [field.name for field in fields(Prediction)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return sink.getvalue().encode()


def to_png(rows: Sequence[Prediction], spec: ExperimentSpec) -> bytes:
    """Curves if all of it is a sweep, else bars."""
    data = spec.resolved()
    timed = {(row.fabric, row.workload, row.phase): Spread((), row.predicted) for row in rows}
    fabrics = list(zip(spec.labels, data["fabrics"], strict=True))
    workloads = list(zip(spec.workload_labels, data["workloads"], strict=True))
    found = sweep.curves(fabrics, workloads, timed)
    with style.styled():
        figure = _curves(found) if sweep.covers(found, timed) else _panels(rows)
        figure.set_facecolor("white")
        figure.suptitle(f"{spec.name}: predicted times", fontweight="bold", x=0.01, ha="left")
        sink = io.BytesIO()
        figure.savefig(sink, format="png", dpi=120, facecolor="white", metadata=PNG_METADATA)
    return sink.getvalue()


def _curves(found: Sequence[sweep.Curve]) -> Figure:
    heights = [sweep.height(curve) for curve in found]
    figure = style.new_figure(style.WIDTH, 0.4 + sum(heights))
    parts = figure.subfigures(len(found), 1, squeeze=False, height_ratios=heights)
    for part, curve in zip(parts[:, 0], found, strict=True):
        sweep.draw(part, curve)
    return figure


def _panels(rows: Sequence[Prediction]) -> Figure:
    """A panel a workload: for each of its phases a bar a fabric."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    colours = style.colours(list(dict.fromkeys(row.fabric for row in rows)))
    heights = [len(_bars(rows, workload)) + 1 for workload in workloads]
    figure = style.new_figure(style.WIDTH, 1.2 + 0.3 * sum(heights))
    panels = figure.subplots(len(workloads), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, workload in zip(panels[:, 0], workloads, strict=True):
        _draw(axes, _bars(rows, workload), colours)
        axes.set_title(workload)
    return figure


def _bars(rows: Sequence[Prediction], workload: str) -> list[Prediction]:
    mine = [row for row in rows if row.workload == workload]
    phases = list(dict.fromkeys(row.phase for row in mine))
    return sorted(mine, key=lambda row: phases.index(row.phase))


def _draw(axes: Axes, bars: Sequence[Prediction], colours: dict[str, str]) -> None:
    positions = range(len(bars))
    axes.barh(positions, [bar.predicted for bar in bars], color=[colours[bar.fabric] for bar in bars], height=0.7)
    axes.set_yticks(positions, [f"{bar.phase or 'iteration'} ({bar.fabric})" for bar in bars])
    axes.set_xlim(0, 1.15 * max(bar.predicted for bar in bars))
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    for position, bar in zip(positions, bars, strict=True):
        axes.annotate(f" {fmt.seconds(bar.predicted)}", (bar.predicted, position), va="center")
    style.quiet(axes, grid="x")


def print_table(spec: ExperimentSpec, rows: Sequence[Prediction], console: Console) -> None:
    """Fabrics side by side."""
    table = Table(title=f"{spec.name}: predicted times", title_justify="left", box=None, pad_edge=False)
    table.add_column("workload")
    table.add_column("phase")
    for name in spec.labels:
        table.add_column(name, justify="right")
    table.add_column("equation", style="dim")
    for workload, phase in dict.fromkeys((row.workload, row.phase) for row in rows):
        found = {row.fabric: row for row in rows if (row.workload, row.phase) == (workload, phase)}
        times = [fmt.seconds(found[name].predicted) if name in found else fmt.NOTHING for name in spec.labels]
        equations = ", ".join(dict.fromkeys(row.equation for row in found.values()))
        table.add_row(workload, phase or "iteration", *times, equations)
    console.print(table)
    print_rates(spec, console)


def print_rates(spec: ExperimentSpec, console: Console) -> None:
    """A line a fabric: its size, and the rates that times were predicted with."""
    for label, fabric in zip(spec.labels, spec.fabrics, strict=True):
        plan = nominal_plan(fabric)
        assumed = " (assumed for auto)" if fabric.rail_rate == "auto" else ""
        rates = f"rails {format_rate(plan.rail_bps)}{assumed}, HB {format_rate(plan.hb_bps)}"
        console.print(
            f"{label}: {fabric.domains} domains x {fabric.rails} rails, {rates}", style="dim", highlight=False
        )
