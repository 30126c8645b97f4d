"""Switches without packets: where a flow table sends a frame, and a switch that takes OpenFlow as a real one does."""

from collections.abc import Mapping, Set
from typing import Any

from railyard.controller.openflow.app import RailyardApp
from railyard.controller.openflow.codec import handler, ofp, ofp_event, parser
from railyard.controller.openflow.flows import ANYTHING, EXACT, Flow, Tables
from railyard.topologies.addresses import Gpu, gpu_at
from railyard.topologies.plan import Plan

PARTS = 2  # entries in each part of an answer; a real switch puts some 600 flows into one


def _number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


def out_ports(tables: Tables, eth_dst: str) -> frozenset[int]:
    """Return where a frame may come out: one port, any of a group's, or none (dropped)."""
    matching = [f for f in tables.flows if not (_number(f.eth_dst) ^ _number(eth_dst)) & _number(f.mask)]
    if not matching:
        return frozenset()
    best = max(matching, key=lambda flow: flow.priority)
    assert sum(flow.priority == best.priority for flow in matching) == 1, "which of these flows wins is not defined"
    if best.group is not None:
        return frozenset(tables.groups[best.group])  # KeyError: a flow to a group that isn't there
    assert best.port is not None
    return frozenset({best.port})


def cables(plan: Plan) -> dict[tuple[int, int], tuple[int, int]]:
    """Return what is at the other end of a switch's port that leads to a switch: (datapath id, port) both."""
    dpids = {switch.name: switch.dpid for switch in plan.switches}
    ends = [((dpids[u.a.node], u.a.port or 0), (dpids[u.b.node], u.b.port or 0)) for u in plan.uplinks]
    return dict(ends) | {b: a for a, b in ends}


def ports_of(plan: Plan) -> dict[int, dict[int, bool]]:
    """Return every switch's ports, all up, by datapath id."""
    dpids = {switch.name: switch.dpid for switch in plan.switches}
    ends = [end for link in plan.links for end in (link.a, link.b) if end.port is not None]
    return {dpid: {end.port or 0: True for end in ends if end.node == name} for name, dpid in dpids.items()}


def delivered(
    plan: Plan,
    tables: Mapping[int, Tables],
    source: Gpu,
    eth_dst: str,
    cut: Set[tuple[int, int]] = frozenset(),
) -> set[Gpu | None]:
    """Return every GPU at which a frame that `source` sends on rail0 may end, over all choices of ECMP; None: dropped.

    A switch that is missing from `tables` is dead. `cut`: dead ports, as (datapath id, port).
    """
    dpids = {switch.name: switch.dpid for switch in plan.switches}
    far, ends = cables(plan), set[Gpu | None]()
    todo = [(dpids[plan.rail_link(source).b.node], plan.rail_link(source).b.port, 0)]
    while todo:
        dpid, arrived, hops = todo.pop()
        assert hops < 4, "a loop"
        ports = out_ports(tables[dpid], eth_dst) - {arrived} if dpid in tables else frozenset()
        if not ports:
            ends.add(None)
        for port in ports:
            if (dpid, port) in cut:
                ends.add(None)
            elif (dpid, port) in far:
                todo.append((*far[dpid, port], hops + 1))
            else:
                ends.add(gpu_at(dpid, port))
    return ends


