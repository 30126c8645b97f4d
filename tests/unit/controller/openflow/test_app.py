"""The OpenFlow app against fake switches: flows are installed and kept, and each event is reported once."""

from typing import Any

import pytest

from railyard.controller.openflow.app import RailyardApp, SwitchEvent
from railyard.controller.openflow.codec import add_flow, delete_all, ofp, parser
from railyard.controller.openflow.flows import EXACT, UPLINK_GROUP, Flow
from railyard.topologies.addresses import RAIL_DPID, SPINE_DPID, Gpu
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.fake_switch import FakeSwitch, delivered, ports_of, state_change

KINDS = ("rail-only", "rail-optimized", "single-switch")


class Fabric:
    """All switches of a plan, an app, and its events."""

    def __init__(self, kind: str = "rail-optimized", domains: int = 3, rails: int = 3, **more: Any) -> None:
        spec = parse_fabric({"kind": kind, "domains": domains, "rails": rails, **more})
        self.plan: Plan = make_plan(spec, 10**8)
        self.arrived: list[SwitchEvent] = []
        self.app = new_app(self.arrived)
        self.switches = {dpid: FakeSwitch(dpid, ports) for dpid, ports in ports_of(self.plan).items()}

    def connect(self) -> "Fabric":
        for switch in self.switches.values():
            switch.connect(self.app)
        return self

    def whats(self) -> list[tuple[str, int]]:
        return [(arrived.what, arrived.dpid) for arrived in self.arrived]

    def forget_messages(self) -> None:
        for switch in self.switches.values():
            switch.received.clear()

    def assert_all_reach_all_their_network_joins(self) -> None:
        cut = {(dpid, port) for dpid, switch in self.switches.items() for port, up in switch.ports.items() if not up}
        tables = {dpid: switch.tables for dpid, switch in self.switches.items()}
        for src in self.plan.gpus:
            for dst in self.plan.gpus:
                if src != dst and (self.plan.spec.kind != "rail-only" or src.rank == dst.rank):
                    assert delivered(self.plan, tables, src, dst.mac("rail"), cut) == {dst}


def new_app(arrived: list[SwitchEvent]) -> RailyardApp:
    app = RailyardApp()
    app.listener = arrived.append
    return app


@pytest.mark.parametrize("kind", KINDS)
def test_new_switch_gets_flows_before_its_report(kind: str) -> None:
    fabric = Fabric(kind).connect()
    fabric.assert_all_reach_all_their_network_joins()
    assert fabric.whats() == [("switch-up", dpid) for dpid in fabric.switches]
    for arrived in fabric.arrived:
        assert arrived.up_ports == frozenset(fabric.switches[arrived.dpid].ports)


@pytest.mark.parametrize("kind", KINDS)
def test_a_switch_that_kept_its_tables_is_sent_nothing(kind: str) -> None:
    fabric = Fabric(kind).connect()
    fabric.forget_messages()
    fabric.app = new_app(fabric.arrived)  # the controller was restarted, the switches were not
    fabric.connect()
    for switch in fabric.switches.values():
        assert not [m for m in switch.received if isinstance(m, (parser.OFPFlowMod, parser.OFPGroupMod))]


def test_switch_with_old_flows_gets_the_difference() -> None:
    fabric = Fabric().connect()
    rail = fabric.switches[RAIL_DPID]
    right = rail.tables
    stale, wrong = Flow("02:52:00:09:00:00", EXACT, 200, 77), Flow(*sorted(right.flows)[0].key[:3], 78)
    rail.flows.pop(sorted(right.flows)[1].key)
    for flow in (stale, wrong):
        rail.send_msg(add_flow(rail, flow))
    rail.received.clear()
    rail.connect(fabric.app)
    assert rail.tables == right
    assert len([m for m in rail.received if isinstance(m, parser.OFPFlowMod)]) == 3


@pytest.mark.parametrize("shape", [{"table_id": 1}, {"idle_timeout": 9}, {"hard_timeout": 9}, {"match": None}])
def test_a_switch_with_flows_of_another_shape_is_emptied_first(shape: dict[str, Any]) -> None:
    fabric = Fabric().connect()
    rail = fabric.switches[RAIL_DPID]
    right = rail.tables
    foreign = add_flow(rail, Flow("02:52:00:00:00:00", EXACT, 300, 3))
    for name, value in shape.items():
        setattr(foreign, name, value or parser.OFPMatch(in_port=1, eth_dst="02:52:00:00:00:00"))
    rail.send_msg(foreign)
    rail.received.clear()
    rail.connect(fabric.app)
    assert rail.tables == right
    commands = [message.command for message in rail.received if isinstance(message, parser.OFPFlowMod)]
    assert commands == [ofp.OFPFC_DELETE] + [ofp.OFPFC_ADD] * len(right.flows)


