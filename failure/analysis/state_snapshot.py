"""Kernel state of a fabric's nodes that a fault may change for good: snapshots before and after, and their differences.

Netlink by hand: to start `ip` and `nft` in each of 80 namespaces would take a second. 64 namespaces with 90 routes and
14 neighbours each, as GPUs of 8x8 have them, take 0.06 s on two busy cores.
"""

import errno
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import IFF_UP, IFLA_GROUP, IFLA_IFNAME, LINK, RTM_GETLINK

StateSnapshot = Mapping[str, frozenset[str]]
"""Kernel state by node: a line for each route, neighbour, interface and table of rules."""
MAX_LISTED: Final = 3
"""The number of differences that a message lists."""


def state_differences(before: StateSnapshot, now: StateSnapshot) -> list[str]:
    """Return a line for each difference. The order of entries doesn't matter."""
    found = []
    for node in sorted(before):
        found += [f"{node} still has {entry}" for entry in sorted(now[node] - before[node])]
        found += [f"{node} still lacks {entry}" for entry in sorted(before[node] - now[node])]
    return found


def summarize(differences: list[str]) -> str:
    """Return the first differences in one line."""
    more = f" (and {len(differences) - MAX_LISTED} more)" if len(differences) > MAX_LISTED else ""
    return "; ".join(differences[:MAX_LISTED]) + more


RTM_GETROUTE: Final = 26
RTM_GETNEIGH: Final = 30
NFT_MSG_GETTABLE: Final = 10 << 8 | 1  # NFNL_SUBSYS_NFTABLES, and its number there
NETLINK_NETFILTER: Final = 12
NO_NFTABLES: Final = frozenset({errno.EINVAL, errno.EPROTONOSUPPORT})  # the error of a kernel without them
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_TABLE = 1, 4, 5, 6, 15
NDA_DST, NDA_LLADDR = 1, 2
NFTA_TABLE_NAME: Final = 1
UNICAST: Final = 1
CLONED: Final = 0x200  # what a kernel has learned of a path's MTU, and forgets by itself
PERMANENT: Final = 0x80
_ROUTE: Final = struct.Struct("=8BI")
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
_TABLES: Final = struct.Struct("=BBH")
_NUMBER: Final = struct.Struct("=I")

Names = Mapping[int, str]
"""Of interfaces, by number."""


def snapshot_state(nodes: Iterable[str]) -> StateSnapshot:
    """Return the state of these nodes now. OSError if a kernel refuses."""
    node_list = list(nodes)
    return dict(zip(node_list, namespaces.in_threads(_node_state, node_list), strict=True))


def _node_state(node: str) -> frozenset[str]:
    with namespaces.inside(node), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        links = list(namespaces.dump(sock, RTM_GETLINK, LINK.pack(0, 0, 0, 0, 0)))
        routes = list(namespaces.dump(sock, RTM_GETROUTE, _ROUTE.pack(socket.AF_INET, *[0] * 8)))
        neighbours = list(namespaces.dump(sock, RTM_GETNEIGH, _NEIGHBOUR.pack(socket.AF_INET, 0, 0, 0, 0)))
        tables = _tables()
    names = {LINK.unpack_from(body)[2]: _name_of(body) for body in links}
    found = {interface(body) for body in links}
    found |= {line for body in routes if (line := route(body, names))}
    found |= {line for body in neighbours if (line := neighbour(body, names))}
    return frozenset(found | {rules(body) for body in tables})


def _tables() -> list[bytes]:
    """Return the nftables tables of this thread's namespace."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as sock:
            return list(namespaces.dump(sock, NFT_MSG_GETTABLE, _TABLES.pack(socket.AF_UNSPEC, 0, 0)))
    except OSError as error:
        if error.errno in NO_NFTABLES:
            return []
        raise


def interface(body: bytes) -> str:
    """Return an interface's name, whether it is set up, and its group, which rules of a silent link match."""
    flags, attrs = LINK.unpack_from(body)[3], dict(_attributes(body, LINK))
    group = f", group {number}" if IFLA_GROUP in attrs and (number := _number(attrs[IFLA_GROUP])) else ""
    return f"interface {_name_of(body)}, set {'up' if flags & IFF_UP else 'down'}{group}"


def route(body: bytes, names: Names) -> str:
    """Return a route as `ip route` has it, without flags, which change with the carrier; empty for a learned one."""
    _, length, _, _, table, _, _, kind, flags = _ROUTE.unpack_from(body)
    if kind != UNICAST or flags & CLONED:
        return ""
    attrs = dict(_attributes(body, _ROUTE))
    prefix = f"{socket.inet_ntoa(attrs[RTA_DST])}/{length}" if RTA_DST in attrs else "default"
    via = f" via {socket.inet_ntoa(attrs[RTA_GATEWAY])}" if RTA_GATEWAY in attrs else ""
    device = _interface_name(names, _number(attrs[RTA_OIF])) if RTA_OIF in attrs else "several"
    table = _number(attrs[RTA_TABLE]) if RTA_TABLE in attrs else table
    metric = _number(attrs[RTA_PRIORITY]) if RTA_PRIORITY in attrs else 0
    return f"route {prefix}{via} dev {device} table {table} metric {metric}"


def neighbour(body: bytes, names: Names) -> str:
    """Return a neighbour; empty for one that the kernel resolved by itself."""
    _, index, state, _, _ = _NEIGHBOUR.unpack_from(body)
    if not state & PERMANENT:
        return ""
    attrs = dict(_attributes(body, _NEIGHBOUR))
    mac = attrs.get(NDA_LLADDR, b"").hex(":")
    return f"neighbour {socket.inet_ntoa(attrs[NDA_DST])} lladdr {mac} dev {_interface_name(names, index)}"


def rules(body: bytes) -> str:
    """A table of nftables, by its name."""
    return f"nftables' table {_text(dict(_attributes(body, _TABLES))[NFTA_TABLE_NAME])}"


def _name_of(body: bytes) -> str:
    return _text(dict(_attributes(body, LINK))[IFLA_IFNAME])


def _interface_name(names: Names, index: int) -> str:
    return names.get(index, f"number {index}")  # one that came since the interfaces were asked for


def _attributes(body: bytes, head: struct.Struct) -> Iterator[tuple[int, bytes]]:
    return namespaces.attributes(body[head.size :])


def _number(data: bytes) -> int:
    return int(_NUMBER.unpack(data)[0])


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()
