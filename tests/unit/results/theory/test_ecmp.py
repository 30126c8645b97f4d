"""Loads of uplinks: expected ones equal brute force and balls into bins, and round robin has the least there can be."""

from functools import reduce
from itertools import product
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.theory.ecmp import Spread, hashes, imbalance, uplink_imbalance
from railyard.results.theory.predict import explained_ratios, predict_phase, share_uplinks
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.collectives.algorithm import ALGORITHMS, Sizes
from railyard.workloads.matrix.traffic_matrix import ways
from railyard.workloads.schedule import Phase, Program, Rates, Schedule

SPREADS: tuple[Spread, ...] = ("even", "expected")
SIDE, SPINES = st.integers(2, 5), st.integers(2, 6)


def spec(domains: int, rails: int, spines: int, policy: str = "spine") -> FabricSpec:
    return FabricSpec(kind="rail-optimized", domains=domains, rails=rails, spines=spines, policy=policy)


def all_to_all(fabric: FabricSpec) -> Sizes:
    phase = Phase("a", "EP", "all-to-all", fabric.rails, fabric.domains, 1.0)
    ((exchange,),) = ALGORITHMS["all-to-all"].stages(phase, Program(fabric.domains, fabric.rails).grid)
    return exchange.sizes()


def imbalance_of(sizes: Sizes, fabric: FabricSpec, spread: Spread = "expected") -> float | None:
    routed = [(sizes, ways(sizes.src, sizes.dst, fabric.rails, fabric))]
    return uplink_imbalance(routed, fabric.rails, fabric.domains, fabric, spread)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), uplinks=st.integers(2, 4))
def test_expected_imbalance_of_few_flows_is_exact(sizes: list[int], uplinks: int) -> None:
    """From one GPU to each of as many rails: its switch has all flows, and every other one has one at most."""
    count = len(sizes)
    dst = np.arange(count) + count + 2  # in domain 1, ranks 1 and above
    pairs = Sizes(np.zeros(count, np.int64), dst, np.array(sizes, float))
    every = list(product(range(uplinks), repeat=count))
    fullest = [max(sum(s for s, u in zip(sizes, chosen, strict=True) if u == up) for up in chosen) for chosen in every]
    expected = sum(fullest) / len(every) * uplinks / sum(sizes)
    assert imbalance_of(pairs, spec(2, count + 1, uplinks)) == pytest.approx(expected)


@pytest.mark.parametrize(("flows", "uplinks"), [(12, 2), (40, 2), (30, 4)])
def test_drawn_maximum_loads_equal_balls_into_bins(flows: int, uplinks: int) -> None:
    """P(no bin has more than m) = flows! [z^flows] (1 + z + .. + z^m/m!)^uplinks / uplinks^flows."""
    expected = 0.0
    for most in range(flows):
        terms = np.array([1 / factorial(k) for k in range(most + 1)])
        power = reduce(np.convolve, [terms] * uplinks)
        expected += 1 - (power[flows] * factorial(flows) / uplinks**flows if len(power) > flows else 0)
    drawn = np.mean([np.bincount(chosen).max() for chosen in hashes(flows, uplinks)])
    assert drawn == pytest.approx(expected, rel=0.01)


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=3, max_size=3), max_size=6))
def test_imbalance_lies_between_one_and_the_number_of_uplinks(loads: list[list[int]]) -> None:
    assert 1 <= imbalance(np.array(loads).reshape(-1, 3)) <= 3 + 1e-9


@given(domains=SIDE, rails=SIDE, spines=SPINES)
def test_hashed_flows_load_uplinks_less_evenly_than_assigned(domains: int, rails: int, spines: int) -> None:
    hashed, assigned = (spec(domains, rails, spines, policy) for policy in ("spine", "round-robin"))
    sizes = all_to_all(hashed)
    even, expected = (imbalance_of(sizes, hashed, spread) or 0 for spread in SPREADS)
    turn = imbalance_of(sizes, assigned) or 0
    assert even == 1
    assert 1 <= turn <= expected + 1e-9
    assert expected <= spines + 1e-9


