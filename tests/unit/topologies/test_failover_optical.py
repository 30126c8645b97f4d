"""Events of optical switches: the failover manager takes ports without a carrier as dead, whichever fibre leads."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from railyard.controller.agent.route_agent import Outcome, RouteAgent
from railyard.controller.failover.detours import Broken
from railyard.controller.failover.manager import FailoverManager
from railyard.controller.openflow.app import SwitchEvent
from railyard.failure.faults import Fault
from railyard.topologies.addresses import OPTICAL_DPID, RAIL_DPID, Gpu, gpu_port, network_port, port_of
from railyard.topologies.fabric_kinds import LAYERS, Layer
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.routing import Route
from railyard.topologies.spec import parse_fabric
from tests.unit.fake_switch import ports_of

GPU = Gpu(0, 1)
OCS0, OCS1 = OPTICAL_DPID, OPTICAL_DPID + 1
Reported = list[tuple[str, dict[str, Any]]]


class Router:
    """Takes every change."""

    def change_all(self, changes: Mapping[Gpu, tuple[list[Route], list[Route]]]) -> Outcome:
        return Outcome(sum(len(remove) + len(put) for remove, put in changes.values()), {})

    def routes_at(self, gpu: Gpu, metric: int) -> dict[str, Route]:
        return {}


def plan_with(layers: tuple[Layer, ...]) -> Plan:
    spec = {"kind": "rail-only", "domains": 3, "rails": 3, "optical": {"layers": list(layers)}}
    return make_plan(parse_fabric(spec), 10**8)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_with(LAYERS)


def whole(plan: Plan) -> tuple[FailoverManager, Reported]:
    reported: Reported = []
    router = cast(RouteAgent, Router())
    manager = FailoverManager(plan, router, True, lambda what, detail: reported.append((what, detail)))
    for dpid, ports in ports_of(plan).items():
        manager.on_event(SwitchEvent("switch-up", dpid, 0, up_ports=frozenset(ports)))
    assert [what for what, _ in reported] == ["ready"]
    reported.clear()
    return manager, reported


def port(dpid: int, number: int, up: bool) -> SwitchEvent:
    return SwitchEvent("port", dpid, 0, number, up)


def test_disabled_network_side_at_a_bridge_is_a_dead_hb_port(plan: Plan) -> None:
    manager, reported = whole(plan)
    manager.on_event(port(OCS1, gpu_port(GPU), up=False))
    assert reported == [("port-down", {"switch": "ocs1", "port": "d0g1"})]
    manager.on_event(port(OCS1, network_port(GPU), up=False))
    assert manager.state.broken == Broken(hb=frozenset({GPU}))
    assert [what for what, _ in reported] == ["port-down", "decided", "rerouted"]
    manager.on_event(port(OCS1, network_port(GPU), up=True))  # another's fibre leads there now; the first stays dark
    assert not manager.state.broken


def test_a_rail_is_up_again_when_its_own_switch_says_so(plan: Plan) -> None:
    manager, _ = whole(plan)
    for dpid, number in ((OCS0, gpu_port(GPU)), (OCS0, network_port(GPU))):
        manager.on_event(port(dpid, number, up=False))
    assert not manager.state.broken
    manager.on_event(port(RAIL_DPID + 1, port_of("rail", GPU), up=False))
    assert manager.state.broken == Broken(links=frozenset({GPU}))
    manager.on_event(port(RAIL_DPID + 1, port_of("rail", GPU), up=True))
    assert not manager.state.broken


@pytest.mark.parametrize("dpid", [OCS0, OCS1])
def test_optical_switch_keeps_its_state_without_controller(plan: Plan, dpid: int) -> None:
    manager, _ = whole(plan)
    manager.on_event(SwitchEvent("switch-down", dpid, 0))
    assert not manager.state.broken


@pytest.mark.parametrize(
    ("kind", "by"),
    [("link-down", {"ocs0", "rail1"}), ("hb-port-down", {"ocs1"}), ("gpu-crash", {"ocs0", "ocs1", "rail1"})],
)
def test_lost_fibre_is_a_fault_of_its_own_layer(plan: Plan, kind: str, by: set[str]) -> None:
    fault, switches = Fault(kind, GPU.name), ("ocs0", "ocs1", "rail1")
    assert {s for s in switches if fault.is_signal(plan, "port-down", {"switch": s, "port": GPU.name})} == by


class TestAnOpticalSwitchForEachDomain:
    """`ocs1` has the rail cables of domain 1, and no HB domain's."""

    OF_DOMAIN_1 = Gpu(1, 1)

    def test_a_dark_place_of_its_is_no_dead_hb_port(self) -> None:
        manager, reported = whole(plan_with(("rail",)))
        manager.on_event(port(OCS1, network_port(self.OF_DOMAIN_1), up=False))
        assert (reported, manager.state.broken) == ([], Broken())
        manager.on_event(port(OCS1, gpu_port(self.OF_DOMAIN_1), up=False))
        assert reported == [("port-down", {"switch": "ocs1", "port": "d1g1"})]
        assert not manager.state.broken

    @pytest.mark.parametrize(
        ("kind", "by"), [("link-down", {"ocs1", "rail1"}), ("hb-port-down", set()), ("gpu-crash", {"ocs1", "rail1"})]
    )
    def test_a_lost_fibre_of_its_is_a_rails(self, kind: str, by: set[str]) -> None:
        fault, detail = Fault(kind, self.OF_DOMAIN_1.name), {"port": self.OF_DOMAIN_1.name}
        plan = plan_with(("rail",))
        assert {s for s in ("ocs1", "rail1") if fault.is_signal(plan, "port-down", {"switch": s, **detail})} == by


