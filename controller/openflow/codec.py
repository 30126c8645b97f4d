"""Translate plain flows to OpenFlow 1.3 messages and back. The only module that knows the protocol.

Its API is from Ryu under `ryu-manager`, where Ryu is already loaded, and from os-ken, the maintained fork, elsewhere:
with native threads, whose type os-ken reads at its first import.
"""

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from railyard.controller.openflow.flows import ANYTHING, EXACT, Flow, Steps

_IS_RYU: Final = "ryu" in sys.modules
_LIBRARY: Final = "ryu" if _IS_RYU else "os_ken"
os.environ.setdefault("OSKEN_HUB_TYPE", "native")
RyuApp: Any = getattr(import_module(f"{_LIBRARY}.base.app_manager"), "RyuApp" if _IS_RYU else "OSKenApp")
ofp_event: Final[Any] = import_module(f"{_LIBRARY}.controller.ofp_event")
handler: Final[Any] = import_module(f"{_LIBRARY}.controller.handler")
ofp: Final[Any] = import_module(f"{_LIBRARY}.ofproto.ofproto_v1_3")
parser: Final[Any] = import_module(f"{_LIBRARY}.ofproto.ofproto_v1_3_parser")

# "Rail": ours, among flows that other controllers may have put there
COOKIE: Final = 0x5261_696C
LOCAL_PORTS: Final = 0xFFFFFF00  # reserved numbers begin here
_TO_ANY: Final = {"out_port": ofp.OFPP_ANY, "out_group": ofp.OFPG_ANY}
COUNTERS: Final = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")


def add_flow(datapath: Any, flow: Flow) -> Any:
    """The message that puts a flow in."""
    action = parser.OFPActionGroup(flow.group) if flow.group else parser.OFPActionOutput(flow.port)
    instructions = [parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, [action])]
    options = {"cookie": COOKIE, "command": ofp.OFPFC_ADD, "instructions": instructions}
    return parser.OFPFlowMod(datapath, priority=flow.priority, match=_match(flow), **options)


def delete_all(datapath: Any) -> Any:
    """The message that empties the flow table."""
    return parser.OFPFlowMod(datapath, command=ofp.OFPFC_DELETE, match=parser.OFPMatch(), **_TO_ANY)


def _match(flow: Flow) -> Any:
    if flow.in_port:
        return parser.OFPMatch(in_port=flow.in_port)
    return parser.OFPMatch(eth_dst=(flow.eth_dst, flow.mask))


def select_group(datapath: Any, number: int, ports: Iterable[int], command: int) -> Any:
    """The message that adds or changes (OFPGC_*) a select group over these ports, equal weights."""
    buckets = []
    for port in ports:
        actions = [parser.OFPActionOutput(port)]
        buckets.append(parser.OFPBucket(1, port, watch_group=ofp.OFPG_ANY, actions=actions))
    return parser.OFPGroupMod(datapath, command, ofp.OFPGT_SELECT, number, buckets)


def delete_flow(datapath: Any, flow: Flow) -> Any:
    """The message that removes exactly this flow."""
    options = {"command": ofp.OFPFC_DELETE_STRICT, **_TO_ANY}
    return parser.OFPFlowMod(datapath, priority=flow.priority, match=_match(flow), **options)


def messages(datapath: Any, steps: Steps) -> list[Any]:
    """The messages that take these steps, in their order."""
    result = [select_group(datapath, number, ports, ofp.OFPGC_MODIFY) for number, ports in steps.change_groups]
    result += [select_group(datapath, number, ports, ofp.OFPGC_ADD) for number, ports in steps.add_groups]
    result += [add_flow(datapath, flow) for flow in steps.add]
    result += [delete_flow(datapath, flow) for flow in steps.delete]
    result += [select_group(datapath, number, (), ofp.OFPGC_DELETE) for number in steps.delete_groups]
    return result


def groups_in(stats: Iterable[Any]) -> dict[int, tuple[int, ...]]:
    """The groups of a group-description reply: number -> ports. Of another type than ours: (0,), which is no port."""
    groups: dict[int, tuple[int, ...]] = {}
    for entry in stats:
        groups[entry.group_id] = (0,)
        if entry.type == ofp.OFPGT_SELECT:
            groups[entry.group_id] = tuple(bucket.watch_port for bucket in entry.buckets)
    return groups


def flows_in(stats: Iterable[Any]) -> frozenset[Flow] | None:
    """The flows of a flow-stats reply; None if one is there that is not of our shape (then: start afresh)."""
    flows = set()
    for entry in stats:
        match = entry.match.get("eth_dst", ANYTHING)
        in_port = entry.match.get("in_port")
        actions: list[Any] = []
        for instruction in entry.instructions:
            actions += getattr(instruction, "actions", ())
        is_match_ours = (match == ANYTHING) == (in_port is not None)
        field_count = len(entry.match.to_jsondict()["OFPMatch"]["oxm_fields"])
        if not is_match_ours or field_count != 1 or len(actions) != 1:
            return None
        if entry.table_id or entry.idle_timeout or entry.hard_timeout:
            return None
        value, mask = match if isinstance(match, tuple) else (match, EXACT)
        port = getattr(actions[0], "port", None)
        group = getattr(actions[0], "group_id", None)
        flows.add(Flow(value, mask, entry.priority, port, group, in_port))
    return frozenset(flows)


def is_up(port: Any) -> bool:
    """Return whether the port has a carrier and is not disabled."""
    return not port.state & ofp.OFPPS_LINK_DOWN and not port.config & ofp.OFPPC_PORT_DOWN


def port_mod_message(datapath: Any, port: Any, enabled: bool) -> Any:
    """Return the message that enables or disables a port; disabled, it takes the carrier of the cable's other end."""
    mask = ofp.OFPPC_PORT_DOWN | ofp.OFPPC_NO_FWD
    config = 0 if enabled else mask
    return parser.OFPPortMod(datapath, port.port_no, port.hw_addr, config, mask, 0)


def counters_in(stats: Iterable[Any]) -> dict[int, dict[str, int]]:
    """The counters of a port-stats reply, by port; `rx` is what came in from the cable."""
    counters: dict[int, dict[str, int]] = {}
    for entry in stats:
        if entry.port_no < LOCAL_PORTS:
            counters[entry.port_no] = {name: getattr(entry, name) for name in COUNTERS}
    return counters
