"""Latency and bandwidth of rail-only's path and the spine's, and whether the condition names the better one."""

import numpy as np
import pytest

from railyard.results.theory.loaded_paths import Healths, PathPair, bandwidth, condition, latency, names_no_worse

IDLE = 1.0


def healths(domain: float = IDLE, rail: float = IDLE, spine: float = IDLE, far_rail: float = IDLE) -> Healths:
    return Healths(*(np.array([value]) for value in (domain, rail, spine, far_rail)))


def values(pair: PathPair) -> tuple[float, float]:
    return pair.rail_only.item(), pair.rail_optimized.item()


def test_idle_paths_take_the_time_of_their_links() -> None:
    # two HB links of twice a rail's rate and two rail links; four links at a rail's rate
    assert values(latency(healths(), hb_ratio=2)) == (3, 4)


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        (healths(domain=0.1), (2 / 0.2 + 2, 4)),
        (healths(rail=0.1), (3, 10 + 3)),
        (healths(spine=0.1), (3, 1 + 20 + 1)),
        (healths(far_rail=0.1), (1 + 20, 3 + 10)),
    ],
)
def test_a_loaded_link_counts_at_each_crossing(loaded: Healths, expected: tuple[float, float]) -> None:
    assert values(latency(loaded, hb_ratio=2)) == pytest.approx(expected)


def test_bandwidth_is_that_of_the_slowest_link() -> None:
    assert values(bandwidth(healths(domain=0.1, spine=0.5), hb_ratio=2)) == pytest.approx((0.2, 0.5))
    assert values(bandwidth(healths(far_rail=0.1), hb_ratio=2)) == pytest.approx((0.1, 0.1))


def test_condition_compares_the_h_ratio_with_the_spine() -> None:
    # 0.5 / 0.6 < 1; 0.5 / 0.4 = 1.25 is below 1 / 0.5, and above 1 / 0.9
    assert condition(healths(rail=0.5, domain=0.6)).item()
    assert condition(healths(rail=0.5, domain=0.4, spine=0.5)).item()
    assert not condition(healths(rail=0.5, domain=0.4, spine=0.9)).item()


def test_equal_costs_are_no_worse_for_either_path() -> None:
    costs = PathPair(np.array([1.0, 1, 1, 2]), np.array([1.0, 1, 2, 1]))
    named = names_no_worse(np.array([True, False, False, True]), costs)
    assert named.tolist() == [True, True, False, False]