class FakeSwitch:
    """Stands for the Ryu API's Datapath, and for the switch behind it. Answers come when `talk` is called."""

    def __init__(self, dpid: int, ports: Mapping[int, bool]) -> None:
        self.id, self.ports = dpid, dict(ports)
        self.flows: dict[tuple[str, str, int, int], Any] = {}
        self.configs: dict[int, int] = {}
        self.groups: dict[int, Any] = {}
        self.received: list[Any] = []
        self._asked: list[Any] = []

    @property
    def tables(self) -> Tables:
        flows = set[Flow]()
        for (mac, mask, priority, in_port), message in self.flows.items():
            (action,) = message.instructions[0].actions
            port, group = getattr(action, "port", None), getattr(action, "group_id", None)
            flows.add(Flow(mac, mask, priority, port, group, in_port or None))
        groups = {n: tuple(b.actions[0].port for b in group.buckets) for n, group in self.groups.items()}
        return Tables(frozenset(flows), groups)

    def send_msg(self, message: Any) -> None:
        self.received.append(message)
        if isinstance(message, parser.OFPFlowMod):
            self._change_flow(message)
        elif isinstance(message, parser.OFPGroupMod):
            self._change_group(message)
        elif isinstance(message, parser.OFPPortMod):
            self.configs[message.port_no] = message.config & message.mask
        else:
            self._asked.append(message)

    def connect(self, app: RailyardApp) -> None:
        """Come up, and answer until nothing is asked any more."""
        app.on_state(state_change(self, up=True))
        self.talk(app)

    def talk(self, app: RailyardApp, answers_left: int = 99) -> None:
        """Answer what was asked, that many times at most."""
        answers = {
            parser.OFPPortDescStatsRequest: (app.on_ports, parser.OFPPortDescStatsReply, self._describe_ports),
            parser.OFPFlowStatsRequest: (app.on_flows, parser.OFPFlowStatsReply, self._describe_flows),
            parser.OFPGroupDescStatsRequest: (app.on_groups, parser.OFPGroupDescStatsReply, self._describe_groups),
            parser.OFPPortStatsRequest: (app.on_stats, parser.OFPPortStatsReply, self._count_ports),
        }
        while self._asked and answers_left:
            answers_left -= 1
            request = self._asked.pop(0)
            if isinstance(request, parser.OFPBarrierRequest):
                app.on_barrier(ofp_event.EventOFPBarrierReply(parser.OFPBarrierReply(self)))
                continue
            handler, reply, describe = answers[type(request)]
            entries = describe()
            for start in range(0, max(1, len(entries)), PARTS):
                more = ofp.OFPMPF_REPLY_MORE if start + PARTS < len(entries) else 0
                message = reply(self, body=entries[start : start + PARTS], flags=more)
                handler(ofp_event.EventOFPMsgBase(message))

    def set_port(self, app: RailyardApp, port: int, up: bool | None) -> None:
        """A port's cable comes or goes; None: the port itself goes."""
        reason = ofp.OFPPR_DELETE if up is None else ofp.OFPPR_MODIFY if port in self.ports else ofp.OFPPR_ADD
        message = parser.OFPPortStatus(self, reason=reason, desc=self._describe_port(port, bool(up)))
        if up is None:
            del self.ports[port]
        else:
            self.ports[port] = up
        app.on_port_status(ofp_event.EventOFPMsgBase(message))

    def _change_flow(self, message: Any) -> None:
        if message.command == ofp.OFPFC_DELETE:
            self.flows.clear()
            return
        match, in_port = message.match.get("eth_dst", ANYTHING), message.match.get("in_port", 0)
        value, mask = match if isinstance(match, tuple) else (match, EXACT)
        if message.command == ofp.OFPFC_ADD:
            for action in message.instructions[0].actions:
                assert getattr(action, "group_id", None) in (None, *self.groups), "OFPBAC_BAD_OUT_GROUP"
            self.flows[value, mask, message.priority, in_port] = message
        else:
            assert message.command == ofp.OFPFC_DELETE_STRICT
            del self.flows[value, mask, message.priority, in_port]  # KeyError: it isn't there, a slip of ours

    def _change_group(self, message: Any) -> None:
        exists = message.group_id in self.groups
        assert exists == (message.command != ofp.OFPGC_ADD), "OFPGMFC_GROUP_EXISTS or OFPGMFC_UNKNOWN_GROUP"
        if message.command == ofp.OFPGC_DELETE:
            assert all(flow.group != message.group_id for flow in self.tables.flows), "flows would go with their group"
            del self.groups[message.group_id]
        else:
            self.groups[message.group_id] = message

    def _describe_port(self, number: int, up: bool) -> Any:
        state = 0 if up else ofp.OFPPS_LINK_DOWN
        config = self.configs.get(number, 0)
        return parser.OFPPort(number, "02:00:00:00:00:00", b"port", config, state, 0, 0, 0, 0, 0, 0)

    def _describe_ports(self) -> list[Any]:
        """The switch's own port, which every switch has, among the others."""
        return [self._describe_port(number, up) for number, up in {**self.ports, ofp.OFPP_LOCAL: False}.items()]

    def _describe_flows(self) -> list[Any]:
        return [
            parser.OFPFlowStats(
                table_id=m.table_id,
                idle_timeout=m.idle_timeout,
                hard_timeout=m.hard_timeout,
                priority=m.priority,
                cookie=m.cookie,
                match=m.match,
                instructions=m.instructions,
            )
            for m in self.flows.values()
        ]

    def _describe_groups(self) -> list[Any]:
        return [parser.OFPGroupDescStats(m.type, number, m.buckets) for number, m in self.groups.items()]

    def _count_ports(self) -> list[Any]:
        return [parser.OFPPortStats(n, n, 0, 10 * n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) for n in self.ports]


def state_change(switch: FakeSwitch, up: bool) -> Any:
    """The event of a connection that is ready, or has ended."""
    event = ofp_event.EventOFPStateChange(switch)
    event.state = handler.MAIN_DISPATCHER if up else handler.DEAD_DISPATCHER
    return event