@given(domains=SIDE, rails=SIDE, spines=SPINES)
def test_round_robin_is_as_even_as_whole_destinations_allow(domains: int, rails: int, spines: int) -> None:
    fabric = spec(domains, rails, spines, "round-robin")
    destinations = domains * (rails - 1)
    most = -(-destinations // spines)
    assert imbalance_of(all_to_all(fabric), fabric) == pytest.approx(most * spines / destinations)


@pytest.mark.parametrize("fabric", [spec(3, 3, 1), FabricSpec(kind="rail-only"), spec(3, 3, 2, "pxn")])
def test_nothing_to_choose_has_no_imbalance(fabric: FabricSpec) -> None:
    assert imbalance_of(all_to_all(fabric), fabric) is None


@pytest.mark.parametrize(("policy", "expected"), [("spine", 1.34), ("round-robin", 1)])
def test_hashed_all_to_all_takes_longer_than_eq_2(policy: str, expected: float) -> None:
    """On a 2x7 grid, 6 of 7 bytes of a rail port cross spines, in 12 flows on the 2 uplinks of a switch."""
    fabric, phase = spec(2, 7, 2, policy), Phase("a", "EP", "all-to-all", 7, 2, 1e6)
    even, hashed = (predict_phase(phase, RATES, fabric, spread) for spread in SPREADS)
    assert hashed / even == pytest.approx(expected, abs=0.01)


RATES = Rates(hb=1e9, rail=1e6)


def schedule_of(fabric: FabricSpec, *phases: Phase) -> Schedule:
    program = Program(fabric.domains, fabric.rails)
    for phase in phases:
        algorithms.run(program, phase, program.grid)
    return program.schedule("a")


@given(domains=SIDE, rails=SIDE, spines=st.integers(2, 4), data=st.data())
def test_measured_loads_alone_explain_a_longer_time(domains: int, rails: int, spines: int, data: st.DataObject) -> None:
    """No less and no more than the busiest uplink takes for its bytes: y x of them have the rate of y rails."""
    measured = data.draw(st.floats(1, spines))
    hashed, assigned = (spec(domains, rails, spines, policy) for policy in ("spine", "round-robin"))
    phase = Phase("a", "EP", "all-to-all", rails, domains, 1e6)
    cross_rail = domains * (rails - 1) * (domains - 1) * 1e6  # that a rail switch sends to spines
    busiest_s = measured * cross_rail / (domains * RATES.rail)
    rail_s = rails * (domains - 1) * 1e6 / RATES.rail
    most = max(1.0, busiest_s / rail_s)
    schedule = schedule_of(hashed, phase)
    assert explained_ratios(schedule, RATES, hashed, measured)["a"] == pytest.approx((most, most))
    turn = predict_phase(phase, RATES, assigned, "expected") / predict_phase(phase, RATES, assigned)
    assert explained_ratios(schedule, RATES, assigned, measured)["a"] == pytest.approx((turn, turn))


def test_phases_that_share_uplinks_unevenly_are_found() -> None:
    fabric, grid = spec(2, 4, 2), (4, 2)
    whole, again = (Phase("a", "EP", "all-to-all", *grid, size) for size in (1e6, 2e6))
    uneven = Phase("b", "EP", "all-to-all-dispatch", *grid, 1e6, shares=(0.3, *(0.1 for _ in range(7))))
    in_rail = Phase("c", "DP", "all-reduce-hierarchical", *grid, 1e6)
    assert share_uplinks(schedule_of(fabric, whole, again, in_rail), fabric) == {}
    assert share_uplinks(schedule_of(fabric, whole, uneven, in_rail), fabric) == {"a": "b", "b": "a", WHOLE: "a, b"}
    for policy in ("round-robin", "pxn"):
        assert share_uplinks(schedule_of(fabric, whole, uneven), spec(2, 4, 2, policy)) == {}
