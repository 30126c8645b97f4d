"""Predicted iteration times and slow-downs of jobs, by a simulation with max-min fair shares of links."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from matplotlib.figure import Figure
from rich.console import Console

from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.predictions import (
    ALL_INTERLEAVED,
    Predictions,
    alone_name,
    predicted_jobs,
)
from railyard.experiments.measures.jobs.records import JOB_SLOWDOWN, TOGETHER
from railyard.experiments.measures.jobs.spec import is_interleaved, jobs_of
from railyard.experiments.options import plain_table
from railyard.experiments.predict.output import Predicted, Prediction
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.results import format as fmt
from railyard.results.plots import style
from railyard.results.theory.fluid.spread import Spread

EQUATION = "max-min fair shares"
MEAN: Final = "mean over simulations with noise and hashes, by max-min fair shares"


class JobPrediction(NamedTuple):
    """A row of NAME.csv: as other predictions, with both ends of the interval, which are equal for a single value."""

    prediction: Prediction
    least: float
    most: float


COLUMNS: Final = (*Prediction._fields, "predicted_least", "predicted_most")


def predict(spec: ExperimentSpec) -> Predicted:
    """Compute the mean iteration of each job alone and together with the others, and its slow-down."""
    rows: list[JobPrediction] = []
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.gpu_fabrics, strict=True)):
        if not any(job.is_on(number) for job in jobs_of(spec)):
            continue
        plan = nominal_plan(fabric)
        planned = planned_jobs(spec, number, plan)
        rows += _rows((label, fabric.chosen_policy), predicted_jobs(planned, plan, is_interleaved(spec)))
    show = partial(_print_table, spec, rows)
    title = f"{spec.name}: predicted slow-downs of jobs"
    cells = [(*row.prediction, row.least, row.most) for row in rows]
    return Predicted(spec.name, title, COLUMNS, cells, partial(_draw, rows), show)


def _rows(where: tuple[str, str], predictions: Predictions) -> Iterator[JobPrediction]:
    """Yield the rows of a fabric: of each job alone, then in each mode. `where`: fabric and policy."""
    for number, job in enumerate(predictions.together.jobs):
        yield _row(where, alone_name(job.name), job.name, "iteration_time", job.alone_s)
        for mode in predictions.by_mode.values():
            of_mode = mode.jobs[number]
            yield _row(where, mode.workload, job.name, "iteration_time", of_mode.together_s)
            yield _row(where, mode.workload, job.name, JOB_SLOWDOWN, of_mode.slow_down)


def _row(where: tuple[str, str], workload: str, job: str, metric: str, predicted: Spread) -> JobPrediction:
    unit = "ratio" if metric == JOB_SLOWDOWN else "s"
    equation = EQUATION if predicted.is_point else MEAN
    row = Prediction(*where, workload, job, metric, predicted.mean, unit, equation)
    return JobPrediction(row, predicted.least, predicted.most)


def _slow_downs(rows: Sequence[JobPrediction]) -> list[JobPrediction]:
    return [row for row in rows if row.prediction.metric == JOB_SLOWDOWN]


def _name(slow_down: Prediction) -> str:
    """Return the name of a job, and whether it is interleaved."""
    if slow_down.workload == ALL_INTERLEAVED:
        return f"{slow_down.phase}, interleaved"
    return slow_down.phase


def _draw(rows: Sequence[JobPrediction]) -> Figure:
    """Draw a bar for the slow-down of each job, and its interval as a line."""
    slow_downs = _slow_downs(rows)
    figure = style.new_figure(style.WIDTH, 1.2 + 0.3 * len(slow_downs))
    axes = figure.subplots()
    for position, (row, least, most) in enumerate(slow_downs):
        axes.barh(position, row.predicted or 0.0, color=style.BLUE, height=0.7)
        if least < most:
            axes.plot([least, most], [position, position], color=style.INK, lw=1.5)
    labels = [f"{_name(row)} ({row.fabric})" for row, _, _ in slow_downs]
    axes.set_yticks(range(len(slow_downs)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="slow-down by the other jobs")
    style.quiet(axes, grid="x")
    return figure


def _print_table(spec: ExperimentSpec, rows: Sequence[JobPrediction], console: Console) -> None:
    """Print a row for each job and fabric, with the interval where any prediction has one."""
    titles = ["job", "fabric", "iteration alone", TOGETHER, "slow-down"]
    slow_downs = _slow_downs(rows)
    has_interval = any(slow_down.least < slow_down.most for slow_down in slow_downs)
    if has_interval:
        titles.append("interval")
    table = plain_table(*titles, right=titles[2:], title=f"{spec.name}: predicted slow-downs of jobs")
    for slow_down in slow_downs:
        prediction = slow_down.prediction
        times: dict[str, float | None] = {}
        for row, _, _ in rows:
            is_of_job = (row.fabric, row.phase) == (prediction.fabric, prediction.phase)
            if is_of_job and row.metric != JOB_SLOWDOWN:
                times[row.workload] = row.predicted
        cells = [
            _name(prediction),
            prediction.fabric,
            fmt.seconds(times[alone_name(prediction.phase)]),
            fmt.seconds(times[prediction.workload]),
            f"{prediction.predicted:.3f}",
        ]
        if has_interval:
            cells.append(fmt.interval(slow_down.least, slow_down.most))
        table.add_row(*cells)
    console.print(table)
