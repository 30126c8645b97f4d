"""Ports of flows: uplinks and planes with even shares, hashed, and assigned by the policy."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core import plugins
from railyard.results.theory.bottleneck import bottleneck_s
from railyard.results.theory.fluid.routes import Port, Routes, is_hashed, routes_of
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import Sizes
from railyard.workloads.schedule import Rates

LEAF_SPINE = Path(__file__).parents[5] / "docs" / "examples" / "leaf_spine.py"
RATES = Rates(hb=8.0, rail=1.0)


def routes(pairs: list[tuple[int, int]], fabric: FabricSpec, hash_seed: int | None = None) -> Routes:
    ends = np.array(pairs)
    return routes_of(ends[:, 0], ends[:, 1], RATES, fabric, hash_seed)


def ports(flows: Routes, flow: int) -> dict[Port, float]:
    """The ports of a flow, with its shares."""
    numbers = zip(flows.crossed[flow].tolist(), flows.shares[flow].tolist(), strict=True)
    return {flows.ports[number]: share for number, share in numbers if share}


SENT = [(0, 3), (1, 2), (3, 0), (2, 1)]


def test_a_rail_is_left_by_all_uplinks_in_even_shares() -> None:
    fabric = FabricSpec(kind="rail-optimized", domains=2, rails=2, oversubscription=2.0)
    even = routes([(0, 3), (0, 2)], fabric)
    assert ports(even, 0) == {
        Port("d0g0", "rail", True): 1,
        Port("rail0", "uplink", True): 1,
        Port("rail1", "uplink", False): 1,
        Port("d1g1", "rail", False): 1,
    }
    assert ports(even, 1) == {Port("d0g0", "rail", True): 1, Port("d1g0", "rail", False): 1}
    assert even.rates[even.number(Port("rail0", "uplink", True))] == 2 * RATES.rail / 2


@given(seed=st.integers(0, 99))
def test_a_hash_puts_a_flow_on_the_same_spine_both_ways(seed: int) -> None:
    fabric = FabricSpec(kind="rail-optimized", domains=2, rails=2, spines=2)
    hashed = routes(SENT, fabric, seed)
    for flow in range(len(SENT)):
        uplinks = [port for port in ports(hashed, flow) if port.side == "uplink"]
        assert [port.is_out for port in uplinks] == [True, False]
        assert len({port.far for port in uplinks}) == 1
        assert hashed.rates[hashed.number(uplinks[0])] == RATES.rail


def test_an_assigned_uplink_needs_no_hash() -> None:
    fabric = FabricSpec(kind="rail-optimized", domains=2, rails=2, spines=2, policy="round-robin")
    far = [port.far for port in routes([(0, 3), (1, 2)], fabric).ports if port.side == "uplink"]
    assert set(far) < {"spine0", "spine1"}


@given(seed=st.integers(0, 99))
def test_a_hashed_flow_takes_a_plane_at_half_the_rate(seed: int) -> None:
    fabric = FabricSpec(kind="dual-plane", domains=2, rails=2)
    hashed = routes([(0, 2)], fabric, seed)
    rail_ports = [port for port in ports(hashed, 0) if port.side == "rail"]
    assert len({port.plane for port in rail_ports}) == 1
    assert [hashed.rates[hashed.number(port)] for port in rail_ports] == [0.5, 0.5]


def test_gpus_of_a_nic_share_its_port() -> None:
    fabric = FabricSpec(kind="rail-only", domains=2, rails=4, gpus_per_nic=2)
    shared = routes([(0, 4), (1, 5)], fabric)
    assert ports(shared, 0) == ports(shared, 1)


def test_a_pair_without_a_path_crosses_nothing() -> None:
    isolated = routes([(0, 3), (0, 2)], FabricSpec(kind="rail-only", domains=2, rails=2, policy="isolated"))
    assert isolated.has_path.tolist() == [False, True]


def test_cables_of_a_graph_carry_the_load_of_the_bound() -> None:
    """All of three leaves send to all others: the busiest cable of even shares is that of the bottleneck bound."""
    plugins.load(LEAF_SPINE)
    fabric = FabricSpec(kind="leaf-spine", domains=3, rails=2, policy="spine")
    pairs = list(permutations(range(6), 2))
    rates = Rates(hb=1e9, rail=1.0)
    bound_s = bottleneck_s([Sizes.of(dict.fromkeys(pairs, 1.0))], 2, 3, rates, fabric)
    ends = np.array(pairs)
    even = routes_of(ends[:, 0], ends[:, 1], rates, fabric)
    loads = np.bincount(even.crossed.ravel(), even.shares.ravel(), len(even.rates))
    assert (loads / even.rates).max() == pytest.approx(bound_s)
    hashed = routes_of(ends[:, 0], ends[:, 1], rates, fabric, hash_seed=0)
    assert set(hashed.shares.ravel()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("pair", "expected", "keys"),
    [
        ((0, 3), True, {"kind": "rail-optimized", "spines": 2}),
        ((0, 2), False, {"kind": "rail-optimized", "spines": 2}),
        ((0, 3), False, {"kind": "rail-optimized", "spines": 1}),
        ((0, 3), False, {"kind": "rail-optimized", "spines": 2, "policy": "round-robin"}),
        ((0, 3), True, {"kind": "clos", "spines": 2}),
        ((0, 1), False, {"kind": "clos", "spines": 2}),
        ((0, 2), True, {"kind": "dual-plane"}),
        ((0, 3), False, {"kind": "rail-only"}),
    ],
)
def test_flows_with_a_choice_of_links_are_hashed(pair: tuple[int, int], expected: bool, keys: dict[str, Any]) -> None:
    fabric = FabricSpec(domains=2, rails=2, **keys)
    assert is_hashed(routes([pair], fabric), fabric) == expected
