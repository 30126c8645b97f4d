"""Jobs beside faults, and the target of slow-downs: the job and repeat that is furthest from its prediction."""

from dataclasses import replace

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.analysis import SlowDowns, fault_rows, job_rows, target_outcomes
from railyard.experiments.measures.jobs.records import ALONE, INTERLEAVED, JOB_RUNS, JOB_SLOWDOWN, TOGETHER, JobRun
from railyard.experiments.measures.jobs.section import JobsSection
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import NOTHING
from railyard.results.runs.records import Measurement, Run
from railyard.results.theory.fluid.spread import Spread


def job_run(mode: str, iteration_s: float) -> JobRun:
    times = (0.0, 3, iteration_s, iteration_s, 0.0)
    return JobRun(IntervalId("rail-only", mode), "a", mode, "gpus", "d0g0 d0g1", *times, 100, 100, 0, 100)


def test_interleaved_jobs_are_not_beside_a_fault() -> None:
    run = Run("test", {}, {}, "")
    modes = {ALONE: 1.0, TOGETHER: 2.0, INTERLEAVED: 1.0, "link-slow d0g1": 3.0}
    run.rows(JOB_RUNS).extend(job_run(mode, iteration_s) for mode, iteration_s in modes.items())
    assert [(row.fault, row.ratio) for row in fault_rows(Analysis(run))] == [("link-slow d0g1", 1.5)]


def test_slow_down_of_a_job_while_a_fault_lasts() -> None:
    run = Run("test", {}, {}, "")
    # 5 s, of which 4 s beside the fault: 3 iterations take 3 s without it, so that the 4 s are for what takes 2 s
    faulted = replace(
        job_run("link-down d0g1", 5 / 3),
        iteration_mean_s=1.5,
        fault_start_s=1.0,
        fault_end_s=9.0,
        fault_slow_down_together=2.0,
    )
    run.rows(JOB_RUNS).extend([job_run(ALONE, 1.0), replace(job_run(TOGETHER, 1.0), iteration_mean_s=1.0), faulted])
    (row,) = fault_rows(Analysis(run))
    assert (row.slow_down, row.slow_down_predicted, row.ratio_predicted) == pytest.approx((2.0, 2.0, 1.5))


def test_table_says_why_a_fault_has_no_prediction() -> None:
    run = Run("test", {}, {}, "")
    faulted = replace(job_run("gpu-crash d0g1", 3.0), not_predicted="no route")
    run.rows(JOB_RUNS).extend([job_run(ALONE, 1.0), job_run(TOGETHER, 1.0), faulted])
    (cells,) = JobsSection().tables(Analysis(run))[1].cells
    assert cells.count("no route") == 3


def test_a_single_repeat_of_a_job_misses_the_target() -> None:
    run = Run("test", {}, {}, "")
    for repeat, job, value in ((0, "a", 1.5), (1, "a", 1.6), (2, "a", 1.5), (0, "b", 1.5)):
        interval = IntervalId("rail-only", TOGETHER, repeat=repeat)
        run.measurements.append(Measurement(interval, job, JOB_SLOWDOWN, value, "ratio", 1.5, 1.0, 1.0))
    (missed,) = target_outcomes(Analysis(run))
    assert (missed.met, missed.worst.of, missed.worst.interval.repeat) == (False, "a", 1)
    run.measurements.pop(1)
    (met,) = target_outcomes(Analysis(run))
    assert met.met


def slow_down(value: float, least: float, most: float, repeat: int = 0) -> Measurement:
    """The slow-down of a job that is predicted to be 1.2, with the ends of its interval."""
    interval = IntervalId("rail-only", TOGETHER, repeat=repeat)
    return Measurement(interval, "a", JOB_SLOWDOWN, value, "ratio", 1.2, least / 1.2, most / 1.2)


def test_a_slow_down_within_its_interval_meets_the_target() -> None:
    run = Run("test", {}, {}, "")
    run.measurements += [slow_down(1.1, 1.1, 1.3), slow_down(1.3, 1.1, 1.3, repeat=1)]
    (met,) = target_outcomes(Analysis(run))
    assert met.met
    assert met.value == pytest.approx(0)
    run.measurements.append(slow_down(1.04, 1.1, 1.3, repeat=2))
    (missed,) = target_outcomes(Analysis(run))
    assert missed.met is False
    assert missed.value == pytest.approx(0.06 / 1.1)


@pytest.mark.parametrize(
    ("values", "predicted", "text"),
    [
        ((1.15, 1.25), Spread(1.2, 1.1, 1.3), "within interval"),
        ((1.15, 1.32), Spread(1.2, 1.1, 1.3), "within 3% of interval"),
        ((1.0, 1.2), Spread(1.2, 1.1, 1.3), "9.1% off"),
        ((1.21, 1.22), Spread.point(1.2), "within 3%"),
        ((1.2, 1.32), Spread.point(1.2), "10.0% off"),
        ((1.2,), None, NOTHING),
    ],
)
def test_agreement_is_that_of_the_worst_repeat(values: tuple[float, ...], predicted: Spread | None, text: str) -> None:
    assert SlowDowns(values, predicted).agreement == text


def test_job_row_has_the_interval_of_its_prediction() -> None:
    run = Run("test", {}, {}, "")
    run.rows(JOB_RUNS).extend([job_run(ALONE, 1.0), job_run(TOGETHER, 1.2)])
    run.measurements.append(slow_down(1.2, 1.1, 1.3))
    (row,) = job_rows(Analysis(run))
    assert row.slow_downs.measured == 1.2
    assert row.slow_downs.predicted == pytest.approx((1.2, 1.1, 1.3))
    (cells,) = JobsSection().tables(Analysis(run))[0].cells
    assert "1.100 to 1.300" in cells
    # nothing was recorded of the machine, so neither the verdict nor the agreement is ok
    assert cells.count("invalid") == 2
    assert replace(row, verdict="ok").agreement == "within interval"
