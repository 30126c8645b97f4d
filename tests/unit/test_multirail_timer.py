"""When a window is full, what it tells, and how long a rail took by what all nodes saw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.allreduce.balancing.policy import Timer, Window, median_rail_seconds, rail_seconds

TIMES = st.floats(0, 1e3)


def test_window_is_full_after_enough_operations_of_a_class() -> None:
    timer = Timer()
    assert [timer.add(1000 + n, n, (n + 0.5,), lambda _: 3) for n in range(2)] == [None, None]
    assert timer.add(5000, 0.0, (1.0,), lambda _: 3) is None, "another class"
    assert timer.add(1002, 2, (2.5,), lambda _: 3) == Window(1001, (0, 1, 2), ((0.5,), (1.5,), (2.5,)))
    assert timer.add(1000, 3, (3.5,), lambda _: 3) is None, "begun anew"
    timer.clear()
    assert timer.add(1000, 4, (4.5,), lambda _: 1) == Window(1000, (4,), ((4.5,),))


def test_policy_that_never_learns_gets_no_window() -> None:
    timer = Timer()
    assert [timer.add(1000, 0.0, (1.0,), lambda _: 0) for _ in range(3)] == [None] * 3
    assert timer.add(1000, 5.0, (6.0,), lambda _: 1) == Window(1000, (5.0,), ((6.0,),)), "nothing was kept of those"


def test_long_window_reports_operations_from_all_over_it() -> None:
    timer = Timer()
    (window,) = filter(None, (timer.add(1000, n, (n + 1.0,), lambda _: 100) for n in range(100)))
    assert window.starts == tuple(range(0, 100, 11))
    assert window.ends == tuple((n + 1.0,) for n in range(0, 100, 11))


def test_window_has_sizes_and_times_of_the_same_operations() -> None:
    """Two sizes of a class in turn, as a program's buckets: a byte takes a second, whichever are told."""
    timer = Timer()
    sizes = [600 + 400 * (n % 2) for n in range(100)]
    (window,) = filter(None, (timer.add(size, 0.0, (float(size),), lambda _: 100) for size in sizes))
    assert median_rail_seconds([window]) == pytest.approx((window.size,))
    assert 700 < window.size < 900


def test_late_node_on_a_ring_does_not_change_its_time() -> None:
    """Node 2 begins 3 s late; the ring ends 4 s after that, on another node, and node 2's own end is earlier."""
    assert rail_seconds([0.0, 0.0, 3.0], [(7.0,), (6.0,), (6.5,)]) == (4.0,)


def test_rail_without_work_takes_no_time() -> None:
    assert rail_seconds([0.0, 1.0], [(2.0, 0.0), (2.5, 1.0)]) == (1.5, 0.0)


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=8), TIMES)
def test_waiting_for_others_counts_for_no_rail(nodes: list[tuple[float, float, float]], waited: float) -> None:
    """That all but the last to begin had begun earlier changes nothing."""
    starts = [start for start, _, _ in nodes]
    ends = [(start + a, start + b) for start, a, b in nodes]
    earlier = [start if start == max(starts) else start - waited for start in starts]
    assert rail_seconds(earlier, ends) == rail_seconds(starts, ends)


def test_delayed_operation_does_not_change_the_median() -> None:
    ends = ((2.0, 1.0), (12.5, 11.5), (80.0, 21.25))
    one = Window(1000, (0.0, 10.0, 20.0), ends)
    other = Window(1000, (1.0, 10.0, 20.0), ends)
    assert median_rail_seconds([one, other]) == (2.5, 1.25)
