"""Predicted iteration times and slow-downs of jobs, by a simulation with max-min fair shares of links."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from matplotlib.figure import Figure
from rich.console import Console

from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.records import ALONE, JOB_SLOWDOWN, TOGETHER
from railyard.experiments.measures.jobs.run import ALL_JOBS, alone_name, rates_of
from railyard.experiments.measures.jobs.spec import jobs_of
from railyard.experiments.options import plain_table
from railyard.experiments.predict.output import Predicted, Prediction
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.results import format as fmt
from railyard.results.plots import style
from railyard.results.theory.fluid.jobs import predict_jobs

EQUATION = "max-min fair shares"


def predict(spec: ExperimentSpec) -> Predicted:
    """Compute the mean iteration of each job alone and together with the others, and its slow-down."""
    rows: list[Prediction] = []
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.gpu_fabrics, strict=True)):
        if not any(job.is_on(number) for job in jobs_of(spec)):
            continue
        plan = nominal_plan(fabric)
        planned = planned_jobs(spec, number, plan)
        where = (label, fabric.chosen_policy)
        for times in predict_jobs(planned.combined, rates_of(plan), fabric).times:
            alone = (*where, alone_name(times.name), times.name, "iteration_time")
            together = (*where, ALL_JOBS, times.name)
            rows.append(Prediction(*alone, fmean(times.alone_s), "s", EQUATION))
            rows.append(Prediction(*together, "iteration_time", fmean(times.together_s), "s", EQUATION))
            rows.append(Prediction(*together, JOB_SLOWDOWN, times.slow_down, "ratio", EQUATION))
    show = partial(_print_table, spec, rows)
    title = f"{spec.name}: predicted slow-downs of jobs"
    return Predicted(spec.name, title, Prediction._fields, rows, partial(_draw, rows), show)


def _slow_downs(rows: Sequence[Prediction]) -> list[Prediction]:
    return [row for row in rows if row.metric == JOB_SLOWDOWN]


def _draw(rows: Sequence[Prediction]) -> Figure:
    """Draw a bar for the slow-down of each job."""
    slow_downs = _slow_downs(rows)
    figure = style.new_figure(style.WIDTH, 1.2 + 0.3 * len(slow_downs))
    axes = figure.subplots()
    for position, row in enumerate(slow_downs):
        axes.barh(position, row.predicted or 0.0, color=style.BLUE, height=0.7)
    labels = [f"{row.phase} ({row.fabric})" for row in slow_downs]
    axes.set_yticks(range(len(slow_downs)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="slow-down by the other jobs")
    style.quiet(axes, grid="x")
    return figure


def _print_table(spec: ExperimentSpec, rows: Sequence[Prediction], console: Console) -> None:
    """Print a row for each job and fabric."""
    titles = ("job", "fabric", "iteration alone", TOGETHER, "slow-down")
    table = plain_table(*titles, right=titles[2:], title=f"{spec.name}: predicted slow-downs of jobs")
    for slow_down in _slow_downs(rows):
        times: dict[str, float | None] = {}
        for row in rows:
            if (row.fabric, row.phase) == (slow_down.fabric, slow_down.phase) and row.metric != JOB_SLOWDOWN:
                times[TOGETHER if row.workload == ALL_JOBS else ALONE] = row.predicted
        cells = (fmt.seconds(times[ALONE]), fmt.seconds(times[TOGETHER]), f"{slow_down.predicted:.3f}")
        table.add_row(slow_down.phase, slow_down.fabric, *cells)
    console.print(table)
