"""Predictions and the dry run of workloads on multi-rail fabrics."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from railyard.core.units import format_rate
from railyard.experiments.predict.unsteered import PREDICTION_COLUMNS, Prediction, png, save
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.plots import style
from railyard.results.plots.allreduce import predicted
from railyard.results.runs.records import to_csv
from railyard.results.views import format as fmt
from railyard.topologies.multirail.plan import nominal_plan
from railyard.workloads.allreduce.engine_kind import definition_of, rails_of
from railyard.workloads.allreduce.workload import Prediction as RailPrediction


def show(spec: ExperimentSpec, out: Path, console: Console) -> int:
    """Compute, write NAME.csv and NAME.png, print."""
    found = list(predictions(spec))
    rows = [
        Prediction(label, p.policy, p.workload, "", p.metric, p.seconds, "s", definition_of(p.policy).equation)
        for label, p in found
    ]
    files = save(spec.name, to_csv(PREDICTION_COLUMNS, rows), _png(spec, found), out)
    for label in spec.labels:
        console.print(_table(label, [row for row in rows if row.fabric == label]))
    print(*files, sep="\n")
    return 0


def predictions(spec: ExperimentSpec) -> Iterator[tuple[str, RailPrediction]]:
    """Yield (fabric, prediction) of every workload; a fault has no formula."""
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.rail_fabrics, strict=True)):
        for workload in spec.rail_workloads_on(number):
            yield from ((label, found) for found in workload.predictions(number, nominal_plan(fabric)))


def _table(label: str, rows: Iterable[Prediction]) -> Table:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row.workload, {})[row.policy] = row.predicted
    policies = list(dict.fromkeys(policy for by in found.values() for policy in by))
    table = Table(title=f"{label}: predicted times", title_justify="left", box=None, pad_edge=False)
    table.add_column("workload")
    for policy in policies:
        table.add_column(policy, justify="right")
    for workload, by in found.items():
        table.add_row(workload, *(fmt.seconds(by.get(policy)) for policy in policies))
    return table


def _png(spec: ExperimentSpec, found: Iterable[tuple[str, RailPrediction]]) -> bytes:
    """Draw a panel for each fabric, a line for each policy over sizes."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for label, p in found:
        if p.size:
            panels.setdefault(label, {}).setdefault(p.policy, []).append((p.size, p.seconds))
    drawn = [(label, list(lines.items())) for label, lines in panels.items()]
    title = f"{spec.name}: predicted times"
    return png(title, lambda: predicted(drawn) if drawn else style.new_figure(style.WIDTH, 1.0))


def dry_run(spec: ExperimentSpec, console: Console) -> None:
    """Print what would be sent, and over which rails."""
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.rail_fabrics, strict=True)):
        plan = nominal_plan(fabric)
        rates = ", ".join(f"{rail.name} {format_rate(rail.rate * 8, 3)}" for rail in rails_of(plan))
        console.print(f"[bold]{label}[/]: {plan.scale:g} times slower than the paper's; {rates} a NIC", highlight=False)
        for workload in spec.rail_workloads_on(number):
            for item in workload.dry_run(number, plan, spec.repeats):
                console.print(item if isinstance(item, str) else _grid(item), highlight=False)
        for fault in spec.rail_faults_on(number):
            console.print(
                f"{spec.times(fault)} x {fault.kind} {fault.target} for {fmt.seconds(fault.repair)}", highlight=False
            )


def _grid(rows: Iterable[Iterable[str]]) -> Table:
    header, *body = rows
    table = Table(box=None, pad_edge=False)
    for column in header:
        table.add_column(column, justify="right")
    for row in body:
        table.add_row(*row)
    return table
