"""Rates of a node's TCP connections: bytes acknowledged between two sock_diag dumps in its namespace.

Source: linux/inet_diag.h and struct tcp_info of linux/tcp.h (`tcpi_bytes_acked`). The kernel's own estimate,
`tcpi_delivery_rate`, is of one burst, and doesn't fall while a connection has nothing unsent.
"""

import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from railyard.topologies.build import namespaces, netlink

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
_BYTES_ACKED: Final = struct.Struct("=120xQ")
WINDOW_S: Final = 0.08
"""Between two looks: 22 frames of 9000 bytes at 20 Mbit/s, and two at a tenth of that."""
MAX_AGE_S: Final = 0.5

Connection = tuple[int, int, bytes]


@dataclass(frozen=True)
class _Snapshot:
    """Bytes acknowledged so far, of the connections that had something to send, and what was delivered before it."""

    at_s: float
    acknowledged: dict[Connection, int]
    rates: dict[str, float | None]


class TcpRates:
    """`read(node)` for nodes that were given. OSError if the kernel knows no sock_diag."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._snapshots: dict[str, _Snapshot] = {}
        for node in nodes:
            with namespaces.inside(node):
                self._sockets[node] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)

    def read(self, node: str) -> dict[str, float | None]:
        """Return bit/s of payload by destination address, over all connections that have something to send just now.

        None where that isn't known yet: ask again after WINDOW_S. Within it, the answer is the same.
        """
        now, last = time.monotonic(), self._snapshots.get(node)
        if last and now - last.at_s < WINDOW_S:
            return last.rates
        acknowledged = self._read_acknowledged(node)
        before = last if last and now - last.at_s < MAX_AGE_S else _Snapshot(now, {}, {})
        rates = rates_of(before.acknowledged, acknowledged, now - before.at_s)
        self._snapshots[node] = _Snapshot(now, acknowledged, rates)
        return rates

    def close(self) -> None:
        """Close all sockets."""
        for sock in self._sockets.values():
            sock.close()

    def _read_acknowledged(self, node: str) -> dict[Connection, int]:
        found = {}
        for body in netlink.dump(self._sockets[node], SOCK_DIAG_BY_FAMILY, _ESTABLISHED_TCP):
            source_port, port, address, _, waiting = _MESSAGE.unpack_from(body)
            if waiting:
                info = dict(netlink.attributes(body[_MESSAGE_BYTES:])).get(INET_DIAG_INFO, b"")
                if len(info) >= _BYTES_ACKED.size:
                    (found[source_port, port, address],) = _BYTES_ACKED.unpack_from(info)
        return found


def rates_of(
    before: Mapping[Connection, int], after: Mapping[Connection, int], seconds: float
) -> dict[str, float | None]:
    """Return bit/s by destination address, from bytes acknowledged; None for one without an earlier measurement."""
    found: dict[str, float | None] = {}
    for connection, acknowledged in after.items():
        address = socket.inet_ntoa(connection[2])
        found.setdefault(address, None)
        if connection in before:
            found[address] = (found[address] or 0.0) + (acknowledged - before[connection]) * 8 / seconds
    return found
