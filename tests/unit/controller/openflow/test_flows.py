"""Flow tables: every frame comes out where it should, over every choice that ECMP has, and unknown ones nowhere."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.failover.detours import find_disconnected_ranks
from railyard.controller.openflow.flows import RANK_GROUP, UPLINK_GROUP, Flow, Ports, Tables, reconcile, tables_of
from railyard.topologies.addresses import RAIL_DPID, SINGLE_DPID, SPINE_DPID, UPLINK_PORT, Gpu, gpu_at, role_of
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.fake_switch import cables, delivered, out_ports, ports_of

KINDS = ("rail-only", "rail-optimized", "single-switch")
SHAPES = [(2, 2), (2, 4), (4, 3)]


def plan(kind: str, domains: int, rails: int, **more: Any) -> Plan:
    return make_plan(parse_fabric({"kind": kind, "domains": domains, "rails": rails, **more}), 10**8)


def tables(fabric: Plan, ports: Mapping[int, Ports], lost: frozenset[int] = frozenset()) -> dict[int, Tables]:
    """Of all switches that live, given their ports. `lost`: datapath ids of dead ones."""
    spines = {dpid - SPINE_DPID: {} if dpid in lost else p for dpid, p in ports.items() if role_of(dpid)[0] == "spine"}
    assigned = {s.dpid: fabric.spec.uplinks(s.index) for s in fabric.switches if s.role == "rail"}
    return {dpid: tables_of(dpid, p, spines, assigned.get(dpid)) for dpid, p in ports.items() if dpid not in lost}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("domains", "rails"), SHAPES)
def test_each_gpu_reaches_exactly_the_gpus_of_its_network(kind: str, domains: int, rails: int) -> None:
    fabric = plan(kind, domains, rails)
    switches = tables(fabric, ports_of(fabric))
    for src in fabric.gpus:
        for dst in fabric.gpus:
            if src != dst:
                joined = kind != "rail-only" or src.rank == dst.rank
                assert delivered(fabric, switches, src, dst.mac("rail")) == {dst if joined else None}


@given(kind=st.sampled_from(KINDS), mac=st.binary(min_size=6, max_size=6), like_ours=st.booleans())
def test_frames_to_unknown_addresses_are_dropped(kind: str, mac: bytes, like_ours: bool) -> None:
    fabric = plan(kind, 3, 3)
    address = (b"\x02\x52" + mac[2:] if like_ours else mac).hex(":")
    known = {gpu.mac("rail"): gpu for gpu in fabric.gpus}
    ends = delivered(fabric, tables(fabric, ports_of(fabric)), Gpu(0, 0), address)
    assert ends <= {known.get(address), None}
    assert address in known or ends == {None}


def test_frames_for_an_hb_interface_and_broadcasts_stay_out() -> None:
    for kind in KINDS:
        fabric = plan(kind, 2, 2)
        switches = tables(fabric, ports_of(fabric))
        for mac in (Gpu(1, 0).mac("hb"), "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"):
            assert delivered(fabric, switches, Gpu(0, 0), mac) == {None}


Cut = tuple[int, int]  # an end of a cable: datapath id and port


def uplink_faults(fabric: Plan) -> list[tuple[frozenset[Cut], frozenset[int]]]:
    """Return every spine dead, every uplink cut, and every two of these: (both ends of cut cables, dead spines)."""
    ends = [frozenset({a, b}) for a, b in cables(fabric).items() if role_of(a[0])[0] == "rail"]
    spines = [s.dpid for s in fabric.switches if s.role == "spine"]
    single = [(cut, frozenset[int]()) for cut in ends] + [(frozenset[Cut](), frozenset({s})) for s in spines]
    double = [(a | c, b | d) for (a, b), (c, d) in combinations(single, 2)]
    return [*single, *double]


@pytest.mark.parametrize("policy", ["spine", "round-robin"])
@pytest.mark.parametrize("spines", [1, 2, 3])
@pytest.mark.parametrize(("domains", "rails"), [(2, 2), (2, 3)])
def test_no_choice_of_uplink_meets_a_dead_spine_or_cable(domains: int, rails: int, spines: int, policy: str) -> None:
    fabric = plan("rail-optimized", domains, rails, spines=spines, policy=policy)
    for cut, lost in uplink_faults(fabric):
        ports = {d: {p: (d, p) not in cut for p in known} for d, known in ports_of(fabric).items()}
        switches = tables(fabric, ports, lost)
        apart = find_disconnected_ranks(fabric, cut, lost)
        for src in (Gpu(0, g) for g in range(rails)):
            for dst in (Gpu(1, g) for g in range(rails)):
                ends = delivered(fabric, switches, src, dst.mac("rail"), cut)
                if (src.rank, dst.rank) not in apart:
                    assert ends == {dst}, (cut, lost)


def test_intact_fabric_has_one_group_and_a_cut_adds_one() -> None:
    fabric = plan("rail-optimized", 2, 4, spines=2)
    ports = ports_of(fabric)
    whole = tables(fabric, ports)
    assert all(whole[RAIL_DPID + g].groups == {UPLINK_GROUP: (2001, 2002)} for g in range(4))
    ports[SPINE_DPID][4] = ports[RAIL_DPID + 3][UPLINK_PORT] = False
    cut = tables(fabric, ports)
    assert cut[RAIL_DPID].groups == {UPLINK_GROUP: (2001, 2002), RANK_GROUP + 3: (2002,)}
    assert cut[RAIL_DPID + 3].groups == {UPLINK_GROUP: (2002,)}
    ports[RAIL_DPID + 3][UPLINK_PORT] = True  # only the spine's end is known to be dead yet
    assert tables(fabric, ports)[RAIL_DPID + 3].groups == {UPLINK_GROUP: (2002,)}
    assert len(cut[RAIL_DPID].flows - whole[RAIL_DPID].flows) == 1


@given(domains=st.integers(2, 5), rails=st.integers(2, 5), spines=st.integers(1, 5))
def test_round_robin_has_one_uplink_per_destination(domains: int, rails: int, spines: int) -> None:
    fabric = plan("rail-optimized", domains, rails, spines=spines, policy="round-robin")
    switches = tables(fabric, ports_of(fabric))
    for rank in range(rails):
        others = [gpu for gpu in fabric.gpus if gpu.rank != rank]
        chosen = [out_ports(switches[RAIL_DPID + rank], gpu.mac("rail")) for gpu in others]
        assert all(len(ports) == 1 for ports in chosen)
        counts = [chosen.count(frozenset({UPLINK_PORT + spine})) for spine in range(spines)]
        assert max(counts) - min(counts) <= 1
        assert all(delivered(fabric, switches, Gpu(0, rank), gpu.mac("rail")) == {gpu} for gpu in others)


def test_unknown_spine_counts_as_intact() -> None:
    ports = {1: True, UPLINK_PORT: True, UPLINK_PORT + 1: True}
    for spines in ({}, {0: {1: True, 2: True}}):
        assert tables_of(RAIL_DPID, ports, spines).groups == {UPLINK_GROUP: (2001, 2002)}
    assert tables_of(RAIL_DPID, ports, {0: {}}).groups == {UPLINK_GROUP: (2002,)}


def test_port_without_carrier_keeps_its_flow() -> None:
    assert tables_of(RAIL_DPID, {1: False, 2: True}) == tables_of(RAIL_DPID, {1: True, 2: True})
    assert tables_of(RAIL_DPID, {2: True}) != tables_of(RAIL_DPID, {1: False, 2: True})


@given(kind=st.sampled_from(KINDS), domains=st.integers(2, 254), rails=st.integers(2, 256), data=st.data())
def test_ports_and_datapath_ids_match_the_plans_cables(
    kind: str, domains: int, rails: int, data: st.DataObject
) -> None:
    fabric = plan(kind, domains, rails)
    dpids = {switch.name: switch for switch in fabric.switches}
    gpu = Gpu(data.draw(st.integers(0, domains - 1)), data.draw(st.integers(0, rails - 1)))
    end = fabric.rail_link(gpu).b
    assert gpu_at(dpids[end.node].dpid, end.port or 0) == gpu
    assert all(role_of(switch.dpid) == (switch.role, switch.index) for switch in fabric.switches)
    for up in fabric.uplinks[:: max(1, len(fabric.uplinks) // 5)]:
        assert gpu_at(dpids[up.a.node].dpid, up.a.port or 0) is None
        assert gpu_at(dpids[up.b.node].dpid, up.b.port or 0) is None


def test_a_datapath_id_names_a_role_and_an_index() -> None:
    assert role_of(SINGLE_DPID) == ("single", 0)


@pytest.mark.parametrize("dpid", [0, 1, 0xFFF, 0x3001, 0x7000, 0x1000_0000_1000])
def test_a_datapath_id_outside_the_scheme_is_refused(dpid: int) -> None:
    with pytest.raises(ValueError, match=f"datapath id {dpid:#x} is none of"):
        role_of(dpid)


macs = st.sampled_from(["02:52:00:00:00:00", "02:52:00:01:00:00", "02:52:00:02:00:00"])
some_groups = st.dictionaries(st.integers(1, 3), st.lists(st.integers(1, 3), max_size=2).map(tuple), max_size=3)


@st.composite
def some_tables(draw: st.DrawFn) -> Tables:
    """A few flows, one a key at most, as a switch has them."""
    groups = draw(some_groups)
    target = st.tuples(st.integers(1, 3), st.none())
    if groups:
        target |= st.tuples(st.none(), st.sampled_from(sorted(groups)))
    chosen = draw(st.dictionaries(st.tuples(macs, st.sampled_from([100, 200])), target, max_size=4))
    return Tables(frozenset(Flow(m, "ff:ff:ff:ff:ff:ff", p, *to) for (m, p), to in chosen.items()), groups)


@given(have=some_tables(), want=some_tables())
def test_steps_between_tables_leave_no_gap(have: Tables, want: Tables) -> None:
    steps = reconcile(have, want)
    assert not set(dict(steps.add_groups)) & set(have.groups)
    assert set(dict(steps.change_groups)) <= set(have.groups)
    flows = {flow.key: flow for flow in have.flows}
    groups = {**have.groups, **dict(steps.change_groups), **dict(steps.add_groups)}
    lasting = {flow.key for flow in have.flows} & {flow.key for flow in want.flows}
    for flow in steps.add:
        assert flow.group is None or flow.group in groups
        flows[flow.key] = flow
    for flow in steps.delete:
        assert flow.key not in lasting, "a frame would meet a gap"
        del flows[flow.key]
    for number in steps.delete_groups:
        assert all(flow.group != number for flow in flows.values())
        del groups[number]
    assert Tables(frozenset(flows.values()), groups) == want


@given(have=some_tables(), want=some_tables())
def test_only_differing_flows_are_sent(have: Tables, want: Tables) -> None:
    steps = reconcile(have, want)
    assert set(steps.add) == want.flows - have.flows
    assert set(steps.delete) <= have.flows - want.flows
    assert reconcile(want, want) == reconcile(Tables(), Tables())
    sent = {number for number, _ in steps.change_groups + steps.add_groups}
    assert sent == {n for n, ports in want.groups.items() if have.groups.get(n) != ports}
