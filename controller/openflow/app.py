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
from railyard.controller.openflow.cross_connects import after_moves
from railyard.controller.openflow.flows import Flow, Ports, Tables, reconcile, tables_of
from railyard.controller.openflow.optical_switch import Glass
from railyard.controller.openflow.ryu_api import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    MAIN_DISPATCHER,
    RyuApp,
    ofp_event,
    ofproto_v1_3,
    set_ev_cls,
)
from railyard.controller.openflow.ryu_api import ofproto_v1_3_parser as parser
from railyard.topologies.ports import role_of

What = Literal["switch-up", "switch-down", "port", "stats"]
Concerned = Mapping[int, Mapping[int, bool]]
"""By a move of fibres: the ports that go dark, by datapath id, and whether each is lit again."""


@dataclass(frozen=True, slots=True)
class Heard:
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
    """What we know of a connected switch. `ports`: number -> is it up. `glass`: an optical one's."""

    datapath: Any
    ports: dict[int, bool] = field(default_factory=dict)
    parts: defaultdict[type, list[Any]] = field(default_factory=lambda: defaultdict(list))  # of answers still arriving
    flows: frozenset[Flow] = frozenset()  # what it had when it connected
    tables: Tables | None = None  # what it was last asked to have; None until its answers are in
    ready: bool = False
    glass: Glass | None = None

    def gather(self, message: Any) -> list[Any] | None:
        """All of an answer once its last part is there (a part holds 64 KB: some 600 flows), None before."""
        so_far = self.parts[type(message)]
        so_far.extend(message.body)
        if message.flags & ofproto_v1_3.OFPMPF_REPLY_MORE:
            return None
        return self.parts.pop(type(message))


