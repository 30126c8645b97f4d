"""Outcome of a replay of jobs: the times and the bytes of each job beside its predictions, and its slow-down."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.predictions import ModePrediction
from railyard.experiments.measures.jobs.records import ALONE, JOB_SLOWDOWN, JobIteration, JobRun
from railyard.experiments.measures.jobs.turn import JobsTurn
from railyard.results.runs.records import Measurement
from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.spread import Spread
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.replay.run import Replay

Injection = tuple[int, int]
"""When a fault was injected and repaired, monotonic ns."""


@dataclass(frozen=True)
class PlayedTurn:
    """A turn and its replay. `counted`: bytes that each port sent meanwhile. `injection`: of the fault, if any."""

    turn: JobsTurn
    done: Replay
    counted: Mapping[Port, int]
    injection: Injection | None = None

    @cached_property
    def spans_s(self) -> dict[int, tuple[float, float]]:
        """Begin and end of each task, s after the start of the replay, by its number."""
        spans_s: dict[int, tuple[float, float]] = {}
        for number, (begin_ns, end_ns) in self.done.spans.items():
            begin_s = (begin_ns - self.done.start_ns) / 1e9
            end_s = (end_ns - self.done.start_ns) / 1e9
            spans_s[number] = (begin_s, end_s)
        return spans_s

    @cached_property
    def iterations_s(self) -> Sequence[Sequence[float]]:
        """The seconds of each iteration of each job; NaN where a task never ended."""
        jobs = self.turn.jobs
        # an iteration with a lost transfer has no time, whatever the others of its GPUs do
        ends_s = np.full(len(jobs.schedule.tasks), np.nan)
        for number, (_, end_s) in self.spans_s.items():
            ends_s[number] = end_s
        return jobs.iteration_seconds(ends_s)


def job_iterations(played: PlayedTurn) -> Iterator[JobIteration]:
    """Yield a row for each iteration of each job."""
    turn = played.turn
    predictions_s = turn.predicted_iterations_s()
    for job, measured_s, predicted_s in zip(turn.jobs.jobs, played.iterations_s, predictions_s, strict=True):
        end_s = job.start_s
        for iteration, seconds in enumerate(measured_s):
            end_s += seconds
            expected_s = predicted_s[iteration] if predicted_s else None
            yield JobIteration(turn.interval, job.name, turn.mode, iteration, seconds, expected_s, end_s)


def iteration_times(played: PlayedTurn) -> Iterator[Measurement]:
    """Yield the mean iteration of each job that ended, beside its prediction."""
    turn = played.turn
    for job, measured_s in zip(turn.jobs.jobs, played.iterations_s, strict=True):
        mean_s = fmean(measured_s)
        # a transfer that never arrives leaves no time
        if not np.isfinite(mean_s):
            continue
        row = _measurement(turn.interval, job.name, "iteration_time", mean_s, "s", turn.iteration_s(job.name))
        if turn.fault is not None and turn.fault.is_rerouted:
            # the time until detours are there comes on top of the prediction
            row = replace(row, explained_most=np.inf)
        yield row


def _measurement(
    interval: IntervalId, job: str, metric: str, value: float, unit: str, predicted: Spread | None
) -> Measurement:
    """Return a measured value of a job, beside the mean and the interval that are predicted, if any are."""
    if predicted is None:
        return Measurement(interval, job, metric, value, unit)
    return Measurement(
        interval=interval,
        phase=job,
        metric=metric,
        value=value,
        unit=unit,
        predicted=predicted.mean,
        explained_least=predicted.least / predicted.mean,
        explained_most=predicted.most / predicted.mean,
    )


def job_runs(played: PlayedTurn) -> Iterator[JobRun]:
    """Yield a row for each job, with the times and the prediction of a fault if one was injected."""
    for number, predicted_s in enumerate(played.turn.predicted_iterations_s()):
        yield _with_fault(_job_run(played, number, predicted_s), played)


def _job_run(played: PlayedTurn, number: int, predicted_s: Sequence[float]) -> JobRun:
    """Return the row of a job, by its number. `predicted_s`: of its iterations; empty without a prediction."""
    turn = played.turn
    plan = turn.fabric.session.plan
    job = turn.jobs.jobs[number]
    asked, delivered = _bytes_by_pair(played, number)
    names = [plan.gpus[gpu].name for gpu in job.gpus]
    item = next(item for item in turn.fabric.planned.items if item.name == job.name)
    # GPUs that share a NIC share its port, which counts once
    links = {plan.link_name_of(plan.gpus[gpu], "rail") for gpu in job.gpus}
    spread = turn.iteration_s(job.name)
    return JobRun(
        interval=turn.interval,
        job=job.name,
        mode=turn.mode,
        placed_by=item.placement_text,
        gpus=" ".join(names),
        start_s=job.start_s,
        iterations=job.iterations,
        iteration_s=fmean(played.iterations_s[number]),
        iteration_predicted_s=fmean(predicted_s) if predicted_s else None,
        waiting_share=_waiting_share(turn.jobs, number, played.spans_s),
        asked_bytes=sum(asked.values()),
        delivered_bytes=sum(delivered.values()),
        pairs_wrong=sum(size != delivered.get(pair) for pair, size in asked.items()),
        port_bytes=sum(played.counted[Port(link, "rail", True)] for link in links),
        iteration_mean_s=spread.mean if spread else None,
        iteration_least_s=spread.least if spread else None,
        iteration_most_s=spread.most if spread else None,
    )


def _bytes_by_pair(played: PlayedTurn, number: int) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Return the bytes that each pair of a job's GPUs should receive, and those that it received intact."""
    jobs = played.turn.jobs
    done = played.done
    columns = jobs.schedule.columns
    is_transfer = (jobs.job_of_task == number) & ~columns.is_compute
    asked: dict[tuple[int, int], int] = {}
    delivered: dict[tuple[int, int], int] = {}
    # the receiver compares every byte, and wrong ones are as good as lost
    corrupt = set(done.corrupt)
    for task in np.flatnonzero(is_transfer).tolist():
        pair = (int(columns.src[task]), int(columns.dst[task]))
        asked[pair] = asked.get(pair, 0) + int(columns.bytes[task])
        if task in done.delivered and task not in corrupt:
            delivered[pair] = delivered.get(pair, 0) + done.delivered[task]
    return asked, delivered


