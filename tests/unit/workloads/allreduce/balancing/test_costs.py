"""A rail's line, the best split and its threshold, against the paper's figures and by other roads."""

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.workloads.allreduce.balancing.costs import (
    Cost,
    Rail,
    allreduce_cost,
    equal_finish_s,
    fastest_rail,
    ideal_shares,
    initial_shares,
    paper_rail,
    rails_to_split,
    scaled,
    size_class,
    spread,
    threshold,
    update_shares,
)
from railyard.workloads.allreduce.engine_kind import predicted_s
from tests.unit.workloads.allreduce.multirail_net import split_seconds
from tests.unit.workloads.messages import CheckMessages

COSTS = st.builds(Cost, st.floats(0, 0.01), st.floats(1e-11, 1e-6))
CLOSE_COSTS = st.builds(Cost, st.floats(0, 3e-3), st.floats(1e-10, 1e-7))
SIZES = st.integers(1, 2**34)


@pytest.mark.parametrize(
    ("kind", "size", "stated_us", "tolerance"),
    [  # Table 1; TCP's throughput falls between 8 and 64 MB, which no straight line follows
        ("sharp", 1024, 9, 0.01),
        ("sharp", 8 * 2**20, 22_140, 0.02),
        ("sharp", 64 * 2**20, 181_484, 0.02),
        ("tcp", 1024, 982, 0.01),
        ("tcp", 8 * 2**20, 37_137, 0.05),
        ("tcp", 64 * 2**20, 316_323, 0.05),
    ],
)
def test_the_papers_rails_take_the_times_of_table_1(kind: str, size: int, stated_us: float, tolerance: float) -> None:
    rail = paper_rail(kind)
    assert allreduce_cost(rail, 4).seconds(size) * 1e6 == pytest.approx(stated_us, rel=tolerance)


def test_the_papers_rails_have_the_shape_of_figure_2() -> None:
    tcp, sharp, glex = (allreduce_cost(paper_rail(kind), 4) for kind in ("tcp", "sharp", "glex"))
    assert tcp.seconds(32 * 1024) / sharp.seconds(32 * 1024) == pytest.approx(0.73 / 0.06, rel=0.05)
    assert sharp.seconds(64 * 1024) < glex.seconds(64 * 1024)
    assert glex.seconds(256 * 1024) < sharp.seconds(256 * 1024)
    assert all(glex.seconds(2**k) < tcp.seconds(2**k) for k in range(10, 27))


def test_a_ring_moves_twice_n_less_one_by_n_and_a_tree_once() -> None:
    ring, tree = Rail("a", "tcp", 1e6, 0.001), Rail("b", "sharp", 1e6, 0.001)
    assert allreduce_cost(ring, 8).setup_s == pytest.approx(0.014)
    assert allreduce_cost(ring, 8).s_per_byte == pytest.approx(2 * 7 / 8 / 1e6)
    assert allreduce_cost(tree, 8) == Cost(0.002, 1e-6)
    assert allreduce_cost(Rail("c", "tcp", 1e9, 0.0, 2e-6), 2).s_per_byte == 2e-6  # the CPU binds
    with pytest.raises(ValueError, match="2 or more"):
        allreduce_cost(ring, 1)


@given(size=st.integers(0, 2**30), factor=st.floats(0.01, 1000))
def test_scaled_rails_with_scaled_sizes_take_the_same_time(size: int, factor: float) -> None:
    for rail in map(paper_rail, RAIL_KINDS):
        slow = allreduce_cost(scaled(rail, factor), 4).seconds(size / factor)
        assert slow == pytest.approx(allreduce_cost(rail, 4).seconds(size), rel=1e-9)


@given(costs=st.lists(COSTS, min_size=1, max_size=5), size=st.integers(0, 2**34))
def test_ideal_shares_sum_to_one_and_no_other_split_is_faster(costs: list[Cost], size: int) -> None:
    shares = ideal_shares(costs, size)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0
    best = split_seconds(costs, shares, size)
    cold = costs[fastest_rail(costs, size)].seconds(size)
    assert best <= cold * (1 + 1e-9)
    if size:
        assert best == pytest.approx(equal_finish_s(costs, size), rel=1e-6)
        even = split_seconds(costs, [1 / len(costs)] * len(costs), size)
        assert best <= even * (1 + 1e-9)


