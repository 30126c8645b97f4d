"""Plans: number, distinctness and rates of all cables and ports of a fabric."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric

MBIT = 10**6
LAST_PORT = 0xFEFF  # Open vSwitch gives OpenFlow ports from 0xff00 on a meaning of its own


def plan(kind: str, domains: int = 4, rails: int = 4, **more: Any) -> Plan:
    return make_plan(parse_fabric({"kind": kind, "domains": domains, "rails": rails, **more}), 100 * MBIT)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    kind = draw(st.sampled_from(["rail-only", "rail-optimized", "single-switch"]))
    more = {"spines": draw(st.integers(1, 5))} if kind == "rail-optimized" else {}
    return plan(kind, draw(st.integers(2, 9)), draw(st.integers(2, 9)), **more)


@given(fabric=plans())
def test_no_interface_port_or_datapath_id_is_used_twice(fabric: Plan) -> None:
    ends = [end for link in fabric.links for end in (link.a, link.b)]
    assert len({(end.node, end.interface) for end in ends}) == len(ends)
    ports = [(end.node, end.port) for end in ends if end.port is not None]
    assert len(set(ports)) == len(ports)
    assert len({switch.dpid for switch in fabric.switches}) == len(fabric.switches)
    assert len({switch.name for switch in fabric.switches}) == len(fabric.switches)


@given(fabric=plans())
def test_every_cable_joins_two_nodes_that_exist(fabric: Plan) -> None:
    switches = {switch.name for switch in fabric.switches}
    nodes = {gpu.name for gpu in fabric.gpus} | set(fabric.hb_bridges) | switches
    for link in fabric.links:
        assert {link.a.node, link.b.node} <= nodes
        for end in (link.a, link.b):
            assert (end.port is not None) == (end.node in switches)
            assert len(end.interface) <= 15  # the kernel's IFNAMSIZ, less the final zero


@given(fabric=plans())
def test_each_gpu_has_one_link_per_kind_each_rail_one_per_spine(fabric: Plan) -> None:
    spec = fabric.spec
    assert Counter(link.kind for link in fabric.links) == Counter(
        {"hb": spec.gpus, "rail": spec.gpus, "uplink": spec.rails * spec.spine_count}
    )
    for gpu in fabric.gpus:
        assert fabric.hb_link(gpu).b.node == f"hb{gpu.domain}"
        assert fabric.rail_link(gpu).b.node == ("switch0" if spec.kind == "single-switch" else f"rail{gpu.rank}")
    assert {(link.a.node, link.b.node) for link in fabric.uplinks} == {
        (f"rail{g}", f"spine{i}") for g in range(spec.rails) for i in range(spec.spine_count)
    }


def test_gpus_are_numbered_domain_by_domain() -> None:
    fabric = plan("rail-only", domains=3, rails=5)
    assert all(gpu == Gpu(n // 5, n % 5) for n, gpu in enumerate(fabric.gpus))
    assert len(fabric.gpus) == 15


@given(domains=st.integers(2, 1024), spines=st.integers(1, 64), thin=st.none() | st.integers(1, 8))
def test_uplinks_carry_a_rails_traffic_less_oversubscription(domains: int, spines: int, thin: int | None) -> None:
    fabric = plan("rail-optimized", domains, 2, spines=spines, oversubscription=thin)
    upward = sum(link.rate_bps for link in fabric.uplinks if link.a.node == "rail0")
    needed = sum(fabric.rail_link(gpu).rate_bps for gpu in fabric.gpus if gpu.rank == 0) / (thin or 1)
    assert upward == pytest.approx(needed, abs=spines)  # each cable's rate is rounded to a whole bit/s


@pytest.mark.parametrize("kind", ["rail-only", "single-switch"])
def test_without_spines_there_are_no_uplinks(kind: str) -> None:
    assert plan(kind).uplinks == ()


@pytest.mark.parametrize(
    ("kind", "domains", "rails", "more"),
    [
        ("rail-only", 1024, 256, {}),
        ("rail-optimized", 1024, 256, {"spines": 64}),
        ("single-switch", 254, 256, {}),
    ],
)
def test_the_largest_fabrics_stay_within_the_port_numbers(kind: str, domains: int, rails: int, more: Any) -> None:
    fabric = plan(kind, domains, rails, **more)
    some = [Gpu(d, g) for d in range(domains) for g in (0, rails // 2, rails - 1)]
    far_ends = [fabric.rail_link(gpu).b for gpu in some]
    assert len({(end.node, end.port) for end in far_ends}) == len(some)
    to_gpus = {end.port or 0 for end in far_ends}
    to_switches = {end.port or 0 for link in fabric.uplinks for end in (link.a, link.b)}
    assert min(to_gpus | to_switches) >= 1
    assert max(to_gpus | to_switches) <= LAST_PORT
    assert not to_gpus & {link.a.port for link in fabric.uplinks}


@pytest.mark.parametrize(
    ("fabric", "rail", "hb"),
    [
        (plan("rail-only"), 100 * MBIT, 1200 * MBIT),  # A100: C_F/C_S = 12
        (plan("rail-only", platform="h100"), 100 * MBIT, 900 * MBIT),
        (plan("rail-only", rail_rate="20Mbit"), 20 * MBIT, 240 * MBIT),
        (plan("rail-only", hb_rate="300Mbit"), 100 * MBIT, 300 * MBIT),
    ],
)
def test_rates_left_to_the_machine_keep_the_platforms_ratio(fabric: Plan, rail: int, hb: int) -> None:
    assert {link.rate_bps for link in fabric.links if link.kind == "rail"} == {rail}
    assert {link.rate_bps for link in fabric.links if link.kind == "hb"} == {hb}
