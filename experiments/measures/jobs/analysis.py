"""Jobs of a run: a row for each job on a fabric, over all repeats."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Final

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.records import (
    ALONE,
    INTERLEAVED,
    JOB_LINKS,
    JOB_RUNS,
    JOB_SLOWDOWN,
    TOGETHER,
    JobRun,
)
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Sample, Target, outcomes_by_fabric
from railyard.results.format import NOTHING, percent
from railyard.results.runs.records import Measurement, Run, Verdict, worst_verdict
from railyard.results.theory.fluid.faulted_jobs import slow_down_meanwhile
from railyard.results.theory.fluid.spread import Spread

MOST_OFF: Final = 0.03
DEVIATION: Final = Target(
    quantity="slow-down of a job off its prediction",
    unit="share",
    source="our bar, for each job and repeat: of its prediction, or of the nearer end of its interval",
    most=MOST_OFF,
)


@dataclass(frozen=True)
class SlowDowns:
    """Slow-downs of a job in each repeat, and their prediction, if there is one."""

    values: tuple[float, ...] = ()
    predicted: Spread | None = None

    @property
    def measured(self) -> float | None:
        """The median of the repeats; None if none was measured."""
        return median(self.values) if self.values else None

    @property
    def agreement(self) -> str:
        """The agreement of the repeat that is furthest off with the prediction, in words."""
        if self.predicted is None or not self.values:
            return NOTHING
        most_off = max(map(self.predicted.off, self.values))
        if not most_off and not self.predicted.is_point:
            return "within interval"
        if most_off <= MOST_OFF:
            of = "" if self.predicted.is_point else " of interval"
            return f"within {percent(MOST_OFF, 0)}{of}"
        return f"{percent(most_off)} off"


def predicted_spread(row: Measurement) -> Spread | None:
    """Return the prediction of a measured value, with its interval; None without any."""
    if row.predicted is None:
        return None
    return Spread(row.predicted, row.predicted * row.explained_least, row.predicted * row.explained_most)


@dataclass(frozen=True)
class JobRow:
    """Medians over the repeats of a job on a fabric. `shared_bytes`: on shared links."""

    fabric: str
    job: str
    placement: str
    gpus: tuple[str, ...]
    iterations: int
    alone_s: float
    together_s: float
    slow_downs: SlowDowns
    waiting_share: float
    shared_bytes: int
    verdict: Verdict

    @property
    def gpus_text(self) -> str:
        """The first GPUs, and how many there are."""
        if len(self.gpus) <= 4:
            return " ".join(self.gpus)
        return f"{self.gpus[0]} ... {self.gpus[-1]} ({len(self.gpus)})"

    @property
    def agreement(self) -> str:
        """The agreement of its slow-downs with their prediction, in words."""
        # the machine was measured, and not the fabric
        if self.verdict == "invalid":
            return "invalid"
        return self.slow_downs.agreement


@dataclass(frozen=True)
class FaultRow:
    """A job beside a fault: its mean iteration with the other jobs, without the fault and with it, over all repeats.

    `slow_down`, `slow_down_predicted`: while the fault lasts, by what the job does meanwhile; None if it does nothing.
    `alone_predicted`: of the job alone, with a fault that lasts for all of it. `not_predicted`: why there is no
    prediction.
    """

    fabric: str
    job: str
    fault: str
    together_s: float
    with_fault_s: float
    ratio: float
    ratio_predicted: float | None
    slow_down: float | None
    slow_down_predicted: float | None
    alone_predicted: float | None
    not_predicted: str
    verdict: Verdict


def fault_rows(analysis: Analysis) -> list[FaultRow]:
    """Return a row for each job and fault, in the order in which they ran."""
    rows: list[FaultRow] = []
    for (fabric, policy, _), runs in grouped(analysis.run.rows(JOB_RUNS), "fabric", "policy", "job").items():
        together = [run for run in runs if run.mode == TOGETHER]
        faulted = [run for run in runs if run.mode not in (ALONE, TOGETHER, INTERLEAVED)]
        for fault, fault_runs in grouped(faulted, "mode").items():
            if together:
                label = analysis.labels.get((fabric, policy), fabric)
                rows.append(_fault_row(analysis, label, fault, together, fault_runs))
    return rows


def _fault_row(analysis: Analysis, label: str, fault: str, together: list[JobRun], faulted: list[JobRun]) -> FaultRow:
    together_s = median(run.iteration_s for run in together)
    with_fault_s = median(run.iteration_s for run in faulted)
    # predictions of all repeats are the same
    first = faulted[0]
    ratio_predicted = None
    if first.iteration_mean_s and together[0].iteration_mean_s:
        ratio_predicted = first.iteration_mean_s / together[0].iteration_mean_s
    slow_downs = [_slow_down_in_fault(run, together_s) for run in faulted]
    measured = [slow_down for slow_down in slow_downs if slow_down is not None]
    verdicts: list[Verdict] = []
    for run in (*together, *faulted):
        verdicts.append(analysis.judgement.of_interval(run.interval))
    return FaultRow(
        fabric=label,
        job=first.job,
        fault=fault,
        together_s=together_s,
        with_fault_s=with_fault_s,
        ratio=with_fault_s / together_s,
        ratio_predicted=ratio_predicted,
        slow_down=median(measured) if measured else None,
        slow_down_predicted=first.fault_slow_down_together,
        alone_predicted=first.fault_slow_down_alone,
        not_predicted=first.not_predicted,
        verdict=worst_verdict(verdicts),
    )


def _slow_down_in_fault(run: JobRun, together_s: float) -> float | None:
    """Return the slow-down of a job while a fault lasted; None without one.

    `together_s`: the mean iteration of the job without the fault.
    """
    if run.fault_start_s is None or run.fault_end_s is None:
        return None
    job = (run.start_s, run.start_s + run.iterations * run.iteration_s)
    return slow_down_meanwhile(job, (run.fault_start_s, run.fault_end_s), run.iterations * together_s)


def target_outcomes(analysis: Analysis) -> list[Outcome]:
    """Return for each fabric by how much slow-downs differ from their predictions: those of all jobs and repeats."""
    samples: list[Sample] = []
    for row in analysis.run.measurements:
        # a median over repeats, or the mean of jobs, would hide the one that is off
        predicted = predicted_spread(row)
        if row.metric == JOB_SLOWDOWN and predicted is not None:
            samples.append(Sample(predicted.off(row.value), row.phase, row.interval))
    return outcomes_by_fabric(DEVIATION, samples, analysis.judgement)


def job_rows(analysis: Analysis) -> list[JobRow]:
    """Return the rows in the order in which the jobs ran."""
    rows: list[JobRow] = []
    for (fabric, policy, job), runs in grouped(analysis.run.rows(JOB_RUNS), "fabric", "policy", "job").items():
        by_mode: defaultdict[str, list[JobRun]] = defaultdict(list)
        for run in runs:
            by_mode[run.mode].append(run)
        alone = by_mode[ALONE]
        together = by_mode[TOGETHER]
        # a run that ended early may have either without the other
        if alone and together:
            rows.append(_row(analysis, analysis.labels.get((fabric, policy), fabric), job, alone, together))
    return rows


def _row(analysis: Analysis, label: str, job: str, alone: list[JobRun], together: list[JobRun]) -> JobRow:
    intervals = {run.interval for run in together}
    slow_downs = slow_downs_of(analysis.run, job, intervals)
    verdicts: list[Verdict] = []
    for run in (*alone, *together):
        verdicts.append(analysis.judgement.of_interval(run.interval))
    shared_bytes = 0
    for link in analysis.run.rows(JOB_LINKS):
        if link.job == job and link.interval == together[0].interval and link.shared_s > 0:
            shared_bytes += link.bytes
    return JobRow(
        fabric=label,
        job=job,
        placement=together[0].placed_by,
        gpus=tuple(together[0].gpus.split()),
        iterations=together[0].iterations,
        alone_s=median(run.iteration_s for run in alone),
        together_s=median(run.iteration_s for run in together),
        slow_downs=SlowDowns(
            values=tuple(row.value for row in slow_downs),
            # that of each repeat is the same
            predicted=predicted_spread(slow_downs[0]) if slow_downs else None,
        ),
        waiting_share=median(run.waiting_share for run in together),
        shared_bytes=shared_bytes,
        verdict=worst_verdict(verdicts),
    )


def slow_downs_of(run: Run, job: str, intervals: set[IntervalId]) -> list[Measurement]:
    """Return the measured slow-downs of a job in these intervals."""
    rows: list[Measurement] = []
    for row in run.measurements:
        if row.metric == JOB_SLOWDOWN and row.phase == job and row.interval in intervals:
            rows.append(row)
    return rows