def test_second_connection_of_a_switch_counts_as_down_and_up() -> None:
    fabric = Fabric("rail-only").connect()
    old = fabric.switches[RAIL_DPID]
    new = FakeSwitch(old.id, {**old.ports, 1: False})
    new.connect(fabric.app)
    assert fabric.whats()[-2:] == [("switch-down", old.id), ("switch-up", old.id)]
    assert new.tables == old.tables, "it had no flows"
    assert 1 not in fabric.arrived[-1].up_ports
    fabric.app.on_state(state_change(old, up=False))  # the late end of the old one changes nothing
    assert fabric.whats()[-1] == ("switch-up", old.id)
    new.set_port(fabric.app, 1, up=True)
    assert fabric.arrived[-1].what == "port"


def test_a_switch_outside_the_scheme_is_left_alone() -> None:
    arrived: list[SwitchEvent] = []
    stranger = FakeSwitch(0x99, {1: True})
    stranger.connect(new_app(arrived))
    assert not stranger.received
    assert not arrived


def test_port_is_reported_only_on_a_change() -> None:
    fabric = Fabric("rail-only").connect()
    rail = fabric.switches[RAIL_DPID]
    del fabric.arrived[:]
    for up in (False, False, True, True, None):
        rail.set_port(fabric.app, 2, up)
    rail.set_port(fabric.app, 2, up=True)
    assert [(h.what, h.port, h.up) for h in fabric.arrived] == [("port", 2, up) for up in (False, True, False, True)]


def test_flow_of_a_removed_port_returns_with_the_port() -> None:
    fabric = Fabric("rail-only").connect()
    rail = fabric.switches[RAIL_DPID]
    right = rail.tables
    rail.set_port(fabric.app, 2, None)
    assert right.flows - rail.tables.flows == {Flow(Gpu(1, 0).mac("rail"), EXACT, 200, 2)}
    rail.set_port(fabric.app, 2, up=True)
    assert rail.tables == right


def test_port_up_follows_its_flow_and_port_down_comes_first() -> None:
    fabric = Fabric("rail-only").connect()
    rail = fabric.switches[RAIL_DPID]
    flow = Flow(Gpu(1, 0).mac("rail"), EXACT, 200, 2)
    seen: list[tuple[bool, bool]] = []
    fabric.app.listener = lambda arrived: seen.append((arrived.up, flow in rail.tables.flows))
    rail.set_port(fabric.app, 2, None)
    rail.set_port(fabric.app, 2, up=True)
    assert seen == [(False, True), (True, True)]


def test_groups_drop_a_lost_spine_and_add_a_returned_spine() -> None:
    fabric = Fabric(spines=2).connect()
    rails = [fabric.switches[RAIL_DPID + g] for g in range(3)]
    spine = fabric.switches[SPINE_DPID]
    fabric.app.on_state(state_change(spine, up=False))
    assert [rail.tables.groups for rail in rails] == [{UPLINK_GROUP: (2002,)}] * 3
    spine.connect(fabric.app)
    assert [rail.tables.groups for rail in rails] == [{UPLINK_GROUP: (2001, 2002)}] * 3


def test_spine_is_used_again_only_with_its_flows_installed() -> None:
    """Not as soon as its ports are known."""
    fabric = Fabric(spines=2).connect()
    spine = fabric.switches[SPINE_DPID]
    fabric.app.on_state(state_change(spine, up=False))
    spine.send_msg(delete_all(spine))
    fabric.app.on_state(state_change(spine, up=True))
    spine.talk(fabric.app, answers_left=2)
    spine.set_port(fabric.app, 3, up=False)
    spine.set_port(fabric.app, 3, up=True)
    assert fabric.switches[RAIL_DPID].tables.groups == {UPLINK_GROUP: (2002,)}
    spine.talk(fabric.app)
    assert fabric.switches[RAIL_DPID].tables.groups == {UPLINK_GROUP: (2001, 2002)}
    fabric.assert_all_reach_all_their_network_joins()


def test_cut_uplink_is_avoided_by_other_rails() -> None:
    fabric = Fabric(spines=2).connect()
    fabric.switches[SPINE_DPID].set_port(fabric.app, 1, up=False)  # rail0's cable to spine0, seen at both ends
    fabric.switches[RAIL_DPID].set_port(fabric.app, 2001, up=False)
    fabric.assert_all_reach_all_their_network_joins()
    fabric.switches[SPINE_DPID].set_port(fabric.app, 1, up=True)
    fabric.switches[RAIL_DPID].set_port(fabric.app, 2001, up=True)
    assert all(fabric.switches[RAIL_DPID + g].tables.groups == {UPLINK_GROUP: (2001, 2002)} for g in range(3))


def test_counters_come_whole_from_an_answer_in_parts() -> None:
    fabric = Fabric("rail-only", domains=5).connect()
    rail = fabric.switches[RAIL_DPID]
    fabric.app.ask_stats()
    rail.talk(fabric.app)
    stats = [arrived for arrived in fabric.arrived if arrived.what == "stats"]
    assert [set(arrived.counters) for arrived in stats] == [{1, 2, 3, 4, 5}]
    assert stats[0].counters[3]["rx_bytes"] == 30
