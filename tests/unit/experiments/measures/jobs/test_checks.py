"""Checks of ports while jobs run: counters that differ from the routes, and bytes where no route leads."""

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.checks import checks
from railyard.experiments.measures.jobs.records import ALONE, JOB_PORTS, JobPort
from railyard.results.runs.records import Run


def port(jobs: str, counted: int, expected: int, link: str = "d0g0 rail") -> JobPort:
    interval = IntervalId("rail-only", f"{jobs} alone")
    return JobPort(interval, ALONE, link, "out", jobs, counted, expected, allowed_bytes=expected // 20 + 10_000)


@pytest.mark.parametrize(
    ("rows", "passed"),
    [
        ([port("a", 1_040_000, 1_000_000), port("", 9_000, 0)], [True, True]),
        ([port("a", 1_040_000, 1_000_000), port("a", 930_000, 1_000_000)], [False]),
        ([port("a", 1_070_000, 1_000_000)], [False]),
        ([port("", 0, 0), port("", 10_001, 0)], [False]),
        ([], []),
    ],
)
def test_ports_are_judged_by_the_worst_count(rows: list[JobPort], passed: list[bool]) -> None:
    run = Run("test", {}, {}, "")
    run.rows(JOB_PORTS).extend(rows)
    assert [check.passed for check in checks(run)] == passed


def test_check_names_the_port_that_is_furthest_off() -> None:
    run = Run("test", {}, {}, "")
    # more bytes are missing at the larger port, which may be off by more
    run.rows(JOB_PORTS).extend([port("a", 8_000_000, 9_000_000), port("b", 0, 400_000, "d3g1 rail")])
    (check,) = checks(run)
    assert check.interval == IntervalId("rail-only", "b alone")
    assert "d3g1 rail out" in check.detail
    assert (check.value, check.limit) == (400_000, 30_000)
