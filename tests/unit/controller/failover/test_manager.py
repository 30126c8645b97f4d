"""The brain: what is dead follows from what switches say, and the routes follow from what is dead."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.agent.route_agent import Outcome, RouteAgent
from railyard.controller.failover.detours import DETOUR_METRIC, Broken, detours
from railyard.controller.failover.heartbeat_detector import SilentComponents
from railyard.controller.failover.manager import FailoverManager, FailureState
from railyard.controller.openflow.app import SwitchEvent
from railyard.core import plugins
from railyard.topologies.addresses import RAIL_DPID, SINGLE_DPID, SPINE_DPID, UPLINK_PORT, Gpu, network_port
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Route
from tests.emulation.programs import ROOT
from tests.unit.broken_fabrics import plan
from tests.unit.fake_switch import ports_of
from tests.unit.path_choices import CHOICES
from tests.unit.stand_ins import plan_of


class FakeRouter:
    """Keeps each GPU's detours as a kernel would. A crashed GPU refuses, and has forgotten all when it is back."""

    def __init__(self) -> None:
        self.table: dict[tuple[Gpu, str], Route] = {}
        self.calls: list[tuple[Gpu, list[Route], list[Route]]] = []
        self.dead: set[Gpu] = set()
        self.crashed: set[Gpu] = set()
        self.mute: set[Gpu] = set()  # whose kernels don't tell their routes

    def crash(self, gpu: Gpu) -> None:
        self.dead.add(gpu)
        self.crashed.add(gpu)
        self.table = {key: route for key, route in self.table.items() if key[0] != gpu}

    def change(self, gpu: Gpu, remove: list[Route], put: list[Route]) -> int:
        self.calls.append((gpu, remove, put))
        if gpu in self.dead:
            raise OSError(19, "No such device")
        for route in put:
            self.table[gpu, route.key] = route
        for route in remove:
            gone = self.table.pop((gpu, route.key), None)
            assert gone == route or gpu in self.crashed
        return len(remove) + len(put)

    def change_all(self, changes: Mapping[Gpu, tuple[list[Route], list[Route]]]) -> Outcome:
        done, refused = 0, dict[Gpu, OSError]()
        for gpu, both in changes.items():
            try:
                done += self.change(gpu, *both)
            except OSError as error:
                refused[gpu] = error
        return Outcome(done, refused)

    def routes_at(self, gpu: Gpu, metric: int) -> dict[str, Route]:
        assert metric == DETOUR_METRIC
        if gpu in self.mute:
            raise OSError(105, "No buffer space available")
        return {prefix: route for (where, prefix), route in self.table.items() if where == gpu}


class Lab:
    """A brain with its fabric's switches, which say what one does to them."""

    def __init__(self, fabric: Plan, reroute: bool = True) -> None:
        self.plan, self.router = fabric, FakeRouter()
        self.reported: list[tuple[str, dict[str, Any]]] = []
        self.manager = FailoverManager(
            fabric, cast(RouteAgent, self.router), reroute, lambda what, detail: self.reported.append((what, detail))
        )
        self.up = {dpid: set(ports) for dpid, ports in ports_of(fabric).items()}
        self.ports = ports_of(fabric)
        self.connected: set[int] = set()

    def switch(self, dpid: int, up: bool) -> None:
        if up == (dpid in self.connected):
            return
        (self.connected.add if up else self.connected.discard)(dpid)
        if up:
            self.manager.on_event(SwitchEvent("switch-up", dpid, 0, up_ports=frozenset(self.up[dpid])))
        else:
            self.manager.on_event(SwitchEvent("switch-down", dpid, 0))

    def port(self, dpid: int, port: int, up: bool) -> None:
        (self.up[dpid].add if up else self.up[dpid].discard)(port)
        if dpid in self.connected:
            self.manager.on_event(SwitchEvent("port", dpid, 0, port, up))

    def connect(self) -> "Lab":
        for dpid in self.up:
            self.switch(dpid, up=True)
        return self

    def whats(self) -> list[str]:
        return [what for what, _ in self.reported]

    def in_force(self) -> int:
        """Return the number of detours of the last event."""
        return next((int(detail["detours"]) for what, detail in reversed(self.reported) if what == "rerouted"), 0)


