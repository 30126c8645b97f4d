"""Predicted iteration times and slow-downs of jobs, by a simulation with max-min fair shares of links."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from matplotlib.figure import Figure
from rich.console import Console

from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.records import JOB_SLOWDOWN, TOGETHER
from railyard.experiments.measures.jobs.run import ALL_INTERLEAVED, alone_name, predicted_jobs
from railyard.experiments.measures.jobs.spec import is_interleaved, jobs_of
from railyard.experiments.options import plain_table
from railyard.experiments.predict.output import Predicted, Prediction
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.results import format as fmt
from railyard.results.plots import style

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
        predictions = predicted_jobs(planned, plan, is_interleaved(spec))
        for job, times in enumerate(predictions.jobs.times):
            alone = (*where, alone_name(times.name), times.name, "iteration_time")
            rows.append(Prediction(*alone, fmean(times.alone_s), "s", EQUATION))
            for workload, prediction in predictions.by_mode.values():
                of_mode = prediction.times[job]
                together = (*where, workload, times.name)
                rows.append(Prediction(*together, "iteration_time", fmean(of_mode.together_s), "s", EQUATION))
                rows.append(Prediction(*together, JOB_SLOWDOWN, of_mode.slow_down, "ratio", EQUATION))
    show = partial(_print_table, spec, rows)
    title = f"{spec.name}: predicted slow-downs of jobs"
    return Predicted(spec.name, title, Prediction._fields, rows, partial(_draw, rows), show)


def _slow_downs(rows: Sequence[Prediction]) -> list[Prediction]:
    return [row for row in rows if row.metric == JOB_SLOWDOWN]


def _name(slow_down: Prediction) -> str:
    """Return the name of a job, and whether it is interleaved."""
    if slow_down.workload == ALL_INTERLEAVED:
        return f"{slow_down.phase}, interleaved"
    return slow_down.phase


def _draw(rows: Sequence[Prediction]) -> Figure:
    """Draw a bar for the slow-down of each job."""
    slow_downs = _slow_downs(rows)
    figure = style.new_figure(style.WIDTH, 1.2 + 0.3 * len(slow_downs))
    axes = figure.subplots()
    for position, row in enumerate(slow_downs):
        axes.barh(position, row.predicted or 0.0, color=style.BLUE, height=0.7)
    labels = [f"{_name(row)} ({row.fabric})" for row in slow_downs]
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
                times[row.workload] = row.predicted
        job = slow_down.phase
        of_mode = times[slow_down.workload]
        cells = (fmt.seconds(times[alone_name(job)]), fmt.seconds(of_mode), f"{slow_down.predicted:.3f}")
        table.add_row(_name(slow_down), slow_down.fabric, *cells)
    console.print(table)
