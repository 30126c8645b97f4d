"""What the kernel counts at the interfaces of many namespaces, read often: one netlink socket in each, kept open.

A look at 8 bridges with 8 links each takes 3 ms with this. pyroute2 decodes every attribute of every link, and took
44 ms for the same: most of the 50 between two looks. Here what isn't needed is skipped.
"""

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from railyard.topologies.build import namespaces, netlink

RTM_GETLINK: Final = 18
RTM_GETQDISC: Final = 38
IFF_LOWER_UP: Final = 0x10000
IFF_UP: Final = 0x1
IFLA_IFNAME: Final = 3
IFLA_STATS64: Final = 23
TC_H_ROOT: Final = 0xFFFFFFFF
TCA_STATS2: Final = 7
TCA_STATS_QUEUE: Final = 3
TRAFFIC: Final = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")
_STATS64: Final = struct.Struct("=2Q2Q2Q2Q")  # packets, bytes, errors and dropped, each rx and tx
_QUEUE: Final = struct.Struct("=3I")  # frames that wait, bytes that wait, dropped
_LINK: Final = struct.Struct("=BxHiII")
_QDISC: Final = struct.Struct("=BxHiIII")


@dataclass(frozen=True, slots=True)
class PortStats:
    """One interface: counters since it was made (`rx` is what came in from the cable), and its queue now.

    `traffic`: the counters named in TRAFFIC. `backlog_bytes` wait in the shaper, which has dropped `queue_dropped`
    frames (a counter of 32 bits).
    """

    up: bool
    traffic: tuple[int, ...]
    backlog_bytes: int = 0
    queue_dropped: int = 0


class PortReader:
    """Reads all interfaces of these namespaces (but lo). Not to be shared by threads."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._sockets: dict[str, socket.socket] = {}
        for node in nodes:
            with namespaces.inside(node):
                self._sockets[node] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

    def read(self) -> dict[str, dict[str, PortStats]]:
        """By node and interface, as of now. OSError if a kernel refuses, which it has no reason to."""
        return {node: _read(sock) for node, sock in self._sockets.items()}

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


def _read(sock: socket.socket) -> dict[str, PortStats]:
    queues: dict[int, tuple[int, int]] = {}
    for body in netlink.dump(sock, RTM_GETQDISC, _QDISC.pack(0, 0, 0, 0, 0, 0)):
        _, _, index, _, parent, _ = _QDISC.unpack_from(body)
        if parent == TC_H_ROOT:
            stats = dict(netlink.attributes(dict(netlink.attributes(body[_QDISC.size :])).get(TCA_STATS2, b"")))
            _, waiting, dropped = _QUEUE.unpack_from(stats[TCA_STATS_QUEUE])
            queues[index] = waiting, dropped
    found = {}
    for body in netlink.dump(sock, RTM_GETLINK, _LINK.pack(0, 0, 0, 0, 0)):
        _, _, index, flags, _ = _LINK.unpack_from(body)
        attributes = dict(netlink.attributes(body[_LINK.size :]))
        name = attributes[IFLA_IFNAME].rstrip(b"\0").decode()
        rx_packets, tx_packets, rx, tx, _, _, rx_dropped, tx_dropped = _STATS64.unpack_from(attributes[IFLA_STATS64])
        if name != "lo":
            up = flags & IFF_UP != 0 and flags & IFF_LOWER_UP != 0
            traffic = (rx, tx, rx_packets, tx_packets, rx_dropped, tx_dropped)
            found[name] = PortStats(up, traffic, *queues.get(index, (0, 0)))
    return found