def rail_only() -> Plan:
    return plan("rail-only", "dr", 3, 3)


def test_ready_is_reported_once_after_the_last_switch() -> None:
    lab = Lab(rail_only())
    lab.switch(RAIL_DPID, up=True)
    lab.switch(RAIL_DPID + 1, up=True)
    assert lab.reported == []
    lab.switch(RAIL_DPID + 2, up=True)
    assert lab.reported == [("ready", {})]


def test_nothing_is_rerouted_before_the_fabric_was_whole() -> None:
    lab = Lab(rail_only())
    lab.up[RAIL_DPID].discard(2)
    lab.connect()
    lab.switch(RAIL_DPID + 1, up=False)
    lab.port(RAIL_DPID, 1, up=False)
    lab.port(RAIL_DPID, 1, up=True)
    lab.switch(RAIL_DPID + 1, up=True)
    assert lab.reported == []
    lab.manager.on_heartbeats(SilentComponents(rails=frozenset({1})))
    lab.manager.on_heartbeats(SilentComponents())
    assert not lab.router.calls
    assert lab.whats() == ["silent", "resumed"]
    lab.port(RAIL_DPID, 2, up=True)  # the last cable
    assert lab.whats() == ["silent", "resumed", "ready"]
    lab.port(RAIL_DPID, 2, up=False)
    assert lab.router.calls


def test_dead_link_is_reported_decided_and_rerouted_in_order() -> None:
    lab = Lab(rail_only()).connect()
    lab.port(RAIL_DPID + 1, 1, up=False)
    assert lab.whats() == ["ready", "port-down", "decided", "rerouted"]
    assert lab.reported[1][1] == {"switch": "rail1", "port": "d0g1"}
    routes = len(lab.router.table)
    assert lab.reported[2:] == [("decided", {"gpus": 9}), ("rerouted", {"routes": routes, "detours": routes})]
    assert lab.manager.state.broken == Broken(links=frozenset({Gpu(0, 1)}))


def test_reroute_off_changes_nothing_and_still_tells() -> None:
    lab = Lab(rail_only(), reroute=False).connect()
    lab.port(RAIL_DPID + 1, 1, up=False)
    lab.switch(RAIL_DPID, up=False)
    assert lab.whats() == ["ready", "port-down", "switch-down"]
    assert not lab.router.calls


UPLINKS_OF_RAIL_0 = frozenset({(0, 1), (1, 0), (0, 2), (2, 0)})


@pytest.mark.parametrize(
    ("kind", "cut_ports", "broken"),
    [
        ("single-switch", [(SINGLE_DPID, 1 + 256)], Broken(links=frozenset({Gpu(1, 0)}))),
        ("rail-optimized", [(SPINE_DPID, 1)], Broken()),
        ("rail-optimized", [(SPINE_DPID, 1), (SPINE_DPID + 1, 1)], Broken(disconnected_ranks=UPLINKS_OF_RAIL_0)),
        (
            "rail-optimized",
            [(RAIL_DPID, UPLINK_PORT), (RAIL_DPID, UPLINK_PORT + 1)],
            Broken(disconnected_ranks=UPLINKS_OF_RAIL_0),
        ),
        (
            "rail-optimized",
            [(SPINE_DPID, 1), (SPINE_DPID + 1, 2)],
            Broken(disconnected_ranks=frozenset({(0, 1), (1, 0)})),
        ),
    ],
)
def test_ports_without_carrier_break_parts(kind: str, cut_ports: list[tuple[int, int]], broken: Broken) -> None:
    spines = {"spines": 2} if kind == "rail-optimized" else {}
    lab = Lab(plan(kind, "spine", 2, 3, **spines)).connect()
    for dpid, port in cut_ports:
        lab.port(dpid, port, up=False)
    assert lab.manager.state.broken == broken


