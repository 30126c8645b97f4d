"""An optical switch under the OpenFlow app: light goes through it, fibres move in the dark, and it outlives the app."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from railyard.controller.openflow import optical
from railyard.controller.openflow.app import RailyardApp, SwitchEvent
from railyard.controller.openflow.codec import ofp, parser
from railyard.controller.openflow.flows import Flow, Tables
from railyard.controller.openflow.optical import cross_connect_flows, cross_connects
from railyard.topologies.addresses import NETWORK_PORT_OFFSET, OPTICAL_DPID
from tests.unit.fake_switch import FakeSwitch

DOWN = ofp.OFPPC_PORT_DOWN
FIBRES = (1, 2, 3)
PORTS = tuple(port for fibre in FIBRES for port in (fibre, fibre + NETWORK_PORT_OFFSET))
DARK_S = 0.01


def place(fibre: int) -> int:
    return fibre + NETWORK_PORT_OFFSET


class Optical(FakeSwitch):
    """Tells of its ports when `tell` is called. `far`: whether the far end of each port's cable is on."""

    def __init__(self, dpid: int = OPTICAL_DPID) -> None:
        super().__init__(dpid, dict.fromkeys(PORTS, True))
        self.far = dict.fromkeys(PORTS, True)
        self._told: dict[int, tuple[int, int]] = {}

    def send_msg(self, message: Any) -> None:
        super().send_msg(message)
        if isinstance(message, parser.OFPPortMod) and message.port_no in self._told:
            # OpenFlow below 1.5: the requester gets no event of it, but one of the lost carrier
            self._told[message.port_no] = (self.configs[message.port_no], self._told[message.port_no][1])

    @property
    def dark(self) -> set[int]:
        """Return the ports that are switched off."""
        return {port for port in PORTS if self.configs.get(port, 0) & DOWN}

    def connect(self, app: RailyardApp) -> None:
        super().connect(app)
        self.tell(app)

    def tell(self, app: RailyardApp) -> None:
        """Of every port that is no longer as it was, until none is."""
        for _ in range(8):
            news = [p for p in PORTS if self._look(p) != self._told.get(p)]
            for port in news:
                self._told[port] = self._look(port)
                self.set_port(app, port, up=not self._look(port)[1])
            if not news:
                return
        raise AssertionError(f"ports {news} still change")

    def crossed(self) -> dict[int, int]:
        """Return which fibre leads to which place, by its flows."""
        both = {(flow.in_port or 0): (flow.port or 0) for flow in self.tables.flows}
        assert all(both[out] == into for into, out in both.items())
        return {into: out for into, out in both.items() if into < NETWORK_PORT_OFFSET}

    def _look(self, port: int) -> tuple[int, int]:
        desc = self._describe_port(port, True)
        return desc.config, desc.state

    def _describe_port(self, number: int, up: bool) -> Any:
        lit = number not in PORTS or (self.far[number] and not self.configs.get(number, 0) & DOWN)
        return super()._describe_port(number, lit)


class Lab:
    """An optical switch, its app, and what the app wants to do later."""

    def __init__(self) -> None:
        self.switch = Optical()
        self.restart()

    def restart(self) -> None:
        """A new app, which the switch connects to."""
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.app = RailyardApp()
        self.app.optics.schedule = lambda seconds, action: self.later.append((seconds, action))  # type: ignore[method-assign]
        self.switch.received.clear()
        self.switch.connect(self.app)

    def let(self, port: int, on: bool) -> None:
        self.switch.far[port] = on
        self.switch.tell(self.app)

    def pass_time(self) -> None:
        todo, self.later = self.later, []
        for _, what in sorted(todo, key=lambda entry: entry[0]):
            what()
        self.switch.talk(self.app)
        self.switch.tell(self.app)

    def crossed(self) -> dict[int, int]:
        return self.switch.crossed()


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_fresh_switch_crosses_straight_through_and_all_is_lit(lab: Lab) -> None:
    assert lab.crossed() == {fibre: place(fibre) for fibre in FIBRES}
    assert lab.switch.tables == Tables(cross_connect_flows(cross_connects(PORTS, {})))
    assert lab.switch.dark == set()


