"""The OpenFlow 1.3 app: gives every switch its flows, keeps them right, and says what it hears.

Runs under Railyard's own server (server.py) and under `ryu-manager controller/openflow/app.py` alike. Under the latter
nobody listens to what it hears, and the flows are all there is.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from railyard.controller.openflow import codec
from railyard.controller.openflow.codec import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    MAIN_DISPATCHER,
    RyuApp,
    ofp_event,
    ofproto_v1_3,
    set_ev_cls,
)
from railyard.controller.openflow.codec import ofproto_v1_3_parser as parser
from railyard.controller.openflow.cross_connects import after_moves
from railyard.controller.openflow.flows import Flow, Ports, Tables, reconcile, tables_of
from railyard.controller.openflow.optical_switch import OpticalSwitch
from railyard.topologies.addresses import role_of

What = Literal["switch-up", "switch-down", "port", "stats"]
AffectedPorts = Mapping[int, Mapping[int, bool]]
"""By a move of fibres: the ports that go dark, by datapath id, and whether each is lit again."""


@dataclass(frozen=True, slots=True)
class SwitchEvent:
    """Something a switch said (or, for switch-down, stopped saying), with the monotonic clock in ns.

    `port`, `up` go with port; `up_ports`, all that are up then, with switch-up; `counters` by port with stats.
    """

    what: What
    dpid: int
    monotonic_ns: int
    port: int = 0
    up: bool = True
    up_ports: frozenset[int] = frozenset()
    counters: dict[int, dict[str, int]] = field(default_factory=dict)


@dataclass
class _Switch:
    """What we know of a connected switch. `ports`: number -> is it up. `optical`: an optical one's."""

    datapath: Any
    ports: dict[int, bool] = field(default_factory=dict)
    parts: defaultdict[type, list[Any]] = field(default_factory=lambda: defaultdict(list))  # of answers still arriving
    flows: frozenset[Flow] = frozenset()  # what it had when it connected
    tables: Tables | None = None  # what it was last asked to have; None until its answers are in
    ready: bool = False
    optical: OpticalSwitch | None = None

    def gather(self, message: Any) -> list[Any] | None:
        """All of an answer once its last part is there (a part holds 64 KB: some 600 flows), None before."""
        received = self.parts[type(message)]
        received.extend(message.body)
        if message.flags & ofproto_v1_3.OFPMPF_REPLY_MORE:
            return None
        return self.parts.pop(type(message))