def test_disconnected_switch_is_dead_and_may_return_in_part() -> None:
    lab = Lab(plan("single-switch", "spine", 2, 2)).connect()
    lab.switch(SINGLE_DPID, up=False)
    assert lab.manager.state.broken == Broken(rails=frozenset({0}))
    lab.up[SINGLE_DPID].discard(1 + 256)
    lab.switch(SINGLE_DPID, up=True)
    assert lab.manager.state.broken == Broken(links=frozenset({Gpu(1, 0)}))


def test_crashed_gpu_has_no_detours_and_stops_no_other() -> None:
    lab = Lab(rail_only()).connect()
    crashed = Gpu(0, 1)
    lab.port(RAIL_DPID, 3, up=False)  # so that it has detours to lose
    lab.router.crash(crashed)
    lab.port(RAIL_DPID + 1, 1, up=False)
    assert {gpu for gpu, _ in lab.router.table} == set(lab.plan.gpus) - {crashed}
    assert [detail["gpu"] for event, detail in lab.reported if event == "refused"] == ["d0g1"]
    assert lab.in_force() == len(lab.router.table) < len(flat(lab))
    lab.port(RAIL_DPID, 3, up=True)
    lab.router.dead.clear()
    lab.port(RAIL_DPID + 1, 1, up=True)
    assert lab.in_force() == 0 == len(lab.router.table)


def test_state_unknown_to_the_kernel_stays_unchanged() -> None:
    lab = Lab(rail_only()).connect()
    gpu = Gpu(1, 0)
    lab.router.dead = lab.router.mute = {gpu}
    lab.port(RAIL_DPID + 1, 1, up=False)
    assert lab.in_force() == len(lab.router.table)
    lab.router.dead, lab.router.mute = set(), set()
    lab.port(RAIL_DPID + 1, 1, up=False)
    assert lab.router.table == flat(lab)
    lab.router.dead = lab.router.mute = {gpu}
    lab.port(RAIL_DPID + 1, 1, up=True)
    assert lab.in_force() == len(lab.router.table) > 0


@given(choice=st.sampled_from(CHOICES), data=st.data())
def test_routes_in_force_are_read_where_a_change_is_refused(choice: tuple[Any, Any], data: st.DataObject) -> None:
    lab = Lab(plan(*choice, 2, 3)).connect()
    ports = [(dpid, port) for dpid, known in lab.ports.items() for port in known]
    for _ in range(data.draw(st.integers(1, 6))):
        lab.router.dead = data.draw(st.sets(st.sampled_from(lab.plan.gpus)))
        lab.port(*data.draw(st.sampled_from(ports)), up=data.draw(st.booleans()))
        assert lab.in_force() == len(lab.router.table)
    lab.router.dead.clear()
    for dpid, port in ports:
        lab.port(dpid, port, up=True)
    assert lab.in_force() == 0 == len(lab.router.table)


def test_returned_gpu_gets_its_detours_again_during_other_faults() -> None:
    """Those too that its own fault never changed: they went with its interfaces."""
    lab = Lab(plan("rail-only", "rd", 3, 3)).connect()
    lab.port(RAIL_DPID + 1, 2, up=False)
    kept = {key: route for key, route in lab.router.table.items() if key[0] == Gpu(0, 1)}
    assert {hop.device for route in kept.values() for hop in route.hops} == {"hb0"}
    lab.router.crash(Gpu(0, 1))
    lab.port(RAIL_DPID + 1, 1, up=False)
    lab.router.dead.clear()
    lab.port(RAIL_DPID + 1, 1, up=True)
    assert lab.router.table == flat(lab)
    assert kept.items() <= lab.router.table.items()