@given(costs=st.lists(COSTS, min_size=2, max_size=4), gain=st.sampled_from([0.0, 0.1, 0.5]))
def test_split_at_the_threshold_gains_exactly_the_minimum(costs: list[Cost], gain: float) -> None:
    size = threshold(costs, gain)
    if size is not None and size > 1:
        cold = costs[fastest_rail(costs, size)].seconds(size)
        assert equal_finish_s(costs, size) * (1 + gain) == pytest.approx(cold, rel=1e-5)


def test_threshold_of_like_and_of_unlike_rails() -> None:
    tcp = allreduce_cost(paper_rail("tcp"), 4)
    by_itself, gaining = threshold([tcp, tcp]), threshold([tcp, tcp], 0.1)
    assert by_itself is not None
    assert by_itself < 1
    assert gaining == pytest.approx(0.1 / 0.45 * tcp.setup_s / tcp.s_per_byte, rel=1e-6)
    assert threshold([tcp]) is None
    assert threshold([Cost(0, 1e-9), Cost(0, 2e-8)], 0.1) is None


def test_too_unlike_rails_are_not_split() -> None:
    tcp, sharp = (allreduce_cost(paper_rail(kind), 4) for kind in ("tcp", "sharp"))
    assert rails_to_split([sharp, tcp], 32 * 1024) == ()
    assert rails_to_split([sharp, tcp], 8 * 2**20) == (0, 1)
    slow = Cost(0, sharp.s_per_byte * 6)
    assert rails_to_split([sharp, slow, tcp], 64 * 2**20) == (0, 2)
    assert rails_to_split([sharp], 2**30) == rails_to_split([sharp, sharp], 0) == ()


@pytest.mark.parametrize(("ratio", "gain"), [(2, 1.5), (5, 1.2), (8, 1.0)])
def test_rail_beyond_tau_is_left_out_of_predictions(ratio: int, gain: float) -> None:
    """Nezha Fig. 3: a second rail adds 1/rho of the first one's throughput, up to rho = tau."""
    rails = [Rail("fast", "tcp", 1e9), Rail("slow", "tcp", 1e9 / ratio)]
    single_s = predicted_s("single:fast", rails, 4, 2**20)
    assert single_s / predicted_s("nezha", rails, 4, 2**20) == pytest.approx(gain)
    assert single_s / predicted_s("mrib", rails, 4, 2**20) == pytest.approx(1 + 1 / ratio, rel=1e-4)


def test_messages_of_bad_rails(check_messages: CheckMessages) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"rate": 0.0},
        {"rate": math.nan},
        {"setup_s": -1.0},
        {"nominal": math.inf},
        {"kind": "tpc"},
    )
    rail: dict[str, Any] = {"name": "a", "kind": "tcp", "rate": 1e6}
    check_messages({str(change): partial(Rail, **(rail | change)) for change in changes})


@given(seconds=st.lists(st.floats(0, 10), min_size=1, max_size=5))
def test_equation_8_sums_to_one_and_gives_the_slower_less(seconds: list[float]) -> None:
    shares = initial_shares(seconds)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0
    slowest = seconds.index(max(seconds))
    assert shares[slowest] <= min(shares) + 1e-12


@given(truth=st.lists(CLOSE_COSTS, min_size=2, max_size=4), size=st.integers(2**20, 2**28))
def test_one_share_update_with_true_slopes_is_enough(truth: list[Cost], size: int) -> None:
    even = [1 / len(truth)] * len(truth)
    times = [cost.seconds(size / len(truth)) for cost in truth]
    shares = update_shares(even, times, [cost.s_per_byte * size for cost in truth])
    assume(all(share > 0 for share in shares))
    assert spread(c.seconds(a * size) for c, a in zip(truth, shares, strict=True)) < 1e-6


def test_classes_are_powers_of_two() -> None:
    assert [size_class(size) for size in (0, 1, 2, 3, 4, 5, 2**20, 2**20 + 1)] == [0, 1, 2, 3, 3, 4, 21, 22]