class RailyardApp(RyuApp):  # type: ignore[misc]
    """See the module. `listener` is called with each `SwitchEvent`, from the app's own thread."""

    OFP_VERSIONS: Final = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.listener: Callable[[SwitchEvent], None] = lambda event: None
        self._switches: dict[int, _Switch] = {}
        self._lost_spines: set[int] = set()
        self._reconfigurations: defaultdict[int, Counter[int]] = defaultdict(
            Counter
        )  # of optical switches: outlives connections
        self._lock = threading.RLock()  # fibres are moved by other threads than switches are heard in

    def ask_stats(self) -> None:
        """Ask every switch for its port counters; each answer is heard as `stats`."""
        for switch in list(self._switches.values()):
            request = parser.OFPPortStatsRequest(switch.datapath, 0, ofproto_v1_3.OFPP_ANY)
            switch.datapath.send_msg(request)

    def cross_connect(
        self,
        moves: Mapping[int, Mapping[int, int]],
        outage_s: float,
        on_done: Callable[[], None],
        on_start: Callable[[AffectedPorts], None] = lambda affected_ports: None,
    ) -> None:
        """Move fibres of optical switches, {datapath id: {fibre: place}} in port numbers. All that this concerns is
        dark for `outage_s`, at the same time.

        The new crossings are there from the start, so that whoever connects to the switch next finds them; only light
        is late. `on_start` is called before anything is dark, with all that this concerns; `on_done`, from another
        thread, when it is lit again; a switch that is away then is lit when it connects. ValueError, and nothing is
        moved anywhere, if one isn't connected now, or for two fibres to one place.
        """
        with self._lock:
            switches = [self._switches.get(dpid) for dpid in moves]
            connected = [(switch, switch.optical) for switch in switches if switch and switch.optical and switch.tables]
            if len(connected) < len(switches):
                raise ValueError("an optical switch is not connected")
            moved = [after_moves(optical.moved, moves[switch.datapath.id]) for switch, optical in connected]
            pairs = list(zip(connected, moved, strict=True))
            on_start({switch.datapath.id: optical.affected_ports(after) for (switch, optical), after in pairs})
            affected = {s.datapath.id: optical.begin_moves(after) for (s, optical), after in pairs}
            for switch, _ in connected:
                self._sync_tables(switch)

        def finish() -> None:
            for dpid, ports in affected.items():
                self._reconfigurations[dpid].subtract(ports)
                if switch := self._switches.get(dpid):  # it may have connected anew
                    self._sync_tables(switch)
            on_done()

        self._schedule(outage_s, finish)

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        datapath = event.datapath
        known = self._switches.get(datapath.id)
        if event.state == DEAD_DISPATCHER:
            if known and known.datapath is datapath:  # not an old connection's late end
                self._on_disconnect(datapath.id)
            return
        if known:  # back before its old connection was seen to end
            self._on_disconnect(datapath.id)
        try:
            role, _ = role_of(datapath.id)
        except ValueError as error:
            self.logger.warning("%s: left alone", error)
            return
        optical = (
            OpticalSwitch(datapath, self._schedule, self._reconfigurations[datapath.id]) if role == "optical" else None
        )
        self._switches[datapath.id] = _Switch(datapath, optical=optical)
        for request in (parser.OFPPortDescStatsRequest, parser.OFPFlowStatsRequest, parser.OFPGroupDescStatsRequest):
            datapath.send_msg(request(datapath, 0))

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, MAIN_DISPATCHER)
    def on_ports(self, event: Any) -> None:
        switch = self._switches.get(event.msg.datapath.id)
        if switch:
            now, ports = time.monotonic_ns(), [p for p in event.msg.body if p.port_no < codec.LOCAL_PORTS]
            seen = {p.port_no: codec.is_up(p) for p in ports}
            changed = {port: up for port, up in seen.items() if switch.ready and switch.ports.get(port) != up}
            switch.ports |= seen
            if switch.optical:
                with self._lock:
                    for port in ports:
                        switch.optical.on_port(port)
                    self._sync_tables(switch)
            for port, up in changed.items():  # it was asked, for it doesn't tell everything by itself
                self.listener(SwitchEvent("port", switch.datapath.id, now, port, up))

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def on_flows(self, event: Any) -> None:
        """What the switch kept from before; an empty table on a fresh one."""
        switch = self._switches.get(event.msg.datapath.id)
        entries = switch.gather(event.msg) if switch else None
        if switch and entries is not None:
            kept = codec.flows_in(entries)
            if kept is None:
                switch.datapath.send_msg(codec.delete_all(switch.datapath))
            switch.flows = kept or frozenset()

    @set_ev_cls(ofp_event.EventOFPGroupDescStatsReply, MAIN_DISPATCHER)
    def on_groups(self, event: Any) -> None:
        """The last of the three answers: now the switch can be brought to what it should have."""
        switch = self._switches.get(event.msg.datapath.id)
        entries = switch.gather(event.msg) if switch else None
        if switch and entries is not None:
            switch.tables = Tables(switch.flows, codec.groups_in(entries))
            if switch.optical:
                switch.optical.load_flows(switch.flows)
            self._sync_tables(switch)
            switch.datapath.send_msg(parser.OFPBarrierRequest(switch.datapath))

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def on_barrier(self, event: Any) -> None:
        dpid = event.msg.datapath.id
        switch = self._switches.get(dpid)
        if switch and not switch.ready:
            switch.ready = True
            self._on_spine_change(dpid)
            up = frozenset(port for port, is_up in switch.ports.items() if is_up)
            self.listener(SwitchEvent("switch-up", dpid, time.monotonic_ns(), up_ports=up))

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def on_port_status(self, event: Any) -> None:
        now, message = time.monotonic_ns(), event.msg
        dpid, port = message.datapath.id, message.desc
        switch = self._switches.get(dpid)
        if not switch or port.port_no >= codec.LOCAL_PORTS:
            return
        gone = message.reason == ofproto_v1_3.OFPPR_DELETE
        up = not gone and codec.is_up(port)
        before = switch.ports.pop(port.port_no, None)
        if not gone:
            switch.ports[port.port_no] = up
        if switch.optical:
            with self._lock:
                switch.optical.on_port_removed(port.port_no) if gone else switch.optical.on_port(port)
        is_change = up != before and switch.ready
        if is_change and not up:  # at once: who sends there must go another way
            self.listener(SwitchEvent("port", dpid, now, port.port_no, up))
        self._sync_tables(switch)
        self._on_spine_change(dpid)
        if is_change and up:  # last: who hears of it sends there, where flows must be
            self.listener(SwitchEvent("port", dpid, now, port.port_no, up))

    @set_ev_cls(ofp_event.EventOFPPortStatsReply, MAIN_DISPATCHER)
    def on_stats(self, event: Any) -> None:
        switch = self._switches.get(event.msg.datapath.id)
        entries = switch.gather(event.msg) if switch else None
        if entries is not None:
            counters = codec.counters_in(entries)
            self.listener(SwitchEvent("stats", event.msg.datapath.id, time.monotonic_ns(), counters=counters))

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def on_error(self, event: Any) -> None:
        message = event.msg
        self.logger.error("switch %#x refused: type %d code %d", message.datapath.id or 0, message.type, message.code)

    def _on_disconnect(self, dpid: int) -> None:
        """A switch's connection has ended."""
        del self._switches[dpid]
        role, index = role_of(dpid)
        if role == "spine":
            self._lost_spines.add(index)
        now = time.monotonic_ns()
        self._on_spine_change(dpid)
        self.listener(SwitchEvent("switch-down", dpid, now))

    def _spines(self) -> dict[int, Ports]:
        """The ports of every spine that has its flows, and none for one that had them and is gone."""
        found: dict[int, Ports] = {index: {} for index in self._lost_spines}
        for dpid, switch in self._switches.items():
            role, index = role_of(dpid)
            if role == "spine" and switch.ready:
                found[index] = switch.ports
        return found

    def _on_spine_change(self, dpid: int) -> None:
        """If it is a spine of which there is news, the rail switches' groups may have to follow."""
        if role_of(dpid)[0] == "spine":
            for switch in self._switches.values():
                self._sync_tables(switch)

    def _sync_tables(self, switch: _Switch) -> None:
        """Send the fewest messages that make the switch's tables what its ports call for."""
        with self._lock:
            if switch.tables is None:
                return
            if not switch.optical:
                self._send_changes(switch, switch.tables, tables_of(switch.datapath.id, switch.ports, self._spines()))
                return
            if switch.optical.has_changed:  # most of what is heard of it is light, which leaves its flows as they are
                target = tables_of(switch.datapath.id, switch.optical.ports, moved=switch.optical.moved)
                self._send_changes(switch, switch.tables, target)
                switch.optical.has_changed = False
            switch.optical.apply_link_states()

    def _send_changes(self, switch: _Switch, current: Tables, target: Tables) -> None:
        for message in codec.messages(switch.datapath, reconcile(current, target)):
            switch.datapath.send_msg(message)
        switch.tables = target

    def _schedule(self, seconds: float, what: Callable[[], None]) -> None:
        def do() -> None:
            with self._lock:
                what()

        timer = threading.Timer(seconds, do)
        timer.daemon = True
        timer.start()
