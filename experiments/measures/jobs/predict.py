"""Predicted iteration times and slow-downs of jobs, by a simulation with max-min fair shares of links."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from matplotlib.figure import Figure
from rich.console import Console

from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.predictions import (
    ALL_INTERLEAVED,
    ALL_JOBS,
    FaultPrediction,
    Predictions,
    alone_name,
    predicted_jobs,
    predicted_with_fault,
)
from railyard.experiments.measures.jobs.records import FAULT_SLOWDOWN, JOB_SLOWDOWN, TOGETHER
from railyard.experiments.measures.jobs.spec import faults_on, is_interleaved, jobs_of
from railyard.experiments.options import plain_table
from railyard.experiments.predict.output import Predicted, Prediction
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.results import format as fmt
from railyard.results.plots import style
from railyard.results.theory.fluid.spread import Spread

EQUATION = "max-min fair shares"
MEAN: Final = "mean over simulations with noise and hashes, by max-min fair shares"
MEAN_OF_HASHES: Final = "mean over simulations with hashes, by max-min fair shares"


class JobPrediction(NamedTuple):
    """A row of NAME.csv: as other predictions, with both ends of the interval, which are equal for a single value.

    None if nothing is predicted.
    """

    prediction: Prediction
    least: float | None
    most: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval; None for a single value, or none."""
        if self.least is None or self.most is None or not self.least < self.most:
            return None
        return self.least, self.most


class PredictedFault(NamedTuple):
    """A fault beside the jobs of a fabric.

    `where`: fabric and policy. `fault`: its kind and target. `together_s`: the mean iteration of each job without it.
    """

    where: tuple[str, str]
    fault: str
    together_s: dict[str, float]
    prediction: FaultPrediction


COLUMNS: Final = (*Prediction._fields, "predicted_least", "predicted_most")


def predict(spec: ExperimentSpec) -> Predicted:
    """Compute the mean iteration of each job alone and together with the others, and its slow-down."""
    rows: list[JobPrediction] = []
    faults: list[PredictedFault] = []
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.gpu_fabrics, strict=True)):
        if not any(job.is_on(number) for job in jobs_of(spec)):
            continue
        plan = nominal_plan(fabric)
        planned = planned_jobs(spec, number, plan)
        where = (label, fabric.chosen_policy)
        predictions = predicted_jobs(planned, plan, is_interleaved(spec))
        rows += _rows(where, predictions)
        together_s = {job.name: job.together_s.mean for job in predictions.together.jobs}
        for fault in faults_on(spec, number):
            simulated = predictions.together.simulated
            prediction = predicted_with_fault(simulated, fault, plan, spec.heartbeats != "off")
            faults.append(PredictedFault(where, fault.label, together_s, prediction))
    for predicted_fault in faults:
        rows += _fault_rows(predicted_fault)
    show = partial(_print_tables, spec, rows, faults)
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


def _row(
    where: tuple[str, str], workload: str, job: str, metric: str, predicted: Spread, mean: str = MEAN
) -> JobPrediction:
    """Return a row. `mean`: how the prediction is computed if it is no single value."""
    unit = "s" if metric == "iteration_time" else "ratio"
    equation = EQUATION if predicted.is_point else mean
    row = Prediction(*where, workload, job, metric, predicted.mean, unit, equation)
    return JobPrediction(row, predicted.least, predicted.most)


def _fault_rows(fault: PredictedFault) -> Iterator[JobPrediction]:
    """Yield the rows of a fault: the slow-down of each job alone and with the others, and its iteration with both."""
    for job, together_s in fault.together_s.items():
        alone = f"{alone_name(job)}, {fault.fault}"
        together = f"{ALL_JOBS}, {fault.fault}"
        reason = fault.prediction.reason_of(job)
        if reason:
            for workload in (alone, together):
                row = Prediction(*fault.where, workload, job, FAULT_SLOWDOWN, None, "ratio", "", not_compared=reason)
                yield JobPrediction(row, None, None)
            continue
        predicted = fault.prediction.jobs[job]
        iteration_s = predicted.at_its_times.times(together_s)
        yield _row(fault.where, alone, job, FAULT_SLOWDOWN, predicted.alone, MEAN_OF_HASHES)
        if predicted.together is not None:
            yield _row(fault.where, together, job, FAULT_SLOWDOWN, predicted.together, MEAN_OF_HASHES)
        yield _row(fault.where, together, job, "iteration_time", iteration_s, MEAN_OF_HASHES)


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
    for position, slow_down in enumerate(slow_downs):
        axes.barh(position, slow_down.prediction.predicted or 0.0, color=style.BLUE, height=0.7)
        if slow_down.interval:
            axes.plot(slow_down.interval, [position, position], color=style.INK, lw=1.5)
    labels = [f"{_name(row)} ({row.fabric})" for row, _, _ in slow_downs]
    axes.set_yticks(range(len(slow_downs)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="slow-down by the other jobs")
    style.quiet(axes, grid="x")
    return figure


def _print_tables(
    spec: ExperimentSpec, rows: Sequence[JobPrediction], faults: Sequence[PredictedFault], console: Console
) -> None:
    """Print a row for each job and fabric, and for each job, fabric and fault."""
    _print_slow_downs(spec, rows, console)
    if not faults:
        return
    titles = ["job", "fabric", "fault", "alone", TOGETHER]
    title = f"{spec.name}: predicted slow-downs while a fault lasts"
    table = plain_table(*titles, right=titles[3:], title=title)
    for fault in faults:
        for job in fault.together_s:
            cells = [fault.prediction.reason_of(job)] * 2
            if not cells[0]:
                predicted = fault.prediction.jobs[job]
                together = predicted.together
                cells = [fmt.ratio(predicted.alone.mean), fmt.ratio(together.mean if together else None)]
            table.add_row(job, fault.where[0], fault.fault, *cells)
    console.print("", table)


def _print_slow_downs(spec: ExperimentSpec, rows: Sequence[JobPrediction], console: Console) -> None:
    """Print a row for each job and fabric, with the interval where any prediction has one."""
    titles = ["job", "fabric", "iteration alone", TOGETHER, "slow-down"]
    slow_downs = _slow_downs(rows)
    has_interval = any(slow_down.interval for slow_down in slow_downs)
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
