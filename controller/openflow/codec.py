"""From plain flows to OpenFlow 1.3 messages and back. The one place that knows the protocol's words."""

from collections.abc import Iterable
from typing import Any, Final

from railyard.controller.openflow.cross_connects import LinkState
from railyard.controller.openflow.flows import ANYTHING, EXACT, Flow, Steps
from railyard.controller.openflow.ryu_api import Datapath
from railyard.controller.openflow.ryu_api import ofproto_v1_3 as ofp
from railyard.controller.openflow.ryu_api import ofproto_v1_3_parser as parser

COOKIE: Final = 0x5261_696C  # "Rail": ours, among flows that others may have put there
LOCAL_PORTS: Final = 0xFFFFFF00  # reserved numbers begin here
COUNTERS: Final = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")


def _match(flow: Flow) -> Any:
    if flow.in_port:
        return parser.OFPMatch(in_port=flow.in_port)
    return parser.OFPMatch(eth_dst=(flow.eth_dst, flow.mask))


def add_flow(datapath: Datapath, flow: Flow) -> Any:
    """The message that puts a flow in."""
    action = parser.OFPActionGroup(flow.group) if flow.group else parser.OFPActionOutput(flow.port)
    return parser.OFPFlowMod(
        datapath,
        cookie=COOKIE,
        command=ofp.OFPFC_ADD,
        priority=flow.priority,
        match=_match(flow),
        instructions=[parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, [action])],
    )


def delete_flow(datapath: Datapath, flow: Flow) -> Any:
    """The message that takes exactly this flow out."""
    return parser.OFPFlowMod(
        datapath,
        command=ofp.OFPFC_DELETE_STRICT,
        priority=flow.priority,
        match=_match(flow),
        out_port=ofp.OFPP_ANY,
        out_group=ofp.OFPG_ANY,
    )


def delete_all(datapath: Datapath) -> Any:
    """The message that empties the flow table."""
    return parser.OFPFlowMod(
        datapath, command=ofp.OFPFC_DELETE, out_port=ofp.OFPP_ANY, out_group=ofp.OFPG_ANY, match=parser.OFPMatch()
    )


def select_group(datapath: Datapath, number: int, ports: Iterable[int], command: int) -> Any:
    """The message that adds or changes (OFPGC_*) a select group over these ports, equal weights."""
    buckets = [
        parser.OFPBucket(weight=1, watch_port=port, watch_group=ofp.OFPG_ANY, actions=[parser.OFPActionOutput(port)])
        for port in ports
    ]
    return parser.OFPGroupMod(datapath, command, ofp.OFPGT_SELECT, number, buckets)


def messages(datapath: Datapath, steps: Steps) -> list[Any]:
    """The messages that take these steps, in their order."""
    return [
        *(select_group(datapath, number, ports, ofp.OFPGC_MODIFY) for number, ports in steps.change_groups),
        *(select_group(datapath, number, ports, ofp.OFPGC_ADD) for number, ports in steps.add_groups),
        *(add_flow(datapath, flow) for flow in steps.add),
        *(delete_flow(datapath, flow) for flow in steps.delete),
        *(select_group(datapath, number, (), ofp.OFPGC_DELETE) for number in steps.delete_groups),
    ]


def groups_in(stats: Iterable[Any]) -> dict[int, tuple[int, ...]]:
    """The groups of a group-description reply: number -> ports. Of another type than ours: (0,), which is no port."""
    return {
        entry.group_id: tuple(b.watch_port for b in entry.buckets) if entry.type == ofp.OFPGT_SELECT else (0,)
        for entry in stats
    }


def flows_in(stats: Iterable[Any]) -> frozenset[Flow] | None:
    """The flows of a flow-stats reply; None if one is there that is not of our shape (then: start afresh)."""
    found = set()
    for entry in stats:
        flow = _flow_in(entry)
        if flow is None:
            return None
        found.add(flow)
    return frozenset(found)


def _flow_in(entry: Any) -> Flow | None:
    match, in_port = entry.match.get("eth_dst", ANYTHING), entry.match.get("in_port")
    actions = [a for i in entry.instructions for a in getattr(i, "actions", ())]
    if (
        entry.table_id
        or entry.idle_timeout
        or entry.hard_timeout
        or (match == ANYTHING) != (in_port is not None)
        or len(actions) != 1
        or len(entry.match.to_jsondict()["OFPMatch"]["oxm_fields"]) != 1
    ):
        return None
    value, mask = match if isinstance(match, tuple) else (match, EXACT)
    action = actions[0]
    return Flow(value, mask, entry.priority, getattr(action, "port", None), getattr(action, "group_id", None), in_port)


def is_up(port: Any) -> bool:
    """True if the port's cable is live and nobody switched it off."""
    return not port.state & ofp.OFPPS_LINK_DOWN and not port.config & ofp.OFPPC_PORT_DOWN


def link_state_of(port: Any) -> LinkState:
    """An optical switch's port. That we darkened it is its mark, which the switch keeps for us."""
    return LinkState(disabled=bool(port.config & ofp.OFPPC_NO_FWD), has_carrier=is_up(port))


def port_mod_message(datapath: Datapath, port: Any, enabled: bool) -> Any:
    """The message that lights a port or darkens it, which takes the carrier of whoever is at its cable."""
    bits = ofp.OFPPC_PORT_DOWN | ofp.OFPPC_NO_FWD
    return parser.OFPPortMod(datapath, port.port_no, port.hw_addr, 0 if enabled else bits, bits, 0)


def port_desc_request(datapath: Datapath) -> Any:
    """The message that asks for all ports as they are."""
    return parser.OFPPortDescStatsRequest(datapath, 0)


def counters_in(stats: Iterable[Any]) -> dict[int, dict[str, int]]:
    """The counters of a port-stats reply, by port; `rx` is what came in from the cable."""
    entries = (entry for entry in stats if entry.port_no < LOCAL_PORTS)
    return {entry.port_no: {name: getattr(entry, name) for name in COUNTERS} for entry in entries}
