"""Max-min shares: cases worked by hand, and the laws that define them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.health.oracle import (
    Background,
    Link,
    all_paths,
    capacities,
    completion_s,
    max_min,
    route_of,
    under_load,
)
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric

MBIT = 1_000_000.0


def plan_of(kind: str = "rail-only", domains: int = 2, rails: int = 3) -> Plan:
    """Rails of 10 Mbit/s, HB links of 100."""
    rates = {"rail_rate": "10Mbit", "hb_rate": "100Mbit"}
    return make_plan(parse_fabric({"kind": kind, "domains": domains, "rails": rails, **rates}), 0)


def link(number: int) -> Link:
    return Link(number, "uplink", True)


A, B, C = link(0), link(1), link(2)


@pytest.mark.parametrize(
    ("routes", "free", "rates"),
    [
        ([(A,), (A,)], {A: 10.0}, [5.0, 5.0]),
        # one long flow over two links, a short one on each (the textbook's parking lot)
        ([(A, B), (A,), (B,)], {A: 10.0, B: 20.0}, [5.0, 5.0, 15.0]),
        ([(A, B), (A,), (A,), (B,)], {A: 9.0, B: 10.0}, [3.0, 3.0, 3.0, 7.0]),
        ([(A, B, C), (C,), (B, C)], {A: 1.0, B: 4.0, C: 12.0}, [1.0, 8.0, 3.0]),
        ([(A,), (B,)], {A: 0.0, B: 5.0}, [0.0, 5.0]),
        ([], {}, []),
    ],
)
def test_shares_worked_by_hand(routes: list[tuple[Link, ...]], free: dict[Link, float], rates: list[float]) -> None:
    assert max_min(routes, free) == pytest.approx(rates)


@given(
    routes=st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=5), max_size=14),
    free=st.lists(st.integers(0, 1000), min_size=8, max_size=8),
)
def test_links_are_within_rate_and_each_flow_has_a_bottleneck(routes: list[set[int]], free: list[int]) -> None:
    """Return whether a flow has a bottleneck: a full link on its path where no flow has more (max-min fairness)."""
    ways = [tuple(link(number) for number in sorted(route)) for route in routes]
    limits = {link(number): float(rate) for number, rate in enumerate(free)}
    rates = max_min(ways, limits)
    used = {at: sum(rate for rate, way in zip(rates, ways, strict=True) if at in way) for at in limits}
    assert all(used[at] <= limits[at] + 1e-6 for at in limits)
    for rate, way in zip(rates, ways, strict=True):
        most = {at: max(r for r, w in zip(rates, ways, strict=True) if at in w) for at in way}
        assert any(used[at] >= limits[at] - 1e-6 and most[at] <= rate + 1e-6 for at in way)


def test_a_flow_that_crosses_nothing_is_a_slip() -> None:
    with pytest.raises(ValueError, match="at least one link"):
        max_min([()], {})


def test_when_one_ends_the_others_speed_up() -> None:
    # 10 bytes/s each until 1 s; then the second alone at 20: 20 more bytes
    assert completion_s([(A,), (A,)], [10, 30], {A: 160.0}) == pytest.approx([1.0, 2.0])
    # beside one that never ends, and one that gets nothing
    assert completion_s([(A,), (B,)], [10, 10], {A: 160.0, B: 0.0}, [(A,)]) == pytest.approx([1.0, math.inf])
    assert completion_s([], [], {}) == []


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), st.integers(1, 10**9)), min_size=1, max_size=8),
    st.lists(st.integers(1, 10**10), min_size=4, max_size=4),
)
def test_no_link_carries_bytes_above_its_rate(flows: list[tuple[set[int], int]], free: list[int]) -> None:
    ways = [tuple(link(number) for number in sorted(route)) for route, _ in flows]
    sizes, limits = [size for _, size in flows], {link(n): float(rate) for n, rate in enumerate(free)}
    ends = completion_s(ways, sizes, limits)
    assert max(ends) < math.inf
    for at, rate in limits.items():
        there = [(size, end) for size, end, way in zip(sizes, ends, ways, strict=True) if at in way]
        for _, until in there:  # what has ended by then has been carried by then
            assert sum(size * 8 for size, end in there if end <= until) <= rate * until * (1 + 1e-6)


def test_path_loads_each_link_that_it_crosses() -> None:
    src, dst = Gpu(0, 0), Gpu(1, 1)

    def words(path: Path, kind: str = "rail-only", to: Gpu = dst) -> str:
        def word(at: Link) -> str:
            name = at.node.name if isinstance(at.node, Gpu) else f"rail{at.node}"
            return f"{name}.{at.side}{'>' if at.out else '<'}"

        return " ".join(word(at) for at in route_of(path, src, to, kind))

    assert words(Path("d", 0), to=Gpu(0, 2)) == "d0g0.hb> d0g2.hb<"
    assert words(Path("r", 0), to=Gpu(1, 0)) == "d0g0.rail> d1g0.rail<"
    assert words(Path("dr", 1)) == "d0g0.hb> d0g1.hb< d0g1.rail> d1g1.rail<"
    assert words(Path("rd", 0)) == "d0g0.rail> d1g0.rail< d1g0.hb> d1g1.hb<"
    assert words(Path("drd", 2)) == "d0g0.hb> d0g2.hb< d0g2.rail> d1g2.rail< d1g2.hb> d1g1.hb<"
    assert words(Path("spine", 0), "rail-optimized") == "d0g0.rail> rail0.uplink> rail1.uplink< d1g1.rail<"
    assert words(Path("spine", 0), "single-switch") == "d0g0.rail> d1g1.rail<"


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized", "single-switch"])
def test_every_path_goes_over_links_that_the_plan_has(kind: str) -> None:
    plan = plan_of(kind)
    free = capacities(plan)
    assert sum(free.values()) == pytest.approx(sum(2 * each.rate_bps for each in plan.links))
    for src in plan.gpus:
        for dst in plan.gpus:
            for path in all_paths(src, dst, plan.spec.rails, kind) if src != dst else ():
                assert set(route_of(path, src, dst, kind)) <= free.keys()


@pytest.mark.parametrize(("elastic", "rate"), [(False, 1 * MBIT), (True, 5 * MBIT)])
def test_background_takes_its_rate_or_shares_fairly(elastic: bool, rate: float) -> None:
    src, dst = Gpu(0, 0), Gpu(1, 0)
    free, persistent = under_load(plan_of(), [Background(src, dst, Path("r", 0), 9 * MBIT, elastic)])
    assert max_min([route_of(Path("r", 0), src, dst, "rail-only"), *persistent], free)[0] == pytest.approx(rate)


def test_paced_background_below_its_share_keeps_all_of_its_rate() -> None:
    src, dst = Gpu(0, 0), Gpu(1, 0)
    free, persistent = under_load(plan_of(), [Background(src, dst, Path("r", 0), 2 * MBIT, elastic=True)])
    rates = max_min([route_of(Path("r", 0), src, dst, "rail-only"), *persistent], free)
    assert rates == pytest.approx([8 * MBIT, 2 * MBIT])
