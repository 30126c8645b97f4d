"""Predicted times of allreduces and trainings on multi-rail fabrics, by the equations of Nezha."""

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure
from rich.console import Console

from railyard.experiments.measures.allreduce import plots
from railyard.experiments.measures.allreduce.spec import rail_fabrics, workloads_on
from railyard.experiments.options import plain_table
from railyard.experiments.predict.output import Predicted, Prediction
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results import format as fmt
from railyard.results.plots import style
from railyard.topologies.multirail.plan import nominal_plan
from railyard.workloads.allreduce.engine_kind import definition_of

Lines = dict[str, list[tuple[int, float]]]
"""Policy -> size and predicted seconds of each of its allreduces."""


def predict(spec: ExperimentSpec) -> Predicted:
    """Compute the times of workloads; a fault has no formula."""
    rows: list[Prediction] = []
    panels: dict[str, Lines] = {}
    for number, (label, fabric) in enumerate(zip(spec.labels, rail_fabrics(spec), strict=True)):
        for workload in workloads_on(spec, number):
            for prediction in workload.predictions(number, nominal_plan(fabric)):
                policy = prediction.policy
                row = Prediction(
                    fabric=label,
                    policy=policy,
                    workload=prediction.workload,
                    phase="",
                    metric=prediction.metric,
                    predicted=prediction.seconds,
                    unit="s",
                    equation=definition_of(policy).equation,
                )
                rows.append(row)
                if prediction.size:
                    points = panels.setdefault(label, {}).setdefault(policy, [])
                    points.append((prediction.size, prediction.seconds))
    title = f"{spec.name}: predicted times"
    show = partial(_print_predictions, spec.labels, rows)
    return Predicted(spec.name, title, Prediction._fields, rows, partial(_draw, panels), show)


def _draw(panels: dict[str, Lines]) -> Figure:
    if not panels:
        return style.new_figure(style.WIDTH, 1.0)
    return plots.predicted([(label, list(lines.items())) for label, lines in panels.items()])


def _print_predictions(labels: Sequence[str], rows: Sequence[Prediction], console: Console) -> None:
    """Print a table for each fabric: a row for each workload, a column for each policy."""
    for label in labels:
        # workload -> policy -> seconds
        predicted: dict[str, dict[str, float | None]] = {}
        policies: dict[str, None] = {}
        for row in rows:
            if row.fabric == label:
                predicted.setdefault(row.workload, {})[row.policy] = row.predicted
                policies[row.policy] = None
        table = plain_table("workload", *policies, right=list(policies), title=f"{label}: predicted times")
        for workload, seconds in predicted.items():
            table.add_row(workload, *[fmt.seconds(seconds.get(policy)) for policy in policies])
        console.print(table)
