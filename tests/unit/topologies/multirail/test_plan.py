"""Plans of multi-rail fabrics: addresses, ports, cables and flows."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.failure.faults import FAULTS
from railyard.topologies.addresses import OPTICAL_DPID
from railyard.topologies.build.shaping import burst_bytes, max_gso_segments
from railyard.topologies.multirail.commands import (
    CONTROL_TOS,
    IDLE_BURST_S,
    MIN_WINDOW_FRAMES,
    link_command,
    mptcp_commands,
    node_commands,
    node_sysctls,
    shaper_commands,
    window_bytes,
)
from railyard.topologies.multirail.net import static_flows
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.topologies.multirail.spec import (
    MAX_NODES,
    MAX_RAILS,
    SWITCH_DPID,
    MultirailSpec,
    Nic,
    RailSpec,
    parse_multirail,
    route_table,
    subnet,
)
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.topologies.spec import OPTICAL_DOMAINS
from railyard.workloads.allreduce.engine_kind import rails_of

rates = st.integers(1_000_000, 10_000_000_000)
rail_lists = st.lists(
    st.builds(RailSpec, kind=st.sampled_from(RAIL_KINDS.names()), rate=st.just("5Mbit")), min_size=1, max_size=8
)
UNREACHABLE = "route add unreachable default"
specs = st.builds(
    MultirailSpec,
    kind=st.just("multi-rail"),
    nodes=st.integers(2, MAX_NODES),
    rails=rail_lists,
    scale=st.none() | st.floats(1, 1e6),
    mtu=st.integers(1280, 9000),
)


@st.composite
def plans(draw: st.DrawFn) -> MultirailPlan:
    spec = draw(specs)
    return MultirailPlan(spec, tuple(draw(rates) for _ in spec.rails), draw(st.floats(1, 1e6)))


def nics(plan: MultirailPlan) -> list[Nic]:
    return [nic for rail in range(len(plan.rails)) for nic in plan.nics_on(rail)]


@given(plan=plans())
def test_plan_has_a_nic_per_rail_and_aggregators_on_sharp(plan: MultirailPlan) -> None:
    for node in plan.hosts:
        assert [nic.rail for nic in plan.nics_of(node)] == list(range(len(plan.rails)))
    for rail, spec in enumerate(plan.rails):
        assert (plan.aggregators[rail] is not None) == (spec.kind == "sharp")
        assert {nic.namespace for nic in plan.nics_on(rail)} >= set(plan.hosts)
    assert len(nics(plan)) == plan.spec.nodes * len(plan.rails) + sum(spec.kind == "sharp" for spec in plan.rails)


@given(plan=plans())
def test_no_two_have_the_same_address_name_or_port(plan: MultirailPlan) -> None:
    found = nics(plan)
    for values in (
        [nic.ip for nic in found],
        [nic.mac for nic in found],
        [(nic.namespace, nic.interface) for nic in found],
        [(nic.rail, nic.port) for nic in found],
        [(end.node, end.interface) for link in plan.links for end in (link.a, link.b)],
        plan.namespaces,
        [switch.dpid for switch in plan.switches],
    ):
        assert Counter(values).most_common(1)[0][1] == 1
    assert all(len(end.interface) < 16 for link in plan.links for end in (link.a, link.b))
    assert {end.node for link in plan.links for end in (link.a, link.b)} == set(plan.namespaces)


def test_dpids_of_rail_switches_are_above_optical_switches() -> None:
    assert OPTICAL_DPID + OPTICAL_DOMAINS <= SWITCH_DPID


@given(plan=plans())
def test_a_cable_goes_from_a_nic_to_its_port_of_its_rails_switch(plan: MultirailPlan) -> None:
    for nic in nics(plan):
        link = plan.link(nic)
        assert (link.a.node, link.a.interface) == (nic.namespace, f"rail{nic.rail}")
        assert (link.b.node, link.b.interface, link.b.port) == (f"rail{nic.rail}", nic.namespace, nic.port)
        share = 1 if nic.node is not None else plan.spec.nodes**2
        assert link.rate_bps == plan.rates_bps[nic.rail] * share


@given(plan=plans())
def test_switch_forwards_to_the_port_of_the_destination_nic(plan: MultirailPlan) -> None:
    for rail in range(len(plan.rails)):
        flows = static_flows(plan.nics_on(rail)).splitlines()
        out = [re.findall(r"^priority=1,dl_dst=(.*),actions=output:(\d+)$", flow) for flow in flows]
        assert out == [[(nic.mac, str(nic.port))] for nic in plan.nics_on(rail)]


@given(plan=plans())
def test_node_has_neighbours_and_a_route_table_for_each_nic(plan: MultirailPlan) -> None:
    for name in {nic.namespace for nic in plan.nics_on(0)[-2:]}:
        lines = node_commands(plan, name).splitlines()
        for nic in plan.nics_of(name):
            table, dev = route_table(nic.rail), f"dev rail{nic.rail}"
            assert f"rule add from {nic.ip} lookup {table}" in lines
            routes = [line for line in lines if line.startswith(f"route add {subnet(nic.rail)} {dev}")]
            assert [route.endswith(f"table {table}") for route in routes] == [False, True]
            assert f"{UNREACHABLE} table {table}" in lines
            known = {tuple(line.split()[2:7:2]) for line in lines if line.startswith("neighbour") and dev in line}
            peers = [peer for peer in plan.nics_on(nic.rail) if peer != nic]
            assert known == {(peer.ip, peer.mac, f"rail{nic.rail}") for peer in peers}


@given(plan=plans())
def test_window_is_30_ms_of_its_rail_and_buffers_hold_two(plan: MultirailPlan) -> None:
    windows = [window_bytes(plan, rail) for rail in range(len(plan.rails))]
    for rate, window in zip(plan.rates_bps, windows, strict=True):
        assert window == pytest.approx(max(rate * 0.03 / 8, MIN_WINDOW_FRAMES * plan.spec.mtu), abs=1)
    for key in ("net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"):
        assert int(str(node_sysctls(plan)[key]).split()[-1]) == 2 * max(windows)


@given(plan=plans())
def test_a_link_is_made_with_both_ends_alike(plan: MultirailPlan) -> None:
    for nic in nics(plan):
        near, far = link_command(plan, nic, plan.link(nic)).split(" peer ")
        assert f"address {nic.mac}" in near
        assert "address" not in far
        assert all(f"mtu {plan.spec.mtu} txqueuelen 10000" in end for end in (near, far))
        assert "gso_max_segs" in near


@given(rate=rates, mtu=st.integers(1280, 9000))
def test_data_have_the_whole_rate_and_control_a_lane_beside(rate: int, mtu: int) -> None:
    lines = shaper_commands("rail0", rate, mtu).splitlines()
    own = {
        found[1]: int(found[2]) for line in lines if (found := re.search(r"classid (1:\d+) htb rate (\d+)bit", line))
    }
    assert own == {"1:10": rate, "1:20": rate // 5}
    assert all(f"ceil {own[f'1:{n}']}bit burst" in line for n, line in zip((10, 20), lines[1:3], strict=True))
    assert f"cburst {burst_bytes(rate, mtu, 1e-3)}b" in lines[1]
    assert "default 10" in lines[0]
    assert f"ip tos {CONTROL_TOS:#x}" in lines[-1]
    assert lines[-1].endswith("flowid 1:20")


@given(rate=rates, mtu=st.integers(1280, 9000))
def test_idle_link_passes_some_milliseconds_of_its_rate(rate: int, mtu: int) -> None:
    millisecond = rate / 8000
    assert burst_bytes(rate, mtu, IDLE_BURST_S) == pytest.approx(max(min(1500, mtu), millisecond), abs=1)
    at_once = max_gso_segments(rate, mtu, 4e-3)
    assert at_once >= 1
    assert at_once * mtu <= max(mtu, min(65_535, 4 * millisecond + 1))


@given(plan=plans())
def test_mptcp_announces_each_nic_and_limits_subflows(plan: MultirailPlan) -> None:
    limits, *endpoints = mptcp_commands(plan.nics_of("n1")).splitlines()
    more = len(plan.rails) - 1
    assert limits.endswith(f" subflow {min(2 * more, 8)} add_addr_accepted {more}")
    assert endpoints == [f"mptcp endpoint add 198.18.{r}.2 dev rail{r} signal" for r in range(more + 1)]


def test_the_table_of_names_holds() -> None:
    assert Nic(2, 5) == (2, 5)
    assert (Nic(2, 5).namespace, Nic(2, 5).interface, Nic(2, 5).ip, Nic(2, 5).mac, Nic(2, 5).port) == (
        *("n5", "rail2", "198.18.2.6", "02:4d:00:00:02:05", 6),
    )
    aggregator = Nic(2, None)
    assert (aggregator.namespace, aggregator.ip, aggregator.mac, aggregator.port) == (
        *("agg2", "198.18.2.254", "02:4d:00:00:02:ff", 255),
    )
    assert Nic(MAX_RAILS - 1, MAX_NODES - 1).ip == "198.18.7.64"


def test_headers_are_no_payload() -> None:
    spec = MultirailSpec.model_validate(
        {"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": "100Mbit"}]}
    )
    assert make_multirail_plan(spec).payload_bps(0) == pytest.approx(100e6 * 8948 / 9014)


def test_targets_of_faults_are_nics_and_rails() -> None:
    rails = [{"kind": "tcp", "rate": "100Mbit"}, {"kind": "sharp", "rate": "100Mbit"}]
    plan = make_multirail_plan(parse_multirail({"kind": "multi-rail", "nodes": 2, "rails": rails}))
    targets = ["tcp0 of n0", "tcp0 of n1", "sharp1 of n0", "sharp1 of n1", "sharp1 of agg1"]
    assert list(FAULTS["link-down"].targets(plan)) == targets
    assert FAULTS["rail-switch-crash"].targets(plan) == ["rail0", "rail1"]
    for kind in ("gpu-crash", "hb-port-down", "server-crash", "spine-crash", "controller-crash"):
        assert not FAULTS[kind].targets(plan)


@given(plan=plans(), times=st.floats(1, 100))
def test_dilation_slows_all_rates_and_keeps_sizes(plan: MultirailPlan, times: float) -> None:
    slow = plan.dilated(times)
    assert (slow.scale, slow.spec, slow.dilation) == (plan.scale, plan.spec, times)
    for rail, slower in zip(rails_of(plan), rails_of(slow), strict=True):
        assert slower.rate == pytest.approx(rail.rate / times, rel=1e-3)
        assert slower.setup_s == pytest.approx(rail.setup_s * times)
        assert slower.cpu_s_per_byte == pytest.approx(rail.cpu_s_per_byte * times)
    assert slow.dilated(1).rates_bps == pytest.approx(plan.rates_bps, abs=times)
