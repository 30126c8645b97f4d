"""Policies' plans cover the buffer once, on live rails only; the rest of a part is what isn't done."""

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.units import parse_size
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.balancing.policies.slicing import MAX_SLICE_BYTES, slice_count
from railyard.workloads.allreduce.balancing.policy import Planner, make_planner
from railyard.workloads.allreduce.balancing.states import LEARNING_WINDOW, LONG_WINDOW
from railyard.workloads.allreduce.tasks import merged, missing, partition, pieces
from tests.unit.workloads.messages import CheckMessages

NAMES = ("nezha", "mrib", "slicing", "single", "equal", "single:r0")
RAILS = st.lists(
    st.tuples(st.sampled_from(["tcp", "sharp", "glex"]), st.floats(1e6, 1e10), st.floats(0, 1e-3)),
    min_size=1,
    max_size=4,
).map(lambda rows: [Rail(f"r{i}", *row) for i, row in enumerate(rows)])
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda p: (min(p), max(p))), max_size=6)


@given(
    name=st.sampled_from(NAMES),
    rails=RAILS,
    nodes=st.integers(1, 8),
    length=st.integers(0, 2**22),
    itemsize=st.sampled_from([1, 4, 8, 16]),
    dead=st.sets(st.integers(0, 3)),
)
def test_a_plan_covers_the_buffer_once_on_live_rails(
    name: str, rails: list[Rail], nodes: int, length: int, itemsize: int, dead: set[int]
) -> None:
    policy = make_planner(name, rails, nodes)
    gone = sorted(dead & set(range(len(rails))))[: len(rails) - 1]
    for rail in gone:
        policy.down(rail)
    plan = policy.plan(length, itemsize)
    at = 0
    for part in plan:
        assert part.start == at
        assert part.length > 0 or length == 0
        at += part.length
    assert at == length
    assert plan
    assert not {part.rail for part in plan} & set(gone)
    live = set(range(len(rails))) - set(gone)
    assert policy.best(length * itemsize, live) in live
    for rail in gone:
        policy.up(rail)
    assert sum(part.length for part in policy.plan(length, itemsize)) == length


@given(length=st.integers(0, 2**60), shares=st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(any))
def test_whole_elements_are_nearest_to_the_shares(length: int, shares: list[float]) -> None:
    given = {part.rail: part.length for part in partition(length, shares)}
    counts = [given.get(rail, 0) for rail in range(len(shares))]
    assert sum(counts) == length
    assert min(counts) >= 0
    for number, share in zip(counts, shares, strict=True):
        assert abs(number - length * share / sum(shares)) <= 1 + length * 1e-12
        assert share > 0 or number == 0


UNLIKE = [Rail("a", "tcp", 3e6), Rail("b", "tcp", 1e6)]


def test_fixed_weights_give_segments_in_proportion() -> None:
    rails = UNLIKE
    assert [part.length for part in make_planner("mrib", rails, 4).plan(100, 4)] == [75, 25]
    assert [part.length for part in make_planner("equal", rails, 4).plan(101, 4)] == [51, 50]
    assert [part.length for part in make_planner("weights:99:1", rails, 4).plan(100, 4)] == [99, 1]
    assert [part.rail for part in make_planner("single", rails, 4).plan(100, 4)] == [0]
    assert [part.rail for part in make_planner("single:b", rails, 4).plan(100, 4)] == [1]