def test_reports_of_other_switches_are_ignored() -> None:
    lab = Lab(rail_only()).connect()
    lab.manager.on_event(SwitchEvent("switch-down", 0x1099, 0))
    lab.manager.on_event(SwitchEvent("port", RAIL_DPID, 0, 99, False))
    assert lab.whats() == ["ready"]
    assert not lab.manager.state.broken


def flat(lab: Lab) -> dict[tuple[Gpu, str], Route]:
    """The detours that what is dead calls for."""
    wanted = detours(lab.plan, lab.manager.state.broken)
    return {(gpu, prefix): route for gpu, routes in wanted.items() for prefix, route in routes.items()}


@given(choice=st.sampled_from(CHOICES), data=st.data())
def test_any_fault_series_gives_its_detours_and_repair_none(choice: tuple[Any, Any], data: st.DataObject) -> None:
    lab = Lab(plan(*choice, 2, 3)).connect()
    ports = [(dpid, port) for dpid, known in lab.ports.items() for port in known]
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            lab.port(*data.draw(st.sampled_from(ports)), up=data.draw(st.booleans()))
        else:
            lab.switch(data.draw(st.sampled_from(sorted(lab.ports))), up=data.draw(st.booleans()))
        assert lab.router.table == flat(lab)
    for dpid, port in ports:
        lab.port(dpid, port, up=True)
    lab.connect()
    assert not lab.manager.state.broken
    assert lab.router.table == {}


def test_silent_components_are_rerouted_and_named() -> None:
    lab = Lab(rail_only()).connect()
    gpu = Gpu(0, 1)
    lab.manager.on_heartbeats(
        SilentComponents(links=frozenset({gpu}), gpus=frozenset({gpu}), hb_links=frozenset({gpu}))
    )
    silent = [{"gpu": "d0g1"}, {"hb-link": "d0g1"}, {"link": "d0g1"}]
    assert lab.reported[1:4] == [("silent", detail) for detail in silent]
    assert lab.whats()[4:] == ["decided", "rerouted"]
    assert lab.manager.state.broken == Broken(links=frozenset({gpu}), hb=frozenset({gpu}))
    assert lab.router.table == flat(lab)
    lab.port(RAIL_DPID + 1, 1, up=False)
    lab.manager.on_heartbeats(SilentComponents())
    assert lab.whats()[6:] == ["port-down", *["resumed"] * 3, "decided", "rerouted"]
    assert lab.manager.state.broken == Broken(links=frozenset({gpu}))  # its port is down all the same
    lab.port(RAIL_DPID + 1, 1, up=True)
    assert lab.router.table == {}


def test_link_of_a_silent_rail_is_not_reported_as_recovered() -> None:
    lab = Lab(rail_only()).connect()
    lab.manager.on_heartbeats(SilentComponents(links=frozenset({Gpu(0, 1)})))
    lab.manager.on_heartbeats(SilentComponents(rails=frozenset({1})))
    assert lab.reported[-3] == ("silent", {"rail": "rail1"})
    assert "resumed" not in lab.whats()
    assert lab.manager.state.broken == Broken(rails=frozenset({1}))
    lab.manager.on_heartbeats(SilentComponents())
    assert lab.router.table == {}


GONE = Gpu(0, 1)


@pytest.mark.parametrize(
    ("kind", "before", "silent"),
    [
        (
            "rail-only",
            SilentComponents(links=frozenset({Gpu(1, 0)})),
            SilentComponents(links=frozenset({Gpu(1, 0), GONE}), gpus=frozenset({GONE})),
        ),
        (
            "dual-plane",
            SilentComponents(planes=frozenset({(Gpu(1, 0), 1), (Gpu(1, 1), 1)})),
            SilentComponents(planes=frozenset({(Gpu(1, 0), 1), (Gpu(1, 1), 1), (GONE, 1)})),
        ),
    ],
)
def test_recovered_gpu_gets_all_its_detours_again(
    kind: str, before: SilentComponents, silent: SilentComponents
) -> None:
    lab = Lab(plan(kind, "dr", 3, 3)).connect()
    lab.manager.on_heartbeats(before)
    lab.router.crash(GONE)
    lab.manager.on_heartbeats(silent)
    lab.router.dead.discard(GONE)
    lab.manager.on_heartbeats(before)
    assert any(gpu == GONE for gpu, _ in lab.router.table)
    assert lab.router.table == flat(lab)


