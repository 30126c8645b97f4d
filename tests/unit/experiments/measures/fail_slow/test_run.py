"""Records of a case that was played on packets."""

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.fail_slow.run import MeasuredCase
from railyard.experiments.measures.fail_slow.spec import FailSlowSpec
from railyard.failure.diagnosis.cases import Case
from railyard.failure.diagnosis.change_points import Change
from railyard.failure.diagnosis.definition import Culprit, Diagnosis

INTERVAL = IntervalId("rail-only", "fail-slow gpu")
SECONDS = (1.0, 1.0, 1.0, 2.0, 2.0, 2.0)


def test_row_has_the_slow_part_and_the_report_of_the_detector() -> None:
    culprit = Culprit("gpu", "d0g1", 4.0)
    diagnosis = Diagnosis(Change(3, 5, 2.0), (Culprit("gpu", "d0g1", 3.9),))
    measured = MeasuredCase(FailSlowSpec(), Case(culprit, 3), SECONDS, 2.1, diagnosis, 2)
    row = measured.row(INTERVAL)
    assert (row.target, row.ratio, row.iteration, row.passes) == ("d0g1", 4.0, 3, 2)
    assert (row.reported, row.noticed, row.named, row.is_right) == (3, 5, "GPU d0g1 (3.90)", True)
    assert row.slowdown == pytest.approx(2.0)
    assert row.predicted == 2.1
    assert [time.is_slow for time in measured.iteration_times(INTERVAL)] == [False] * 3 + [True] * 3


def test_quiet_job_is_right_if_nothing_is_named() -> None:
    measured = MeasuredCase(FailSlowSpec(part="none"), Case(None, 3), SECONDS, 1.0, Diagnosis(None), 0)
    row = measured.row(INTERVAL)
    assert (row.target, row.reported, row.noticed, row.named, row.is_right) == ("", -1, -1, "", True)
    assert not any(time.is_slow for time in measured.iteration_times(INTERVAL))