class TestLightIsAwaited:
    """d0g1's place gets another fibre, d0g2's, whose own place is left."""

    SPARE = Gpu(0, 2)

    def test_nothing_is_rerouted_for_light_that_is_soon_back(self, plan: Plan) -> None:
        manager, reported = whole(plan)
        number = manager.state.expect_reconnect({GPU: True, self.SPARE: False})
        for gpu in (GPU, self.SPARE):
            manager.on_event(port(RAIL_DPID + gpu.rank, port_of("rail", gpu), up=False))
        manager.on_event(port(RAIL_DPID + GPU.rank, port_of("rail", GPU), up=True))
        assert [what for what, _ in reported] == ["port-down", "port-down", "port-up"]
        manager.on_timeout(number)
        assert [what for what, _ in reported[3:]] == ["decided", "rerouted"]  # the place that was left is dark
        assert reported[-1][1]["detours"] > 0
        assert manager.state.broken == Broken(links=frozenset({self.SPARE}))

    def test_what_stays_dark_counts_when_the_time_is_over(self, plan: Plan) -> None:
        manager, reported = whole(plan)
        number = manager.state.expect_reconnect({GPU: True, self.SPARE: False})
        for gpu in (GPU, self.SPARE):
            manager.on_event(port(RAIL_DPID + gpu.rank, port_of("rail", gpu), up=False))
        reported.clear()
        manager.on_timeout(number)
        assert [what for what, _ in reported] == ["decided", "rerouted"]

    def test_who_is_back_counts_again_at_once(self, plan: Plan) -> None:
        manager, reported = whole(plan)
        manager.state.expect_reconnect({GPU: True})
        for up in (False, True):
            manager.on_event(port(RAIL_DPID + GPU.rank, port_of("rail", GPU), up=up))
        reported.clear()
        manager.on_event(port(RAIL_DPID + GPU.rank, port_of("rail", GPU), up=False))
        assert [what for what, _ in reported] == ["port-down", "decided", "rerouted"]

    def test_what_was_dead_before_stays_gone_round_until_it_is_back(self, plan: Plan) -> None:
        manager, reported = whole(plan)
        manager.on_event(port(RAIL_DPID + GPU.rank, port_of("rail", GPU), up=False))
        reported.clear()
        manager.state.expect_reconnect({GPU: True})
        manager.on_event(port(RAIL_DPID, port_of("rail", Gpu(1, 0)), up=False))  # another's fault is acted on meanwhile
        assert [what for what, _ in reported] == ["port-down", "decided", "rerouted"]
        manager.on_event(port(RAIL_DPID, port_of("rail", Gpu(1, 0)), up=True))
        reported.clear()
        manager.on_event(port(RAIL_DPID + GPU.rank, port_of("rail", GPU), up=True))
        assert [what for what, _ in reported] == ["port-up", "decided", "rerouted"]
        assert reported[-1][1]["detours"] == 0

    def test_an_hb_port_too(self, plan: Plan) -> None:
        manager, reported = whole(plan)
        number = manager.state.expect_reconnect({GPU: True})
        manager.on_event(port(OCS1, network_port(GPU), up=False))
        assert [what for what, _ in reported] == []
        manager.on_timeout(number)
        assert [what for what, _ in reported] == ["decided", "rerouted"]

    @pytest.mark.parametrize("hb_first", [False, True])
    def test_replacement_waits_for_both_optical_layers(self, plan: Plan, hb_first: bool) -> None:
        manager, reported = whole(plan)
        ports = [(RAIL_DPID + GPU.rank, port_of("rail", GPU)), (OCS1, network_port(GPU))]
        manager.state.expect_reconnect({GPU: True})
        for each in ports:
            manager.on_event(port(*each, up=False))
        first, second = ports[::-1] if hb_first else ports
        manager.on_event(port(*first, up=True))
        manager.on_event(port(*first, up=False))  # still awaited
        manager.on_event(port(*first, up=True))
        manager.on_event(port(*second, up=True))
        assert "decided" not in [what for what, _ in reported]
        manager.on_event(port(*first, up=False))  # a fault of its own
        assert [what for what, _ in reported if what in ("decided", "rerouted")] == ["decided", "rerouted"]

    def test_a_move_of_hb_cables_alone_ends_when_they_are_lit(self, plan: Plan) -> None:
        manager, reported = whole(plan)
        manager.state.expect_reconnect({GPU: True})
        for up in (False, True):
            manager.on_event(port(OCS1, network_port(GPU), up=up))
        assert reported == []
        manager.on_event(port(OCS1, network_port(GPU), up=False))  # a fault of its own
        assert [what for what, _ in reported] == ["decided", "rerouted"]

    def test_older_moves_time_does_not_end_a_newer_wait(self, plan: Plan) -> None:
        manager, reported = whole(plan)
        older = manager.state.expect_reconnect({GPU: True, self.SPARE: False})
        newer = manager.state.expect_reconnect({GPU: True})
        manager.on_event(port(RAIL_DPID + GPU.rank, port_of("rail", GPU), up=False))
        manager.on_timeout(older)
        assert [what for what, _ in reported] == ["port-down"]
        manager.on_timeout(newer)
        assert [what for what, _ in reported] == ["port-down", "decided", "rerouted"]
