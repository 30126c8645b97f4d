"""Drain time of a script's traffic: the longest time that a pair may have been cut off."""

import pytest

from railyard.failure.scenario.run import outage_s

S = 10**9


@pytest.mark.parametrize(
    ("broken", "longest_s"),
    [
        ([(0, 2)], 2),
        ([(0, 2), (5, 32)], 27),
        ([(5, 32), (0, 2)], 27),
        ([(0, 20), (10, 30), (31, 33)], 30),  # one after the other at both ends of a connection
        ([(0, 30), (10, 20)], 30),
    ],
)
def test_faults_that_overlap_are_one_outage(broken: list[tuple[int, int]], longest_s: int) -> None:
    assert outage_s([begin * S for begin, _ in broken], [end * S for _, end in broken]) == longest_s