class RailyardApp(RyuApp):  # type: ignore[misc]
    """See the module. `listener` is called with each `Heard`, from the app's own thread."""

    OFP_VERSIONS: Final = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.listener: Callable[[Heard], None] = lambda heard: None
        self._switches: dict[int, _Switch] = {}
        self._lost_spines: set[int] = set()
        self._dark: defaultdict[int, Counter[int]] = defaultdict(Counter)  # of optical switches: outlives connections
        self._lock = threading.RLock()  # fibres are moved by other threads than switches are heard in

    def ask_stats(self) -> None:
        """Ask every switch for its port counters; each answer is heard as `stats`."""
        for switch in list(self._switches.values()):
            request = parser.OFPPortStatsRequest(switch.datapath, 0, ofproto_v1_3.OFPP_ANY)
            switch.datapath.send_msg(request)

    def cross(
        self,
        moves: Mapping[int, Mapping[int, int]],
        dark_s: float,
        done: Callable[[], None],
        begins: Callable[[Concerned], None] = lambda concerned: None,
    ) -> None:
        """Move fibres of optical switches, {datapath id: {fibre: place}} in port numbers. All that this concerns is
        dark for `dark_s`, at the same time.

        The new crossings are there from the start, so that whoever connects to the switch next finds them; only light
        is late. `begins` is called before anything is dark, with all that this concerns; `done`, from another thread,
        when it is lit again; a switch that is away then is lit when it connects. ValueError, and nothing is moved
        anywhere, if one isn't connected now, or for two fibres to one place.
        """
        with self._lock:
            switches = [self._switches.get(dpid) for dpid in moves]
            there = [(switch, switch.glass) for switch in switches if switch and switch.glass and switch.tables]
            if len(there) < len(switches):
                raise ValueError("an optical switch is not connected")
            moved = [after_moves(glass.moved, moves[switch.datapath.id]) for switch, glass in there]
            pairs = list(zip(there, moved, strict=True))
            begins({switch.datapath.id: glass.concerned(after) for (switch, glass), after in pairs})
            dark = {s.datapath.id: glass.darken(after) for (s, glass), after in pairs}
            for switch, _ in there:
                self._bring_up_to_date(switch)

        def light() -> None:
            for dpid, ports in dark.items():
                self._dark[dpid].subtract(ports)
                if switch := self._switches.get(dpid):  # it may have connected anew
                    self._bring_up_to_date(switch)
            done()

        self._later(dark_s, light)

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        datapath = event.datapath
        known = self._switches.get(datapath.id)
        if event.state == DEAD_DISPATCHER:
            if known and known.datapath is datapath:  # not an old connection's late end
                self._lose(datapath.id)
            return
        if known:  # back before its old connection was seen to end
            self._lose(datapath.id)
        try:
            role, _ = role_of(datapath.id)
        except ValueError as error:
            self.logger.warning("%s: left alone", error)
            return
        glass = Glass(datapath, self._later, self._dark[datapath.id]) if role == "optical" else None
        self._switches[datapath.id] = _Switch(datapath, glass=glass)
        for request in (parser.OFPPortDescStatsRequest, parser.OFPFlowStatsRequest, parser.OFPGroupDescStatsRequest):
            datapath.send_msg(request(datapath, 0))

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, MAIN_DISPATCHER)
    def on_ports(self, event: Any) -> None:
        switch = self._switches.get(event.msg.datapath.id)
        if switch:
            now, ports = time.monotonic_ns(), [p for p in event.msg.body if p.port_no < codec.LOCAL_PORTS]
            seen = {p.port_no: codec.is_up(p) for p in ports}
            news = {port: up for port, up in seen.items() if switch.ready and switch.ports.get(port) != up}
            switch.ports |= seen
            if switch.glass:
                with self._lock:
                    for port in ports:
                        switch.glass.see(port)
                    self._bring_up_to_date(switch)
            for port, up in news.items():  # it was asked, for it doesn't tell everything by itself
                self.listener(Heard("port", switch.datapath.id, now, port, up))

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
            if switch.glass:
                switch.glass.learn(switch.flows)
            self._bring_up_to_date(switch)
            switch.datapath.send_msg(parser.OFPBarrierRequest(switch.datapath))

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def on_barrier(self, event: Any) -> None:
        dpid = event.msg.datapath.id
        switch = self._switches.get(dpid)
        if switch and not switch.ready:
            switch.ready = True
            self._spine_changed(dpid)
            up = frozenset(port for port, is_up in switch.ports.items() if is_up)
            self.listener(Heard("switch-up", dpid, time.monotonic_ns(), up_ports=up))

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
        if switch.glass:
            with self._lock:
                switch.glass.lose(port.port_no) if gone else switch.glass.see(port)
        is_news = up != before and switch.ready
        if is_news and not up:  # at once: who sends there must go another way
            self.listener(Heard("port", dpid, now, port.port_no, up))
        self._bring_up_to_date(switch)
        self._spine_changed(dpid)
        if is_news and up:  # last: who hears of it sends there, where flows must be
            self.listener(Heard("port", dpid, now, port.port_no, up))

    @set_ev_cls(ofp_event.EventOFPPortStatsReply, MAIN_DISPATCHER)
    def on_stats(self, event: Any) -> None:
        switch = self._switches.get(event.msg.datapath.id)
        entries = switch.gather(event.msg) if switch else None
        if entries is not None:
            counters = codec.counters_in(entries)
            self.listener(Heard("stats", event.msg.datapath.id, time.monotonic_ns(), counters=counters))

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def on_error(self, event: Any) -> None:
        message = event.msg
        self.logger.error("switch %#x refused: type %d code %d", message.datapath.id or 0, message.type, message.code)

    def _lose(self, dpid: int) -> None:
        """A switch's connection has ended."""
        del self._switches[dpid]
        role, index = role_of(dpid)
        if role == "spine":
            self._lost_spines.add(index)
        now = time.monotonic_ns()
        self._spine_changed(dpid)
        self.listener(Heard("switch-down", dpid, now))

    def _spines(self) -> dict[int, Ports]:
        """The ports of every spine that has its flows, and none for one that had them and is gone."""
        found: dict[int, Ports] = {index: {} for index in self._lost_spines}
        for dpid, switch in self._switches.items():
            role, index = role_of(dpid)
            if role == "spine" and switch.ready:
                found[index] = switch.ports
        return found

    def _spine_changed(self, dpid: int) -> None:
        """If it is a spine of which there is news, the rail switches' groups may have to follow."""
        if role_of(dpid)[0] == "spine":
            for switch in self._switches.values():
                self._bring_up_to_date(switch)

    def _bring_up_to_date(self, switch: _Switch) -> None:
        """Send the fewest messages that make the switch's tables what its ports call for."""
        with self._lock:
            if switch.tables is None:
                return
            if not switch.glass:
                self._put(switch, switch.tables, tables_of(switch.datapath.id, switch.ports, self._spines()))
                return
            if switch.glass.is_recabled:  # most of what is heard of it is light, which leaves its flows as they are
                want = tables_of(switch.datapath.id, switch.glass.ports, moved=switch.glass.moved)
                self._put(switch, switch.tables, want)
                switch.glass.is_recabled = False
            switch.glass.shine()

    def _put(self, switch: _Switch, have: Tables, want: Tables) -> None:
        for message in codec.messages(switch.datapath, reconcile(have, want)):
            switch.datapath.send_msg(message)
        switch.tables = want

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        def do() -> None:
            with self._lock:
                what()

        timer = threading.Timer(seconds, do)
        timer.daemon = True
        timer.start()
