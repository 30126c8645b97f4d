"""The OpenFlow 1.3 app: gives every switch its flows, keeps them right, and says what it hears.

Runs under Railyard's own server (server.py) and under `ryu-manager controller/app.py` alike. Under the latter nobody
listens to what it hears, and the flows are all there is.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # ryu-manager gives the file, not the project

from controller import openflow
from controller.api import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    MAIN_DISPATCHER,
    RyuApp,
    ofp_event,
    ofproto_v1_3,
    ofproto_v1_3_parser as parser,
    set_ev_cls,
)
from controller.flows import Tables, flows_of, reconcile, role_of

What = Literal["switch-up", "switch-down", "port", "stats"]


@dataclass(frozen=True, slots=True)
class Heard:
    """Something a switch said (or, for switch-down, stopped saying), with the monotonic clock in ns."""

    what: What
    dpid: int
    monotonic_ns: int
    port: int = 0
    up: bool = True
    counters: dict[int, dict[str, int]] = field(default_factory=dict)


@dataclass
class _Switch:
    """What we know of a connected switch. `ports`: number -> is it up."""

    datapath: Any
    ports: dict[int, bool] = field(default_factory=dict)
    tables: Tables | None = None  # what we last asked for; None until it has been reconciled
    ready: bool = False


class RailyardApp(RyuApp):  # type: ignore[misc]
    """See the module. `listener` is called with each `Heard`, from the app's own thread."""

    OFP_VERSIONS: Final = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.listener: Callable[[Heard], None] = lambda heard: None
        self._switches: dict[int, _Switch] = {}

    def ask_stats(self) -> None:
        """Ask every switch for its port counters; each answer is heard as `stats`."""
        for switch in list(self._switches.values()):
            request = parser.OFPPortStatsRequest(switch.datapath, 0, ofproto_v1_3.OFPP_ANY)
            switch.datapath.send_msg(request)

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        datapath = event.datapath
        if event.state == DEAD_DISPATCHER:
            known = self._switches.get(datapath.id)
            if known and known.datapath is datapath:  # not an old connection's late end
                del self._switches[datapath.id]
                self._tell("switch-down", datapath.id)
                self._spines_changed()
            return
        try:
            role_of(datapath.id)
        except ValueError as error:
            self.logger.warning("%s: left alone", error)
            return
        self._switches[datapath.id] = _Switch(datapath)
        for request in (parser.OFPPortDescStatsRequest, parser.OFPFlowStatsRequest, parser.OFPGroupDescStatsRequest):
            datapath.send_msg(request(datapath, 0))

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, MAIN_DISPATCHER)
    def on_ports(self, event: Any) -> None:
        switch = self._switches.get(event.msg.datapath.id)
        if switch:
            ports = [p for p in event.msg.body if p.port_no < openflow.LOCAL_PORTS]
            switch.ports |= {p.port_no: openflow.is_up(p) for p in ports}

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def on_flows(self, event: Any) -> None:
        """What the switch kept from before; an empty table on a fresh one."""
        switch = self._switches.get(event.msg.datapath.id)
        if switch:
            kept = openflow.flows_in(event.msg.body)
            if kept is None:
                switch.datapath.send_msg(openflow.delete_all(switch.datapath))
            switch.tables = Tables(kept or frozenset())

    @set_ev_cls(ofp_event.EventOFPGroupDescStatsReply, MAIN_DISPATCHER)
    def on_groups(self, event: Any) -> None:
        """The last of the three answers: now the switch can be brought to what it should have."""
        switch = self._switches.get(event.msg.datapath.id)
        if not switch or not switch.tables:
            return
        buckets = event.msg.body[0].buckets if event.msg.body else None
        kept = None if buckets is None else tuple(b.watch_port for b in buckets)
        switch.tables = Tables(switch.tables.flows, kept)
        self._bring_up_to_date(switch)
        switch.datapath.send_msg(parser.OFPBarrierRequest(switch.datapath))

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def on_barrier(self, event: Any) -> None:
        switch = self._switches.get(event.msg.datapath.id)
        if switch and not switch.ready:
            switch.ready = True
            self._tell("switch-up", event.msg.datapath.id)
            for port, up in switch.ports.items():
                if not up:
                    self._tell("port", event.msg.datapath.id, port, up=False)
            self._spines_changed()

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def on_port_status(self, event: Any) -> None:
        message = event.msg
        switch, port = self._switches.get(message.datapath.id), message.desc
        if not switch or port.port_no >= openflow.LOCAL_PORTS:
            return
        gone = message.reason == ofproto_v1_3.OFPPR_DELETE
        up = not gone and openflow.is_up(port)
        changed = switch.ports.get(port.port_no) != up
        if gone:
            switch.ports.pop(port.port_no, None)
        else:
            switch.ports[port.port_no] = up
        if changed:
            self._tell("port", message.datapath.id, port.port_no, up=up)
        self._bring_up_to_date(switch)

    @set_ev_cls(ofp_event.EventOFPPortStatsReply, MAIN_DISPATCHER)
    def on_stats(self, event: Any) -> None:
        counters = {
            p.port_no: {
                n: getattr(p, n)
                for n in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")
            }
            for p in event.msg.body
            if p.port_no < openflow.LOCAL_PORTS
        }
        now = time.monotonic_ns()
        self.listener(Heard("stats", event.msg.datapath.id, now, counters=counters))

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def on_error(self, event: Any) -> None:
        message = event.msg
        self.logger.error("switch %#x refused: type %d code %d", message.datapath.id or 0, message.type, message.code)

    def _tell(self, what: What, dpid: int, port: int = 0, up: bool = True) -> None:
        self.listener(Heard(what, dpid, time.monotonic_ns(), port, up))

    def _dead_spines(self, switch: _Switch) -> frozenset[int]:
        """Spines that this switch has a cable to but that aren't connected to us. None while no spine ever was."""
        alive = {role_of(dpid)[1] for dpid in self._switches if role_of(dpid)[0] == "spine"}
        return frozenset(range(64)) - alive if alive else frozenset()

    def _spines_changed(self) -> None:
        for switch in self._switches.values():
            if switch.ready:
                self._bring_up_to_date(switch)

    def _bring_up_to_date(self, switch: _Switch) -> None:
        """Send the fewest messages that make the switch's tables what its ports call for."""
        if switch.tables is None:
            return
        datapath, have = switch.datapath, switch.tables
        want = flows_of(datapath.id, switch.ports, self._dead_spines(switch))
        if want.uplinks is not None:
            live = tuple(port for port in want.uplinks if switch.ports.get(port))
            want = Tables(want.flows, live)
            if have.uplinks != live:
                datapath.send_msg(openflow.uplink_group(datapath, live, exists=have.uplinks is not None))
        delete, add = reconcile(have.flows, want.flows)
        for flow in delete:
            datapath.send_msg(openflow.delete_flow(datapath, flow))
        for flow in add:
            datapath.send_msg(openflow.add_flow(datapath, flow))
        switch.tables = want