def test_silent_hb_ports_and_domains_are_broken() -> None:
    lab = Lab(rail_only()).connect()
    lab.manager.on_heartbeats(SilentComponents(hb_links=frozenset({Gpu(0, 1)}), hb_domains=frozenset({2})))
    assert lab.manager.state.broken == Broken(hb=frozenset({Gpu(0, 1), Gpu(2, 0), Gpu(2, 1), Gpu(2, 2)}))
    assert lab.router.table == flat(lab)
    to = {(src.name, route.prefix) for (src, _), route in lab.router.table.items()}
    assert ("d0g1", "198.18.0.1/32") in to  # its HB port is dead, so rd to d1g0
    assert ("d0g0", "198.18.2.1/32") in to  # to d1g1, no longer through d0g1
    lab.manager.on_heartbeats(SilentComponents())
    assert lab.router.table == {}


@pytest.mark.parametrize("connects_first", [True, False])
def test_rail_switch_is_used_once_connected_and_received(connects_first: bool) -> None:
    """It gets its flows a moment after its connection, and heartbeats prove that it forwards."""
    lab = Lab(rail_only()).connect()
    lab.switch(RAIL_DPID + 1, up=False)
    lab.manager.on_heartbeats(SilentComponents(rails=frozenset({1})))
    turned = dict(lab.router.table)
    if connects_first:
        lab.switch(RAIL_DPID + 1, up=True)
    else:
        lab.manager.on_heartbeats(SilentComponents())
    assert lab.router.table == turned
    assert lab.manager.state.broken == Broken(rails=frozenset({1}))
    lab.switch(RAIL_DPID + 1, up=True)
    lab.manager.on_heartbeats(SilentComponents())
    assert lab.router.table == {}


def test_moved_fibres_count_once_they_are_back_or_late() -> None:
    lab = Lab(plan("rail-only", "dr", 3, 3, optical={"layers": ["rail", "hb"]})).connect()
    state = lab.manager.state
    hb_optical = lab.plan.optical_switch("hb", GONE)
    assert hb_optical is not None
    rail_end = (RAIL_DPID + GONE.rank, GONE.domain + 1)
    hb_end = (hb_optical.dpid, network_port(GONE))
    state.expect_reconnect({GONE: True})
    lab.port(*rail_end, up=False)
    lab.port(*hb_end, up=False)
    lab.port(*rail_end, up=True)
    assert set(state.reconnects) == {GONE}
    lab.port(*hb_end, up=True)
    assert not state.reconnects
    number = state.expect_reconnect({GONE: False})
    lab.port(*hb_end, up=False)
    assert not state.effective.hb
    assert not lab.router.calls
    lab.manager.on_timeout(number)
    assert state.effective.hb == {GONE}
    assert lab.router.table == flat(lab) != {}


@pytest.mark.parametrize("end", ["a", "b"])
def test_cut_cable_of_a_graph_counts_at_either_end(end: str) -> None:
    plugins.load(ROOT / "docs/examples/leaf_spine.py")
    fabric = plan_of("leaf-spine", 3, 2)
    state = FailureState(fabric)
    cut = set[frozenset[str]]()
    for link in fabric.uplinks:
        if "leaf0" in (link.a.node, link.b.node):
            place = link.a if end == "a" else link.b
            state.down.add((fabric.dpids[place.node], place.port or 0))
            cut.add(frozenset((link.a.node, link.b.node)))
    state.connected.update(state.roles)
    islands = fabric.graph.islands(frozenset(), cut)
    assert len(islands) == 2
    assert state.broken == Broken(islands=islands)
