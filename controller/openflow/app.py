"""The OpenFlow 1.3 app: installs the flows of every switch, keeps them up to date, and emits switch events.

Runs under Railyard's own server (server.py), and under `ryu-manager controller/openflow/app.py`, where there is no
listener for its events. Optical switches are in optical.py.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from railyard.controller.openflow import codec
from railyard.controller.openflow.codec import RyuApp, handler, ofp, ofp_event, parser
from railyard.controller.openflow.flows import Flow, Ports, Tables, graph_tables, reconcile, tables_of
from railyard.controller.openflow.optical import OpticalSwitch, OpticalSwitches
from railyard.topologies.addresses import GRAPH_ROLES, Gpu, role_of
from railyard.topologies.graph import Ends, FabricGraph
from railyard.topologies.nics import RailOfRank


@dataclass(frozen=True, slots=True)
class SwitchEvent:
    """A change of a switch or of a port, or port counters.

    `port`, `up`: the port that changed, for "port".
    `up_ports`: all ports that are up, for "switch-up".
    `counters`: by port and name, for "stats".
    """

    what: Literal["switch-up", "switch-down", "port", "stats"]
    dpid: int
    monotonic_ns: int
    port: int = 0
    up: bool = True
    up_ports: frozenset[int] = frozenset()
    counters: dict[int, dict[str, int]] = field(default_factory=dict)


@dataclass
class _Switch:
    """State of a connected switch.

    `ports`: whether each is up.
    `optical`: its fibres, if it is an optical switch.
    """

    datapath: Any
    ports: dict[int, bool] = field(default_factory=dict)
    parts: defaultdict[type, list[Any]] = field(default_factory=lambda: defaultdict(list))  # of incomplete answers
    flows: frozenset[Flow] = frozenset()  # at the time of its connection
    tables: Tables | None = None  # as last installed; None until all its answers have arrived
    ready: bool = False
    optical: OpticalSwitch | None = None


class RailyardApp(RyuApp):  # type: ignore[misc]
    """The app. `listener` is called with each `SwitchEvent`, from the app's own thread.

    `assigned_uplinks` has the uplink of each rail switch to GPUs of other ranks, by datapath id, if no hash decides.
    `nics` has the rail of each rank, if GPUs share NICs. `graph` is that of a fabric whose kind is a graph. If it
    `observes`, another app decides forwarding: this one leaves the tables of switches as they are, and emits events.
    """

    OFP_VERSIONS: Final = [ofp.OFP_VERSION]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.listener: Callable[[SwitchEvent], None] = lambda event: None
        self.assigned_uplinks: dict[int, dict[Gpu, int]] = {}
        self.nics: RailOfRank = ()
        self._switches: dict[int, _Switch] = {}
        self.graph: FabricGraph | None = None
        self.observes = False
        self._lost_spines: set[int] = set()
        # datapath ids of switches of a graph
        self._lost: set[int] = set()
        # fibres are moved in other threads than events of switches arrive in
        self._lock = threading.RLock()
        self.optics = OpticalSwitches(self._lock, self._sync_tables)

    def _answer(self, event: Any) -> tuple[_Switch | None, list[Any] | None]:
        """Return a known switch and its whole answer, once the last part has arrived (each holds some 600 flows)."""
        message = event.msg
        switch = self._switches.get(event.msg.datapath.id)
        if switch is None:
            return None, None
        switch.parts[type(message)].extend(message.body)
        if message.flags & ofp.OFPMPF_REPLY_MORE:
            return switch, None
        return switch, switch.parts.pop(type(message))

    def ask_stats(self) -> None:
        """Ask every switch for its port counters; each answer becomes an event "stats"."""
        for switch in list(self._switches.values()):
            switch.datapath.send_msg(parser.OFPPortStatsRequest(switch.datapath, 0, ofp.OFPP_ANY))

    @handler.set_ev_cls(ofp_event.EventOFPStateChange, [handler.MAIN_DISPATCHER, handler.DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        """Ask a switch that has connected for its ports, flows and groups; forget one that has disconnected."""
        datapath = event.datapath
        switch = self._switches.get(datapath.id)
        if event.state == handler.DEAD_DISPATCHER:
            # a switch that is back may have another connection: then this is the late end of the old one
            if switch and switch.datapath is datapath:
                self._on_disconnect(datapath.id)
            return
        # the switch is back before the end of its old connection was noticed
        if switch:
            self._on_disconnect(datapath.id)
        try:
            role, _ = role_of(datapath.id)
        except ValueError as error:
            self.logger.warning("%s: left alone", error)
            return
        if role in GRAPH_ROLES and self.graph is None:
            self.logger.warning("%#x: left alone, since its flows follow from the fabric's graph", datapath.id)
            return
        optical = self.optics.connect(datapath) if role == "optical" else None
        self._switches[datapath.id] = _Switch(datapath, optical=optical)
        for request in (parser.OFPPortDescStatsRequest, parser.OFPFlowStatsRequest, parser.OFPGroupDescStatsRequest):
            datapath.send_msg(request(datapath, 0))

    @handler.set_ev_cls(ofp_event.EventOFPPortDescStatsReply, handler.MAIN_DISPATCHER)
    def on_ports(self, event: Any) -> None:
        """Take in port descriptions: the answer at the connection, or to a poll."""
        switch = self._switches.get(event.msg.datapath.id)
        if switch is None:
            return
        now = time.monotonic_ns()
        ports = [port for port in event.msg.body if port.port_no < codec.LOCAL_PORTS]
        states = {port.port_no: codec.is_up(port) for port in ports}
        changed = {number: up for number, up in states.items() if switch.ports.get(number) != up}
        switch.ports |= states
        if switch.optical:
            with self._lock:
                for port in ports:
                    switch.optical.on_port(port)
                self._sync_tables(switch.datapath.id)
        # a ready switch answers to a poll: it doesn't report every change of a port by itself
        if switch.ready:
            for number, up in changed.items():
                self.listener(SwitchEvent("port", switch.datapath.id, now, number, up))

    @handler.set_ev_cls(ofp_event.EventOFPFlowStatsReply, handler.MAIN_DISPATCHER)
    def on_flows(self, event: Any) -> None:
        """Take in the flows that the switch has from before; none at a new one."""
        switch, entries = self._answer(event)
        if switch and entries is not None:
            kept = codec.flows_in(entries)
            # with a flow of another shape than ours the tables can't be compared: the switch starts afresh
            if kept is None and not self.observes:
                switch.datapath.send_msg(codec.delete_all(switch.datapath))
            switch.flows = kept or frozenset()

    @handler.set_ev_cls(ofp_event.EventOFPGroupDescStatsReply, handler.MAIN_DISPATCHER)
    def on_groups(self, event: Any) -> None:
        """Take in the last of the three answers, and install what the tables lack."""
        switch, entries = self._answer(event)
        if switch and entries is not None:
            switch.tables = Tables(switch.flows, codec.groups_in(entries))
            if switch.optical:
                switch.optical.load_flows(switch.flows)
            self._sync_tables(switch.datapath.id)
            switch.datapath.send_msg(parser.OFPBarrierRequest(switch.datapath))

    @handler.set_ev_cls(ofp_event.EventOFPBarrierReply, handler.MAIN_DISPATCHER)
    def on_barrier(self, event: Any) -> None:
        """Emit "switch-up" once a new switch has installed its flows."""
        dpid = event.msg.datapath.id
        switch = self._switches.get(dpid)
        if switch and not switch.ready:
            switch.ready = True
            self._on_spine_change(dpid)
            up = frozenset(port for port, is_up in switch.ports.items() if is_up)
            self.listener(SwitchEvent("switch-up", dpid, time.monotonic_ns(), up_ports=up))

    @handler.set_ev_cls(ofp_event.EventOFPPortStatus, handler.MAIN_DISPATCHER)
    def on_port_status(self, event: Any) -> None:
        """Take in a change of one port."""
        now = time.monotonic_ns()
        message = event.msg
        dpid = message.datapath.id
        port = message.desc
        switch = self._switches.get(dpid)
        if not switch or port.port_no >= codec.LOCAL_PORTS:
            return
        gone = message.reason == ofp.OFPPR_DELETE
        up = not gone and codec.is_up(port)
        before = switch.ports.pop(port.port_no, None)
        if not gone:
            switch.ports[port.port_no] = up
        if switch.optical:
            with self._lock:
                switch.optical.on_port_removed(port.port_no) if gone else switch.optical.on_port(port)
        is_change = up != before and switch.ready
        if is_change and not up:
            # first: senders need a detour
            self.listener(SwitchEvent("port", dpid, now, port.port_no, up))
        self._sync_tables(dpid)
        self._on_spine_change(dpid)
        if is_change and up:
            # last: the listener lets traffic return, for which flows must exist
            self.listener(SwitchEvent("port", dpid, now, port.port_no, up))

    @handler.set_ev_cls(ofp_event.EventOFPPortStatsReply, handler.MAIN_DISPATCHER)
    def on_stats(self, event: Any) -> None:
        """Emit "stats" with the port counters."""
        _, entries = self._answer(event)
        if entries is not None:
            counters = codec.counters_in(entries)
            self.listener(SwitchEvent("stats", event.msg.datapath.id, time.monotonic_ns(), counters=counters))

    @handler.set_ev_cls(ofp_event.EventOFPErrorMsg, [handler.CONFIG_DISPATCHER, handler.MAIN_DISPATCHER])
    def on_error(self, event: Any) -> None:
        """Log a message that a switch has refused."""
        message = event.msg
        self.logger.error("switch %#x refused: type %d code %d", message.datapath.id or 0, message.type, message.code)

    def _on_disconnect(self, dpid: int) -> None:
        del self._switches[dpid]
        self.optics.disconnect(dpid)
        role, index = role_of(dpid)
        if role == "spine":
            self._lost_spines.add(index)
        elif role in GRAPH_ROLES:
            self._lost.add(dpid)
        now = time.monotonic_ns()
        self._on_spine_change(dpid)
        self.listener(SwitchEvent("switch-down", dpid, now))

    def _on_spine_change(self, dpid: int) -> None:
        """Update the groups of the rail switches after an event of a spine; all switches of a graph after any event."""
        if role_of(dpid)[0] in ("spine", *GRAPH_ROLES):
            for switch in self._switches:
                self._sync_tables(switch)

    def _sync_tables(self, dpid: int) -> None:
        """Send the fewest messages that make the switch's tables and link states what its ports require."""
        with self._lock:
            # it may have gone, or connected anew
            switch = self._switches.get(dpid)
            if switch is None or switch.tables is None or self.observes:
                return
            if switch.optical:
                target = switch.optical.changed_tables()
            elif self.graph and role_of(dpid)[0] in GRAPH_ROLES:
                target = self._graph_tables(self.graph, dpid)
            else:
                assigned = self.assigned_uplinks.get(dpid)
                target = tables_of(dpid, switch.ports, self._spine_ports(), assigned, self.nics)
            if target is not None:
                for message in codec.messages(switch.datapath, reconcile(switch.tables, target)):
                    switch.datapath.send_msg(message)
                switch.tables = target
            if switch.optical:
                switch.optical.apply_link_states()

    def _spine_ports(self) -> dict[int, Ports]:
        """Return the ports of every spine that has its flows; none of a spine that had them and was lost."""
        spines: dict[int, Ports] = {index: {} for index in self._lost_spines}
        for dpid, switch in self._switches.items():
            role, index = role_of(dpid)
            if role == "spine" and switch.ready:
                spines[index] = switch.ports
        return spines

    def _graph_tables(self, graph: FabricGraph, dpid: int) -> Tables:
        """Return the tables of a switch of a graph. A switch that has not connected yet counts as intact."""
        names = {number: name for name, number in graph.dpids.items()}
        ready = {number for number, switch in self._switches.items() if switch.ready}
        dead = frozenset(names[number] for number in self._lost - ready if number in names)
        cut: set[Ends] = set()
        for number, switch in self._switches.items():
            for neighbour, port in graph.ports.get(names.get(number, ""), {}).items():
                if switch.ports.get(port) is False:
                    cut.add(frozenset((names[number], neighbour)))
        return graph_tables(graph, names[dpid], dead, frozenset(cut))
