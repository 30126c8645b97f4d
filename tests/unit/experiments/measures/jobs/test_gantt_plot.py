"""Jobs over time: overlapping transfers are one bar, links are those that jobs shared longest, one figure a fabric."""

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.gantt_plot import MAX_LINKS, gantt_plots, longest_shared, sending_spans
from railyard.experiments.measures.jobs.records import JOB_RUNS, LINK_SHARING, TOGETHER, JobRun, LinkSharing
from railyard.results.runs.records import Flow, Run

TOGETHER_ID = IntervalId("rail-only", "all jobs")


def flow(job: str, start_s: float, end_s: float, kind: str = "DP", interval: IntervalId = TOGETHER_ID) -> Flow:
    times = (int(start_s * 1e9), int(end_s * 1e9))
    return Flow(interval, f"{job}: step", kind, "d0g0", "d1g0", 100, 100, *times)


def job_run(job: str, mode: str = TOGETHER, interval: IntervalId = TOGETHER_ID) -> JobRun:
    return JobRun(interval, job, mode, "packed", "d0g0 d1g0", 0.0, 2, 1.0, 1.0, 0.1, 100, 100, 0, 100)


def sharing(link: str, start_s: float, end_s: float) -> LinkSharing:
    return LinkSharing(TOGETHER_ID, link, "out", "a, b", start_s, end_s)


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
    assert longest_shared(rows) == ["d1g0 rail out", "d0g0 rail out"]
    many = [sharing(f"d{number}g0 rail", 0, 1) for number in range(2 * MAX_LINKS)]
    assert len(longest_shared(many)) == MAX_LINKS


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
