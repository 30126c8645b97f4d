"""Translate plain flows to OpenFlow 1.3 messages and back. The only module that knows the protocol.

Its API is from Ryu under `ryu-manager`, where Ryu is already loaded, and from os-ken, the maintained fork, elsewhere:
with native threads, whose type os-ken reads at its first import.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any, Final

from railyard.controller.openflow.flows import ANYTHING, EXACT, Flow, Steps

if "ryu" in sys.modules:
    from ryu.base.app_manager import RyuApp
    from ryu.controller import ofp_event
    from ryu.controller.controller import Datapath
    from ryu.controller.handler import (
        CONFIG_DISPATCHER,
        DEAD_DISPATCHER,
        MAIN_DISPATCHER,
        set_ev_cls,
    )
    from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser
else:
    os.environ.setdefault("OSKEN_HUB_TYPE", "native")
    from os_ken.base.app_manager import OSKenApp as RyuApp
    from os_ken.controller import ofp_event
    from os_ken.controller.controller import Datapath
    from os_ken.controller.handler import (
        CONFIG_DISPATCHER,
        DEAD_DISPATCHER,
        MAIN_DISPATCHER,
        set_ev_cls,
    )
    from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser

__all__ = [
    "CONFIG_DISPATCHER",
    "DEAD_DISPATCHER",
    "MAIN_DISPATCHER",
    "Datapath",
    "RyuApp",
    "ofp_event",
    "ofproto_v1_3",
    "ofproto_v1_3_parser",
    "set_ev_cls",
]


COOKIE: Final = 0x5261_696C  # "Rail": ours, among flows that others may have put there
LOCAL_PORTS: Final = 0xFFFFFF00  # reserved numbers begin here
COUNTERS: Final = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")


def _match(flow: Flow) -> Any:
    if flow.in_port:
        return ofproto_v1_3_parser.OFPMatch(in_port=flow.in_port)
    return ofproto_v1_3_parser.OFPMatch(eth_dst=(flow.eth_dst, flow.mask))


def add_flow(datapath: Datapath, flow: Flow) -> Any:
    """The message that puts a flow in."""
    action = (
        ofproto_v1_3_parser.OFPActionGroup(flow.group) if flow.group else ofproto_v1_3_parser.OFPActionOutput(flow.port)
    )
    return ofproto_v1_3_parser.OFPFlowMod(
        datapath,
        cookie=COOKIE,
        command=ofproto_v1_3.OFPFC_ADD,
        priority=flow.priority,
        match=_match(flow),
        instructions=[ofproto_v1_3_parser.OFPInstructionActions(ofproto_v1_3.OFPIT_APPLY_ACTIONS, [action])],
    )


def delete_flow(datapath: Datapath, flow: Flow) -> Any:
    """The message that takes exactly this flow out."""
    return ofproto_v1_3_parser.OFPFlowMod(
        datapath,
        command=ofproto_v1_3.OFPFC_DELETE_STRICT,
        priority=flow.priority,
        match=_match(flow),
        out_port=ofproto_v1_3.OFPP_ANY,
        out_group=ofproto_v1_3.OFPG_ANY,
    )


def delete_all(datapath: Datapath) -> Any:
    """The message that empties the flow table."""
    return ofproto_v1_3_parser.OFPFlowMod(
        datapath,
        command=ofproto_v1_3.OFPFC_DELETE,
        out_port=ofproto_v1_3.OFPP_ANY,
        out_group=ofproto_v1_3.OFPG_ANY,
        match=ofproto_v1_3_parser.OFPMatch(),
    )


def select_group(datapath: Datapath, number: int, ports: Iterable[int], command: int) -> Any:
    """The message that adds or changes (OFPGC_*) a select group over these ports, equal weights."""
    buckets = [
        ofproto_v1_3_parser.OFPBucket(
            weight=1,
            watch_port=port,
            watch_group=ofproto_v1_3.OFPG_ANY,
            actions=[ofproto_v1_3_parser.OFPActionOutput(port)],
        )
        for port in ports
    ]
    return ofproto_v1_3_parser.OFPGroupMod(datapath, command, ofproto_v1_3.OFPGT_SELECT, number, buckets)


def messages(datapath: Datapath, steps: Steps) -> list[Any]:
    """The messages that take these steps, in their order."""
    return [
        *(select_group(datapath, number, ports, ofproto_v1_3.OFPGC_MODIFY) for number, ports in steps.change_groups),
        *(select_group(datapath, number, ports, ofproto_v1_3.OFPGC_ADD) for number, ports in steps.add_groups),
        *(add_flow(datapath, flow) for flow in steps.add),
        *(delete_flow(datapath, flow) for flow in steps.delete),
        *(select_group(datapath, number, (), ofproto_v1_3.OFPGC_DELETE) for number in steps.delete_groups),
    ]


def groups_in(stats: Iterable[Any]) -> dict[int, tuple[int, ...]]:
    """The groups of a group-description reply: number -> ports. Of another type than ours: (0,), which is no port."""
    return {
        entry.group_id: tuple(b.watch_port for b in entry.buckets) if entry.type == ofproto_v1_3.OFPGT_SELECT else (0,)
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
    """Return whether the port has a carrier and is not disabled."""
    return not port.state & ofproto_v1_3.OFPPS_LINK_DOWN and not port.config & ofproto_v1_3.OFPPC_PORT_DOWN


def port_mod_message(datapath: Datapath, port: Any, enabled: bool) -> Any:
    """Return the message that enables or disables a port; disabled, it takes the carrier of the cable's other end."""
    bits = ofproto_v1_3.OFPPC_PORT_DOWN | ofproto_v1_3.OFPPC_NO_FWD
    return ofproto_v1_3_parser.OFPPortMod(datapath, port.port_no, port.hw_addr, 0 if enabled else bits, bits, 0)


def port_desc_request(datapath: Datapath) -> Any:
    """The message that asks for all ports as they are."""
    return ofproto_v1_3_parser.OFPPortDescStatsRequest(datapath, 0)


def counters_in(stats: Iterable[Any]) -> dict[int, dict[str, int]]:
    """The counters of a port-stats reply, by port; `rx` is what came in from the cable."""
    entries = (entry for entry in stats if entry.port_no < LOCAL_PORTS)
    return {entry.port_no: {name: getattr(entry, name) for name in COUNTERS} for entry in entries}