def slice_rails(policy: Planner, size: int, itemsize: int = 1) -> list[int]:
    """The rail of each slice."""
    return [part.rail for part in policy.plan(size // itemsize, itemsize)]


@pytest.mark.parametrize(
    ("paper", "count"), [("512KiB", 1), ("1MiB", 2), ("2MiB", 4), ("8MiB", 4), ("64MiB", 6), ("512MiB", 41)]
)
def test_slice_is_a_quarter_of_the_buffer_within_limits(paper: str, count: int) -> None:
    size = parse_size(paper) // 50 // 4 * 4
    lengths = [4 * part.length for part in make_planner("slicing", UNLIKE, 4).plan(size // 4, 4)]
    assert len(lengths) == slice_count(size) == count
    assert count == 1 or 8 * 1024 <= min(lengths) <= max(lengths) <= MAX_SLICE_BYTES


def test_slice_goes_to_the_rail_that_is_free_first() -> None:
    policy, size = make_planner("slicing", UNLIKE, 4), 4 * MAX_SLICE_BYTES
    assert slice_rails(policy, size).count(0) == 3
    policy.learn(size, [0.3, 0.3])  # three slices in the time of one: as the rates have it
    assert slice_rails(policy, size).count(0) == 3
    assert policy.best(size, {0, 1}) == 0
    for _ in range(3):
        policy.learn(size, [30.0, 0.01])  # the first is fast by its rate only
    assert slice_rails(policy, size).count(1) >= 3
    assert policy.best(size, {0, 1}) == 1
    assert slice_rails(policy, size // 8).count(0) == 3  # of shorter ones that says nothing
    policy.down(1)
    assert slice_rails(policy, size) == [0] * 4


def test_slice_windows_are_short_until_all_rails_are_measured() -> None:
    policy, size = make_planner("slicing", [*UNLIKE, Rail("c", "tcp", 1e3)], 4), 4 * MAX_SLICE_BYTES
    assert [policy.window(small) for small in (0, 1, 16 * 1024 - 1)] == [0] * 3  # a single slice shares nothing out
    assert policy.window(16 * 1024) == LEARNING_WINDOW
    policy.learn(size, [0.3, 0.3, 0.0])
    assert policy.window(size) == LEARNING_WINDOW
    policy.down(2)
    assert policy.window(size) == LONG_WINDOW
    assert policy.window(size // 8) == LEARNING_WINDOW


@given(
    rails=RAILS,
    windows=st.lists(st.tuples(st.integers(1, 2**22), st.lists(st.floats(0, 1), min_size=4, max_size=4)), max_size=8),
    length=st.integers(0, 2**22),
)
def test_slices_do_not_depend_on_node_or_element_size(
    rails: list[Rail], windows: list[tuple[int, list[float]]], length: int
) -> None:
    one, other = make_planner("slicing", rails, 4), make_planner("slicing", rails, 4)
    for size, seconds in windows:
        for policy in (one, other):
            policy.learn(size, seconds[: len(rails)])
    assert one.plan(length, 8) == other.plan(length, 8)
    assert slice_rails(one, 8 * length) == slice_rails(other, 8 * length, 8)


def test_messages_of_impossible_policies(check_messages: CheckMessages) -> None:
    policies = ("nezah", "single:c", "weights:1:2", "weights:0")
    calls = {policy: partial(make_planner, policy, [Rail("a", "tcp", 1e6)], 4) for policy in policies}
    check_messages({**calls, "no rail": partial(make_planner, "equal", [], 4)})


@given(first=SPANS)
def test_span_functions_match_sets_of_elements(first: list[tuple[int, int]]) -> None:
    def elements(spans: list[tuple[int, int]]) -> set[int]:
        return {i for a, b in spans for i in range(a, b)}

    assert elements(merged(first)) == elements(first)
    assert elements(missing(5, 30, first)) == set(range(5, 30)) - elements(first)
    assert all(a < b < c for (a, b), (c, _) in pairwise(merged(first)))


@given(start=st.integers(0, 100), length=st.integers(0, 1000), longest=st.integers(1, 200))
def test_pieces_cover_a_range_in_order(start: int, length: int, longest: int) -> None:
    spans = pieces(start, length, longest)
    assert spans[0][0] == start
    assert spans[-1][1] == start + length
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert all(0 < b - a <= longest for a, b in spans) or length == 0


def test_empty_buffer_has_one_empty_segment() -> None:
    assert [(part.rail, part.length) for part in partition(0, [0.2, 0.8])] == [(1, 0)]
    with pytest.raises(ValueError, match="one above 0"):
        partition(5, [0.0, 0.0])
