"""Kernel state of a fabric's nodes that a fault may change for good: snapshots before and after, and their differences.

Netlink by hand: to start `ip` and `nft` in each of 80 namespaces would take a second. 64 namespaces with 90 routes and
14 neighbours each, as GPUs of 8x8 have them, take 0.06 s on two busy cores.
"""

import errno
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import IFF_UP, IFLA_GROUP, IFLA_IFNAME, LINK, RTM_GETLINK

StateSnapshot = Mapping[str, frozenset[str]]
"""Kernel state by node: a line for each route, neighbour, interface and table of rules."""
MAX_LISTED: Final = 3  # the number of differences that a message lists


def state_differences(before: StateSnapshot, now: StateSnapshot) -> list[str]:
    """Return a line for each difference. The order of entries doesn't matter."""
    differences: list[str] = []
    for node in sorted(before):
        for entry in sorted(now[node] - before[node]):
            differences.append(f"{node} still has {entry}")
        for entry in sorted(before[node] - now[node]):
            differences.append(f"{node} still lacks {entry}")
    return differences


def summarize(differences: list[str]) -> str:
    """Return the first differences in one line."""
    summary = "; ".join(differences[:MAX_LISTED])
    if len(differences) > MAX_LISTED:
        summary += f" (and {len(differences) - MAX_LISTED} more)"
    return summary


RTM_GETROUTE: Final = 26
RTM_GETNEIGH: Final = 30
NFT_MSG_GETTABLE: Final = 10 << 8 | 1  # NFNL_SUBSYS_NFTABLES, and its number there
NETLINK_NETFILTER: Final = 12
# the error of a kernel without nftables
NO_NFTABLES: Final = frozenset({errno.EINVAL, errno.EPROTONOSUPPORT})
RTA_DST = 1
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_PRIORITY = 6
RTA_TABLE = 15
NDA_DST = 1
NDA_LLADDR = 2
NFTA_TABLE_NAME: Final = 1
UNICAST: Final = 1
# what a kernel has learned of a path's MTU, and forgets by itself
CLONED: Final = 0x200
PERMANENT: Final = 0x80
_ROUTE: Final = struct.Struct("=8BI")
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
_TABLES: Final = struct.Struct("=BBH")

Names = Mapping[int, str]  # of interfaces, by number; one may have come since they were read


def snapshot_state(nodes: Iterable[str]) -> StateSnapshot:
    """Return the state of these nodes now. OSError if a kernel refuses."""
    node_list = list(nodes)
    return dict(zip(node_list, namespaces.in_threads(_node_state, node_list), strict=True))


def _node_state(node: str) -> frozenset[str]:
    with namespaces.inside(node), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        links = list(namespaces.dump(sock, RTM_GETLINK, LINK.pack(0, 0, 0, 0, 0)))
        routes = list(namespaces.dump(sock, RTM_GETROUTE, _ROUTE.pack(socket.AF_INET, *[0] * 8)))
        neighbours = list(namespaces.dump(sock, RTM_GETNEIGH, _NEIGHBOUR.pack(socket.AF_INET, 0, 0, 0, 0)))
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netfilter:
                request = _TABLES.pack(socket.AF_UNSPEC, 0, 0)
                tables = list(namespaces.dump(netfilter, NFT_MSG_GETTABLE, request))
        except OSError as error:
            if error.errno not in NO_NFTABLES:
                raise
            tables = []
    names: dict[int, str] = {}
    for body in links:
        _, _, number, _, _ = LINK.unpack_from(body)
        names[number] = _text(_attributes(body, LINK)[IFLA_IFNAME])
    lines = [interface(body) for body in links]
    lines += [route(body, names) for body in routes]
    lines += [neighbour(body, names) for body in neighbours]
    lines += [rules(body) for body in tables]
    return frozenset(line for line in lines if line)


def interface(body: bytes) -> str:
    """Return an interface's name, whether it is set up, and its group, which rules of a silent link match."""
    flags = LINK.unpack_from(body)[3]
    attrs = _attributes(body, LINK)
    state = "up" if flags & IFF_UP else "down"
    line = f"interface {_text(attrs[IFLA_IFNAME])}, set {state}"
    group = _number(attrs.get(IFLA_GROUP))
    if group:
        line += f", group {group}"
    return line


def route(body: bytes, names: Names) -> str:
    """Return a route as `ip route` has it, without flags, which change with the carrier; empty for a learned one."""
    _, length, _, _, table, _, _, kind, flags = _ROUTE.unpack_from(body)
    if kind != UNICAST or flags & CLONED:
        return ""
    attrs = _attributes(body, _ROUTE)
    destination = "default"
    if RTA_DST in attrs:
        destination = f"{socket.inet_ntoa(attrs[RTA_DST])}/{length}"
    if RTA_GATEWAY in attrs:
        destination += f" via {socket.inet_ntoa(attrs[RTA_GATEWAY])}"
    # a route with several next hops has no interface of its own
    device = "several"
    index = _number(attrs.get(RTA_OIF))
    if index:
        device = names.get(index, f"number {index}")
    table = _number(attrs.get(RTA_TABLE), table)
    metric = _number(attrs.get(RTA_PRIORITY))
    return f"route {destination} dev {device} table {table} metric {metric}"


def neighbour(body: bytes, names: Names) -> str:
    """Return a neighbour; empty for one that the kernel resolved by itself."""
    _, index, state, _, _ = _NEIGHBOUR.unpack_from(body)
    if not state & PERMANENT:
        return ""
    attrs = _attributes(body, _NEIGHBOUR)
    mac = attrs.get(NDA_LLADDR, b"").hex(":")
    device = names.get(index, f"number {index}")
    return f"neighbour {socket.inet_ntoa(attrs[NDA_DST])} lladdr {mac} dev {device}"


def rules(body: bytes) -> str:
    """A table of nftables, by its name."""
    return f"nftables' table {_text(_attributes(body, _TABLES)[NFTA_TABLE_NAME])}"


def _attributes(body: bytes, head: struct.Struct) -> dict[int, bytes]:
    return dict(namespaces.attributes(body[head.size :]))


def _number(data: bytes | None, default: int = 0) -> int:
    return default if data is None else int.from_bytes(data, sys.byteorder)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()
