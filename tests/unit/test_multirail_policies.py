"""Every policy's plan covers the buffer once, on live rails only; and what is left of a part is what isn't done."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import BadInput
from workloads.multirail.policies import SLICE_BYTES, make_policy
from workloads.multirail.rails import Rail
from workloads.multirail.segments import common, cut, merged, missing, partition, pieces

NAMES = ("nezha", "mrib", "slicing", "single", "equal", "single:r0")
RAILS = st.lists(
    st.tuples(st.sampled_from(["tcp", "sharp", "glex"]), st.floats(1e6, 1e10), st.floats(0, 1e-3)),
    min_size=1,
    max_size=4,
).map(lambda rows: [Rail(f"r{i}", *row) for i, row in enumerate(rows)])  # type: ignore[arg-type]
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
    policy = make_policy(name, rails, nodes)
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
def test_whole_elements_come_as_near_to_the_shares_as_they_can(length: int, shares: list[float]) -> None:
    counts = cut(length, shares)
    assert sum(counts) == length
    assert min(counts) >= 0
    for number, share in zip(counts, shares, strict=True):
        assert abs(number - length * share / sum(shares)) <= 1 + length * 1e-12
        assert share > 0 or number == 0


def test_fixed_weights_and_slices() -> None:
    rails = [Rail("a", "tcp", 3e6), Rail("b", "tcp", 1e6)]
    assert [part.length for part in make_policy("mrib", rails, 4).plan(100, 4)] == [75, 25]
    assert [part.length for part in make_policy("equal", rails, 4).plan(101, 4)] == [51, 50]
    assert [part.length for part in make_policy("weights:99:1", rails, 4).plan(100, 4)] == [99, 1]
    assert [part.rail for part in make_policy("single", rails, 4).plan(100, 4)] == [0]
    assert [part.rail for part in make_policy("single:b", rails, 4).plan(100, 4)] == [1]
    slices = make_policy("slicing", rails, 4)
    assert [part.rail for part in slices.plan(4 * SLICE_BYTES, 1)].count(0) == 3
    slices.learn(4 * SLICE_BYTES, [3.0, 0.01])  # the first was fast by its rate only
    assert [part.rail for part in slices.plan(4 * SLICE_BYTES, 1)].count(1) >= 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nezah", "policy: 'nezah' is not known: did you mean 'nezha'?"),
        ("single:c", "policy: 'single:c' is not known: "),
        ("weights:1:2", "policy: 'weights:1:2' must have a whole number a rail, not all 0: weights:99"),
        ("weights:0", "policy: 'weights:0' must have a whole number a rail, not all 0: weights:99"),
    ],
)
def test_an_unknown_policy_is_told_in_one_line(name: str, message: str) -> None:
    with pytest.raises(BadInput) as error:
        make_policy(name, [Rail("a", "tcp", 1e6)], 4)
    assert str(error.value).startswith(message)
    with pytest.raises(BadInput, match="one rail or more"):
        make_policy("equal", [], 4)


@given(first=SPANS, second=SPANS)
def test_spans_are_sets_of_elements(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    def elements(spans: list[tuple[int, int]]) -> set[int]:
        return {i for a, b in spans for i in range(a, b)}

    assert elements(merged(first)) == elements(first)
    assert elements(common(first, second)) == elements(first) & elements(second)
    assert elements(missing(5, 30, first)) == set(range(5, 30)) - elements(first)
    assert all(a < b < c for (a, b), (c, _) in pairwise(merged(first)))


@given(start=st.integers(0, 100), length=st.integers(0, 1000), longest=st.integers(1, 200))
def test_pieces_cover_a_range_in_order(start: int, length: int, longest: int) -> None:
    spans = pieces(start, length, longest)
    assert spans[0][0] == start
    assert spans[-1][1] == start + length
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert all(0 < b - a <= longest for a, b in spans) or length == 0


def test_an_empty_buffer_has_one_empty_part() -> None:
    assert [(part.rail, part.length) for part in partition(0, [0.2, 0.8])] == [(1, 0)]
    with pytest.raises(ValueError, match="one above 0"):
        cut(5, [0.0, 0.0])