@pytest.mark.parametrize("port", [2, place(2)])
def test_lost_carrier_disables_the_other_side_until_return(lab: Lab, port: int) -> None:
    other = place(2) if port == 2 else 2
    lab.let(port, on=False)
    assert lab.switch.dark == {other}
    lab.let(port, on=True)
    assert lab.switch.dark == set()


def test_a_port_that_others_switched_off_stays_off(lab: Lab) -> None:
    lab.switch.configs[2] = DOWN  # a fault: without our mark
    lab.switch.tell(lab.app)
    assert lab.switch.dark == {2, place(2)}
    lab.switch.configs[2] = 0
    lab.switch.tell(lab.app)
    assert lab.switch.dark == set()


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_spares_fibre_is_moved_in_the_dark(lab: Lab, reconnects: bool) -> None:
    done: list[str] = []
    lab.let(2, on=False)  # a GPU fails
    lab.app.optics.cross_connect({OPTICAL_DPID: {3: place(2)}}, DARK_S, lambda: done.append("light"))
    lab.switch.tell(lab.app)
    if reconnects:
        lab.switch.connect(lab.app)
    assert lab.switch.dark == {2, 3, place(2), place(3)}
    assert lab.crossed() == {1: place(1), 3: place(2)}  # the cross-connect is there; only the carrier is late
    assert done == []
    assert DARK_S in [seconds for seconds, _ in lab.later]
    lab.pass_time()
    assert done == ["light"]
    assert lab.crossed() == {1: place(1), 3: place(2)}
    assert lab.switch.dark == {2, place(3)}
    lab.let(2, on=True)  # repaired, it has no place any more
    assert lab.switch.dark == {2, place(3)}
    lab.let(3, on=False)
    assert lab.switch.dark == {2, place(3), place(2)}


