"""How fast TCP connections of a node deliver now, by the kernel's own estimate: a sock_diag dump in its namespace.

Source: linux/inet_diag.h and struct tcp_info of linux/tcp.h (`tcpi_delivery_rate`: what was delivered between two
acknowledgements, the newest such sample).
"""

import socket
import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from topologies import namespaces, netlink

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
INET_DIAG_INFO: Final = 2
ESTABLISHED: Final = 1 << 1
# all IPv4 connections, each with its tcp_info
_ESTABLISHED_TCP: Final = struct.pack(
    "=BBBxI48x", socket.AF_INET, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ESTABLISHED
)
_MESSAGE: Final = struct.Struct("=4x2H16x4s28xII8x")  # ports, IPv4 destination, what waits to be read and to be sent
_MESSAGE_BYTES: Final = 72
_DELIVERY_RATE: Final = struct.Struct("=160xQ")


class TcpRates:
    """`read(node)` for nodes that were given. OSError if the kernel knows no sock_diag."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._sockets: dict[str, socket.socket] = {}
        for node in nodes:
            with namespaces.inside(node):
                self._sockets[node] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)

    def read(self, node: str) -> dict[str, float]:
        """Bit/s of payload by destination address, over all connections that have something to send just now."""
        found: defaultdict[str, float] = defaultdict(float)
        for body in netlink.dump(self._sockets[node], SOCK_DIAG_BY_FAMILY, _ESTABLISHED_TCP):
            _, _, address, _, waiting = _MESSAGE.unpack_from(body)
            if waiting:
                for kind, value in netlink.attributes(body[_MESSAGE_BYTES:]):
                    if kind == INET_DIAG_INFO and len(value) >= _DELIVERY_RATE.size:
                        found[socket.inet_ntoa(address)] += 8.0 * _DELIVERY_RATE.unpack_from(value)[0]
        return dict(found)

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
