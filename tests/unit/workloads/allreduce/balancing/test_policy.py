"""Learning of a planner: windows, what they report, and what is forgotten when rails change."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.allreduce.balancing.costs import Cost
from railyard.workloads.allreduce.balancing.policy import FixedWeights, Learning, make_planner, rail_seconds
from railyard.workloads.allreduce.balancing.states import LEARNING_WINDOW
from tests.unit.workloads.allreduce.multirail_net import rails_of

TIMES = st.floats(0, 1e3)


class Windows(FixedWeights):
    """Planner that wants medians over so many operations."""

    def __init__(self, length: int) -> None:
        super().__init__([Cost(0.0, 1.0)], [1.0])
        self.length = length

    def window(self, size: int) -> int:
        return self.length


def sent(length: int, operations: Iterable[tuple[int, float, Sequence[float]]], changed: Collection[int] = ()) -> Any:
    """Return (size, starts, ends) of each window; rails change before the operations of these numbers."""
    messages: list[dict[str, Any]] = []
    learning = Learning(Windows(length), messages.append)
    for op, (size, start, ends) in enumerate(operations):
        if op in changed:
            learning.rails_changed((), ())
        learning.ended(op, size, start, ends)
    return [(message["size"], message["starts"], message["ends"]) for message in messages]


def test_window_is_full_after_enough_operations_of_a_class() -> None:
    one_class, another = [(1000 + n, float(n), (n + 0.5,)) for n in range(3)], (5000, 0.0, (1.0,))
    window = (1001, [0, 1, 2], [[0.5], [1.5], [2.5]])
    assert sent(3, [*one_class[:2], another]) == []
    assert sent(3, [*one_class[:2], another, *one_class[2:]]) == [window]
    assert sent(3, [*one_class, *one_class[:2]]) == [window]


def test_changed_rails_begin_a_new_window() -> None:
    assert sent(2, [(1000, float(n), (n + 0.5,)) for n in range(3)], changed=[1]) == [(1000, [1, 2], [[1.5], [2.5]])]


def test_policy_that_never_learns_gets_no_window() -> None:
    assert sent(0, [(1000, 0.0, (1.0,))] * 3) == []


def test_long_window_reports_operations_from_all_over_it() -> None:
    ((_, starts, ends),) = sent(100, ((1000, float(n), (n + 1.0,)) for n in range(100)))
    assert starts == list(range(0, 100, 11))
    assert ends == [[n + 1.0] for n in range(0, 100, 11)]


def test_window_has_sizes_and_times_of_the_same_operations() -> None:
    """Two sizes of a class in turn, as a program's buckets: a byte takes a second, whichever are reported."""
    sizes = [600 + 400 * (n % 2) for n in range(100)]
    ((size, starts, ends),) = sent(100, ((size, 0.0, (float(size),)) for size in sizes))
    assert np.median(rail_seconds([starts], [ends])) == pytest.approx(size)
    assert 700 < size < 900


def test_late_node_on_a_ring_does_not_change_its_time() -> None:
    """Node 2 begins 3 s late; the ring ends 4 s after that, on another node, and node 2's own end is earlier."""
    assert rail_seconds([0.0, 0.0, 3.0], [(7.0,), (6.0,), (6.5,)]).tolist() == [4.0]


def test_rail_without_work_takes_no_time() -> None:
    assert rail_seconds([0.0, 1.0], [(2.0, 0.0), (2.5, 1.0)]).tolist() == [1.5, 0.0]


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=8), TIMES)
def test_waiting_for_others_counts_for_no_rail(nodes: list[tuple[float, float, float]], waited: float) -> None:
    """That all but the last to begin had begun earlier changes nothing."""
    starts = [start for start, _, _ in nodes]
    ends = [(start + a, start + b) for start, a, b in nodes]
    earlier = [start if start == max(starts) else start - waited for start in starts]
    assert rail_seconds(earlier, ends).tolist() == rail_seconds(starts, ends).tolist()


def test_each_operation_has_its_own_time() -> None:
    ends = [[2.0, 1.0], [12.5, 11.5]]
    assert rail_seconds([[0.0, 10.0], [1.0, 10.0]], [ends, ends]).tolist() == [[1.0, 0.0], [2.5, 1.5]]


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
