"""How fast TCP connections of a node deliver now, by the kernel's own estimate: a sock_diag dump in its namespace.

Source: linux/inet_diag.h and struct tcp_info of linux/tcp.h (`tcpi_delivery_rate`: what was delivered between two
acknowledgements, the newest such sample).
"""

import socket
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from topologies import namespaces

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
REQUEST_DUMP: Final = 0x1 | 0x300
NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
INET_DIAG_INFO: Final = 2
ESTABLISHED: Final = 1 << 1
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBxI48x")
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
        for body in _dump(self._sockets[node]):
            _, _, address, _, waiting = _MESSAGE.unpack_from(body)
            if waiting:
                for kind, value in _attributes(body[_MESSAGE_BYTES:]):
                    if kind == INET_DIAG_INFO and len(value) >= _DELIVERY_RATE.size:
                        found[socket.inet_ntoa(address)] += 8.0 * _DELIVERY_RATE.unpack_from(value)[0]
        return dict(found)

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


def _dump(sock: socket.socket) -> Iterator[bytes]:
    body = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ESTABLISHED)
    sock.send(_HEADER.pack(_HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 0, 0) + body)
    while True:
        data, at = sock.recv(65536), 0
        while at < len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, at)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                raise OSError(-struct.unpack_from("=i", data, at + _HEADER.size)[0], "sock_diag")
            yield data[at + _HEADER.size : at + length]
            at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        yield kind, data[at + 4 : at + length]
        at += (length + 3) & ~3