def _with_fault(row: JobRun, played: PlayedTurn) -> JobRun:
    """Return the row of a job with the times and the prediction of the fault meanwhile, if there was one."""
    fault = played.turn.fault
    if fault is None or played.injection is None:
        return row
    injected_ns, repaired_ns = played.injection
    start_ns = played.done.start_ns
    row = replace(
        row,
        fault_start_s=(injected_ns - start_ns) / 1e9,
        fault_end_s=(repaired_ns - start_ns) / 1e9,
        not_predicted=fault.reason_of(row.job),
    )
    if row.not_predicted:
        return row
    predicted = fault.jobs[row.job]
    together = predicted.together
    return replace(
        row,
        fault_slow_down_alone=predicted.alone.mean,
        fault_slow_down_together=None if together is None else together.mean,
    )


def _waiting_share(jobs: CombinedSchedule, number: int, spans_s: Mapping[int, tuple[float, float]]) -> float:
    """Return the share of a job's time in which a GPU of it, on average, neither sends, receives nor computes."""
    columns = jobs.schedule.columns
    busy: dict[int, list[tuple[float, float]]] = {}
    last_s = start_s = jobs.jobs[number].start_s
    for task in np.flatnonzero(jobs.job_of_task == number).tolist():
        if task not in spans_s:
            continue
        last_s = max(last_s, spans_s[task][1])
        for gpu in {int(columns.src[task]), int(columns.dst[task])}:
            busy.setdefault(gpu, []).append(spans_s[task])
    total_s = (last_s - start_s) * len(busy)
    if not total_s:
        return 0.0
    busy_s = 0.0
    for intervals in busy.values():
        busy_s += _covered_s(intervals, start_s)
    return max(0.0, 1 - busy_s / total_s)


def _covered_s(intervals: Iterable[tuple[float, float]], from_s: float) -> float:
    """Return how long any of these intervals lasts, from a time on, s."""
    covered_s = 0.0
    until_s = from_s
    for begin_s, end_s in sorted(intervals):
        # the transfers of a GPU overlap, and it waits in none of them
        covered_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s


def slow_downs(
    rows: Iterable[JobRun], interval: IntervalId, mode: str, prediction: ModePrediction
) -> Iterator[Measurement]:
    """Yield the slow-down of each job in a mode, beside its prediction.

    `rows`: of all jobs and modes of a repeat. `interval`: of all jobs in this mode.
    """
    means: dict[tuple[str, str], float] = {}
    for row in rows:
        means[row.job, row.mode] = row.iteration_s
    for job in prediction.jobs:
        alone_s = means.get((job.name, ALONE))
        together_s = means.get((job.name, mode))
        # an interval that was interrupted has no times
        if alone_s and together_s and np.isfinite(together_s / alone_s):
            yield _measurement(interval, job.name, JOB_SLOWDOWN, together_s / alone_s, "ratio", job.slow_down)