def test_spare_without_carrier_disables_its_network_side(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.let(3, on=False)
    lab.app.optics.cross_connect({OPTICAL_DPID: {3: place(2)}}, DARK_S, lambda: None)
    lab.switch.tell(lab.app)
    lab.pass_time()
    assert place(2) not in lab.switch.dark  # its carrier may only be late
    monkeypatch.setattr("railyard.controller.openflow.optical.SETTLE_S", 0.0)
    lab.pass_time()
    assert place(2) in lab.switch.dark


def test_unreported_carrier_is_found_by_the_poll(lab: Lab) -> None:
    arrived: list[SwitchEvent] = []
    lab.let(place(2), on=False)
    lab.app.listener = arrived.append
    lab.switch.far[place(2)] = True  # and it doesn't say so
    lab.switch.send_msg(parser.OFPPortDescStatsRequest(lab.switch, 0))
    lab.switch.talk(lab.app)
    assert [(h.what, h.dpid, h.port, h.up) for h in arrived] == [("port", OPTICAL_DPID, place(2), True)]


@pytest.mark.parametrize("is_done", [True, False])
def test_new_controller_adopts_moved_fibres_and_link_states(lab: Lab, is_done: bool) -> None:
    lab.app.optics.cross_connect({OPTICAL_DPID: {3: place(2)}}, DARK_S, lambda: None)
    if is_done:
        lab.pass_time()
        lab.let(1, on=False)
    crossed = lab.crossed()
    lab.restart()
    changed = [m for m in lab.switch.received if isinstance(m, (parser.OFPFlowMod, parser.OFPPortMod))]
    assert lab.crossed() == crossed == {1: place(1), 3: place(2)}
    assert bool(changed) != is_done
    lab.let(1, on=True)
    assert lab.switch.dark == {2, place(3)}


def test_two_reconfigurations_at_once_each_have_their_time(lab: Lab) -> None:
    lab.app.optics.cross_connect({OPTICAL_DPID: {3: place(2)}}, DARK_S, lambda: None)
    lab.app.optics.cross_connect({OPTICAL_DPID: {1: place(2)}}, DARK_S, lambda: None)
    first, second = (what for _, what in lab.later if _ == DARK_S)
    first()
    lab.switch.tell(lab.app)
    assert {1, place(2)} <= lab.switch.dark
    second()
    lab.switch.tell(lab.app)
    assert lab.crossed() == cross_connects(PORTS, {1: place(2)}) == {1: place(2), 3: place(3)}
    assert lab.switch.dark == {2, place(1)}


def test_affected_ports_are_reported_before_a_move(lab: Lab) -> None:
    lab.app.optics.cross_connect({OPTICAL_DPID: {3: place(1)}}, DARK_S, lambda: None)
    lab.pass_time()
    dark, reported = lab.switch.dark, list[Any]()
    assert dark == {1, place(3)}
    move = {OPTICAL_DPID: {3: place(2)}}
    lab.app.optics.cross_connect(
        move, DARK_S, lambda: None, lambda affected_ports: reported.append((affected_ports, lab.switch.dark))
    )
    back = {1: True, place(1): True}  # no GPU takes its place any more
    assert reported == [({OPTICAL_DPID: {2: False, 3: True, place(2): True, **back}}, dark)]


def test_two_switches_move_fibres_at_the_same_time(lab: Lab) -> None:
    other, done = Optical(OPTICAL_DPID + 1), list[str]()
    other.connect(lab.app)
    lab.app.optics.cross_connect(
        {OPTICAL_DPID: {3: place(2)}, OPTICAL_DPID + 1: {1: place(3)}}, DARK_S, lambda: done.append("light")
    )
    other.tell(lab.app)
    lab.switch.tell(lab.app)
    assert (lab.switch.dark, other.dark) == ({2, 3, place(2), place(3)}, {1, 3, place(1), place(3)})
    lab.pass_time()
    other.talk(lab.app)
    other.tell(lab.app)
    assert done == ["light"]
    assert (lab.switch.dark, other.dark) == ({2, place(3)}, {3, place(1)})
    assert (lab.crossed(), other.crossed()) == ({1: place(1), 3: place(2)}, {1: place(3), 2: place(2)})


@pytest.mark.parametrize(
    ("is_connected", "moves", "problem"),
    [(True, {1: place(2), 3: place(2)}, "one place"), (False, {3: place(2)}, "not connected")],
)
def test_error_at_one_switch_moves_nothing_at_another(
    lab: Lab, is_connected: bool, moves: dict[int, int], problem: str
) -> None:
    other = Optical(OPTICAL_DPID + 1)
    if is_connected:
        other.connect(lab.app)
    with pytest.raises(ValueError, match=problem):
        lab.app.optics.cross_connect({OPTICAL_DPID: {3: place(2)}, OPTICAL_DPID + 1: moves}, DARK_S, lambda: None)
    assert (lab.switch.dark, other.dark) == (set(), set())
    assert lab.crossed() == cross_connects(PORTS, {})


def test_only_changes_of_ports_and_fibres_compute_flows(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[object] = []

    def counted(connected: Mapping[int, int]) -> frozenset[Flow]:
        computed.append(connected)
        return cross_connect_flows(connected)

    monkeypatch.setattr(optical, "cross_connect_flows", counted)
    lab.let(2, on=False)
    assert (lab.switch.dark, computed) == ({place(2)}, [])
    lab.let(2, on=True)
    assert (lab.switch.dark, computed) == (set(), [])
    lab.switch.set_port(lab.app, 4, up=True)
    lab.switch.set_port(lab.app, place(4), up=True)
    assert lab.crossed()[4] == place(4)
    lab.app.optics.cross_connect({OPTICAL_DPID: {3: place(2)}}, DARK_S, lambda: None)
    assert lab.crossed()[3] == place(2)
    assert len(computed) == 3
