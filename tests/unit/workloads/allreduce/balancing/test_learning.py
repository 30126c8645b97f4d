"""Learned costs of rails, and what is forgotten when rails have changed."""

from typing import Any

import pytest

from railyard.workloads.allreduce.balancing.balancer import LEARNING_WINDOW
from railyard.workloads.allreduce.balancing.policy import Learning, make_planner
from tests.unit.workloads.allreduce.multirail_net import rails_of

SIZE = 16 * 2**20


def after_a_window() -> tuple[Learning, Any, list[dict[str, Any]]]:
    """Nezha's, that awaits the table of its first window."""
    policy = make_planner("nezha", rails_of("tcp tcp tcp"), 4)
    reported: list[dict[str, Any]] = []
    learning = Learning(policy, reported.append)
    for op in range(1, LEARNING_WINDOW + 1):
        learning.ended(op, SIZE, 0.0, (0.1, 0.0, 0.0))
    assert not learning.up_to_date()
    return learning, policy, reported


def test_only_the_awaited_table_is_learned() -> None:
    learning, policy, (window,) = after_a_window()
    before = [each.cost for each in policy.rails.estimators]
    learning.received({"op": 3, "size": SIZE, "seconds": [9.0, 0.0, 0.0]})
    assert not learning.up_to_date()
    learning.received({"op": window["op"], "size": SIZE, "seconds": [0.1, 0.0, 0.0]})
    assert learning.up_to_date()
    assert [each.cost for each in policy.rails.estimators] != before


@pytest.mark.parametrize("came", [False, True])
def test_changed_rails_discard_earlier_measurements(came: bool) -> None:
    """A policy may be out of turn meanwhile, with its table on the way or unread."""
    learning, policy, (window,) = after_a_window()
    table = {"op": window["op"], "size": SIZE, "seconds": [0.1, 0.0, 0.0]}
    if came:
        learning.received(table)
    learning.rails_changed([0], [])
    before = [each.cost for each in policy.rails.estimators]
    if not came:
        learning.received(table)
    assert learning.up_to_date()
    assert [each.cost for each in policy.rails.estimators] == before
