"""Jobs over time: overlapping transfers are one bar, links are those that jobs shared longest, one figure a fabric."""

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.plots import MAX_LINKS, gantt_plots, sending_spans, shared_seconds
from railyard.experiments.measures.jobs.records import JOB_RUNS, LINK_SHARING, TOGETHER, JobRun, LinkSharing
from railyard.results.runs.records import Flow, Run

TOGETHER_ID = IntervalId("rail-only", "all jobs")


def flow(job: str, start_s: float, end_s: float, kind: str = "DP", interval: IntervalId = TOGETHER_ID) -> Flow:
    times = (int(start_s * 1e9), int(end_s * 1e9))
    return Flow(interval, f"{job}: step", kind, "d0g0", "d1g0", 100, 100, *times)


def job_run(job: str, mode: str = TOGETHER, interval: IntervalId = TOGETHER_ID) -> JobRun:
    return JobRun(interval, job, mode, "packed", "d0g0 d1g0", 0.0, 2, 1.0, 1.0, 0.1, 100, 100, 0, 100)


def sharing(link: str, start_s: float, end_s: float, jobs: str = "a, b") -> LinkSharing:
    return LinkSharing(TOGETHER_ID, link, "out", jobs, start_s, end_s)


def test_overlapping_transfers_share_a_bar() -> None:
    spans = sending_spans([flow("a", 5, 6), flow("a", 5.5, 7), flow("a", 8, 9), flow("b", 5, 6, "TP")])
    assert spans == {
        ("a", "DP"): [(0.0, pytest.approx(2)), (pytest.approx(3), pytest.approx(1))],
        ("b", "TP"): [(0.0, pytest.approx(1))],
    }


def test_transfer_inside_another_does_not_shorten_its_bar() -> None:
    assert sending_spans([flow("a", 0, 9), flow("a", 1, 2)]) == {("a", "DP"): [(0.0, 9.0)]}


def test_longest_shared_links_come_first() -> None:
    rows = [sharing("d0g0 rail", 0, 1), sharing("d1g0 rail", 0, 1), sharing("d1g0 rail", 2, 5)]
    assert list(shared_seconds(rows).items()) == [("d1g0 rail out", 4.0), ("d0g0 rail out", 1.0)]


def test_figure_shows_jobs_that_ran_together() -> None:
    run = Run("test", {}, {}, "")
    assert gantt_plots(run) == []
    alone = IntervalId("rail-only", "a alone")
    run.rows(JOB_RUNS).extend([job_run("a", "alone", alone), job_run("a"), job_run("b")])
    run.flows.extend([flow("a", 0, 1, interval=alone), flow("a", 1, 2), flow("b", 1, 3)])
    (plot,) = gantt_plots(run)
    assert "shared no link" in plot.alt
    run.rows(LINK_SHARING).append(sharing("d0g0 rail", 0, 1))
    (plot,) = gantt_plots(run)
    assert "d0g0 rail out" in plot.svg


def test_figure_of_many_jobs_names_the_first_of_each_link() -> None:
    run = Run("test", {}, {}, "")
    names = [f"job-{number}" for number in range(20)]
    names[0] = "a-job-with-a-name-of-more-characters-than-a-row-has"
    for number, name in enumerate(names):
        run.rows(JOB_RUNS).append(job_run(name))
        run.flows.append(flow(name, number, number + 2))
    for number in range(2 * MAX_LINKS):
        run.rows(LINK_SHARING).append(sharing(f"d{number}g0 rail", 0, 30 - number, ", ".join(names[:5])))
    (plot,) = gantt_plots(run)
    assert "They shared 24 links." in plot.alt
    assert plot.svg.count("job-1, job-2 and 2 more") == MAX_LINKS
    assert "a-job-with…-a-row-has" in plot.svg
    assert "job-19" in plot.svg
    assert "d12g0 rail out" not in plot.svg
