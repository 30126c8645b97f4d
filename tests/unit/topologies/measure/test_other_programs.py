"""Programs that would disturb a run: named by what they use between two samples."""

import pytest

from railyard.topologies.measure import other_programs


def test_programs_of_one_name_count_together() -> None:
    before = {(1, 0.0): ("idle", 50.0), (2, 0.0): ("ffmpeg", 1.0)}
    after = {(1, 0.0): ("idle", 50.0), (2, 0.0): ("ffmpeg", 1.4), (3, 9.0): ("ffmpeg", 0.2), (4, 9.0): ("make", 0.2)}
    others = other_programs.between(before, after, 1.0, 2.0)
    assert others.busiest == "ffmpeg"
    assert (others.share, others.busiest_share) == pytest.approx((0.4, 0.3))
    assert others.disturb
    assert others.amount.startswith("40% of all cores")
    assert "ffmpeg (30%)" in str(others)


def test_idle_machine_disturbs_nothing() -> None:
    sample = {(1, 0.0): ("idle", 50.0)}
    others = other_programs.between(sample, sample, 1.0, 2.0)
    assert (others.share, others.disturb) == (0, False)
    assert str(others).startswith("use 0% of all cores")


def test_processes_of_this_machine_are_read() -> None:
    others = other_programs.watch(1.0, 0.01)
    assert 0 <= others.busiest_share <= others.share <= 1
