"""Jobs beside faults, and the target of slow-downs: the job and repeat that is furthest from its prediction."""

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.analysis import fault_rows, target_outcomes
from railyard.experiments.measures.jobs.records import ALONE, INTERLEAVED, JOB_RUNS, JOB_SLOWDOWN, TOGETHER, JobRun
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Measurement, Run


def job_run(mode: str, iteration_s: float) -> JobRun:
    times = (0.0, 3, iteration_s, iteration_s, 0.0)
    return JobRun(IntervalId("rail-only", mode), "a", mode, "gpus", "d0g0 d0g1", *times, 100, 100, 0, 100)


def test_interleaved_jobs_are_not_beside_a_fault() -> None:
    run = Run("test", {}, {}, "")
    modes = {ALONE: 1.0, TOGETHER: 2.0, INTERLEAVED: 1.0, "link-slow d0g1": 3.0}
    run.rows(JOB_RUNS).extend(job_run(mode, iteration_s) for mode, iteration_s in modes.items())
    assert [(row.fault, row.ratio) for row in fault_rows(Analysis(run))] == [("link-slow d0g1", 1.5)]


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
