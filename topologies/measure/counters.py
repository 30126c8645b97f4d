"""Counters of the kernel in the fabric's namespaces: TCP segments, drops, traffic and queues of interfaces, and rates
of a node's TCP connections.

Interfaces are read often, by one netlink socket in each namespace that is kept open: 8 bridges with 8 links each take
3 ms. pyroute2 decodes every attribute of every link, and took 44 ms for the same. Rates of connections are bytes
acknowledged between two sock_diag dumps (linux/inet_diag.h; `tcpi_bytes_acked` of struct tcp_info): the kernel's own
estimate, `tcpi_delivery_rate`, is of one burst, and doesn't fall while a connection has nothing unsent.
"""

import operator
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import IFF_UP, IFLA_IFNAME, LINK, RTM_GETLINK
from railyard.topologies.build.shaping import DISCARD_INTERFACE

# with it the controller would import Mininet
if TYPE_CHECKING:
    from railyard.topologies.build.network import EmulatedNet

Port = tuple[str, str]  # node, interface
_SUMS: Final = ("segments", "retransmits", "drops", "needless")
_DEV_DROPS: Final = (3, 11)  # rx and tx drop columns of /proc/net/dev, after the interface's name


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over the fabric since it was built.

    `retransmits` leaves out those that the receiver reported to have already (DSACK), which are `needless`: TCP probes
    the end of a transfer after a pause, and a queue that takes long isn't a loss. `drops_at`: `drops` by node and
    interface, where there are any.
    """

    segments: int
    retransmits: int
    drops: int
    needless: int = 0
    drops_at: Mapping[Port, int] = field(default_factory=dict)

    def __add__(self, other: "Counters") -> "Counters":
        return self._combined(other, 1)

    def __sub__(self, other: "Counters") -> "Counters":
        return self._combined(other, -1)

    def _combined(self, other: "Counters", sign: int) -> "Counters":
        sums = {name: getattr(self, name) + sign * getattr(other, name) for name in _SUMS}
        ports = dict.fromkeys((*self.drops_at, *other.drops_at))
        drops_at = {port: self.drops_at.get(port, 0) + sign * other.drops_at.get(port, 0) for port in ports}
        return Counters(**sums, drops_at={port: drops for port, drops in drops_at.items() if drops})

    @property
    def worst_port(self) -> tuple[Port, int]:
        """The node and interface that dropped most, and how many frames. The name is empty if nothing was dropped."""
        return max(self.drops_at.items(), key=operator.itemgetter(1), default=(("", ""), 0))

    @property
    def non_negative(self) -> "Counters":
        """The same, with 0 for less: a receiver may report only now that an earlier retransmission was needless."""
        return replace(self, retransmits=max(0, self.retransmits))


def count(net: "EmulatedNet") -> Counters:
    """Read every namespace once (half a millisecond each)."""
    return sum(namespaces.in_threads(_read, net.node_names), Counters(0, 0, 0))


def _read(node: str) -> Counters:
    with namespaces.inside(node):
        tcp = tcp_counters(Path("/proc/thread-self/net/snmp").read_text(), "Tcp:")
        extended = tcp_counters(Path("/proc/thread-self/net/netstat").read_text(), "TcpExt:")
        interfaces = Path("/proc/thread-self/net/dev").read_text()
        drops = Counter(interface_drops(interfaces)) + Counter(queue_drops())  # what is above 0
    needless = extended["TCPDSACKRecv"]
    retransmits = max(0, tcp["RetransSegs"] - needless)
    drops_at = {(node, interface): count for interface, count in drops.items()}
    return Counters(tcp["OutSegs"], retransmits, drops.total(), needless, drops_at)


def tcp_counters(text: str, kind: str) -> dict[str, int]:
    """Return the two lines of a kind (`Tcp:`, `TcpExt:`) of /proc/net/snmp or netstat as a dictionary."""
    rows: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(kind):
            rows.append(line.split()[1:])
    names, values = rows
    return dict(zip(names, map(int, values), strict=True))


def interface_drops(dev: str) -> dict[str, int]:
    """Return the dropped frames, both ways, of each link, from /proc/net/dev.

    Not those that end in a switch's hole: each is the original of a copy that went its way (shaping.py).
    """
    drops: dict[str, int] = {}
    for line in dev.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        columns = numbers.split()
        drops[name.strip()] = sum(int(columns[column]) for column in _DEV_DROPS)
    for excluded in ("lo", DISCARD_INTERFACE):
        drops.pop(excluded, None)
    return drops


def queue_drops() -> dict[str, int]:
    """Return what the queues of this thread's namespace have dropped, by interface. OSError if the kernel refuses."""
    drops = Counter[str]()
    names = dict(socket.if_nameindex())
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        for body in namespaces.dump(sock, RTM_GETQDISC, _QDISC_OF_ALL):
            drops[names.get(_QDISC.unpack_from(body)[2], "")] += _queue(body)[2]
    return drops


RTM_GETQDISC: Final = 38
IFF_LOWER_UP: Final = 0x10000
IFLA_STATS64: Final = 23
TC_H_ROOT: Final = 0xFFFFFFFF
TCA_STATS2: Final = 7
TCA_STATS_QUEUE: Final = 3
TRAFFIC: Final = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")
_STATS64: Final = struct.Struct("=2Q2Q2Q2Q")  # packets, bytes, errors and dropped, each rx and tx
_QUEUE: Final = struct.Struct("=3I")  # frames that wait, bytes that wait, dropped
_QDISC: Final = struct.Struct("=BxHiIII")
_ATTRIBUTE: Final = struct.Struct("=HH")  # length with this header, kind
_QDISC_OF_ALL: Final = _QDISC.pack(0, 0, 0, 0, 0, 0)
_LINK_OF_ALL: Final = LINK.pack(0, 0, 0, 0, 0)


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
        self._ports: dict[str, _Ports] = {}
        for node in nodes:
            sock = namespaces.open_socket(node, socket.SOCK_RAW, socket.AF_NETLINK, socket.NETLINK_ROUTE)
            self._ports[node] = _Ports(sock)

    def read(self) -> dict[str, dict[str, PortStats]]:
        """Return the state by node and interface. OSError if a kernel refuses."""
        return {node: ports.read() for node, ports in self._ports.items()}

    def close(self) -> None:
        """Close all sockets."""
        for ports in self._ports.values():
            ports.sock.close()


class _Ports:
    """The interfaces of one namespace.

    A link's message has 40 attributes, of which two are needed. Where they are stays the same from one reading to the
    next, so it is remembered by interface and length of the message: to go through all of them took two thirds of the
    time.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._stats_at: dict[tuple[int, int], int] = {}
        self._queue_at: dict[tuple[int, int], int] = {}

    def read(self) -> dict[str, PortStats]:
        """Return the state of each interface by name. OSError if the kernel refuses."""
        queues: dict[int, tuple[int, int]] = {}
        for body in namespaces.dump(self.sock, RTM_GETQDISC, _QDISC_OF_ALL):
            _, _, index, _, parent, _ = _QDISC.unpack_from(body)
            if parent == TC_H_ROOT:
                at = self._queue_at.get((index, len(body)), 0)
                if not _is_at(body, at, TCA_STATS_QUEUE):
                    at = _find(body, _find(body, _QDISC.size, TCA_STATS2), TCA_STATS_QUEUE)
                    self._queue_at[index, len(body)] = at
                _, waiting, dropped = _QUEUE.unpack_from(body, at)
                queues[index] = waiting, dropped
        ports: dict[str, PortStats] = {}
        for body in namespaces.dump(self.sock, RTM_GETLINK, _LINK_OF_ALL):
            _, _, index, flags, _ = LINK.unpack_from(body)
            name_at = _find(body, LINK.size, IFLA_IFNAME)  # the first one
            name = body[name_at : body.index(0, name_at)].decode()
            if name != "lo":
                at = self._stats_at.get((index, len(body)), 0)
                if not _is_at(body, at, IFLA_STATS64):
                    at = self._stats_at[index, len(body)] = _find(body, LINK.size, IFLA_STATS64)
                rx_packets, tx_packets, rx, tx, _, _, rx_dropped, tx_dropped = _STATS64.unpack_from(body, at)
                up = flags & IFF_UP != 0 and flags & IFF_LOWER_UP != 0
                traffic = (rx, tx, rx_packets, tx_packets, rx_dropped, tx_dropped)
                ports[name] = PortStats(up, traffic, *queues.get(index, (0, 0)))
        return ports


def _queue(body: bytes) -> tuple[int, ...]:
    """Return the counters (as _QUEUE) in a message about a qdisc. ValueError if it has none."""
    return _QUEUE.unpack_from(body, _find(body, _find(body, _QDISC.size, TCA_STATS2), TCA_STATS_QUEUE))


def _is_at(body: bytes, at: int, kind: int) -> bool:
    """Return whether the value of an attribute of this kind begins at this place; 0 is no place."""
    return at > 0 and _ATTRIBUTE.unpack_from(body, at - _ATTRIBUTE.size)[1] & 0x3FFF == kind


def _find(body: bytes, start: int, wanted: int) -> int:
    """Return where the value of an attribute begins. ValueError if there is none from `start` on."""
    while start + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if kind & 0x3FFF == wanted:
            return start + _ATTRIBUTE.size
        start += (length + 3) & ~3
    raise ValueError(f"a netlink message lacks attribute {wanted}")


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
# between two looks: 22 frames of 9000 bytes at 20 Mbit/s, and two at a tenth of that
WINDOW_S: Final = 0.08
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
        for node in nodes:
            sock = namespaces.open_socket(node, socket.SOCK_RAW, socket.AF_NETLINK, NETLINK_SOCK_DIAG)
            self._sockets[node] = sock
        self._snapshots: dict[str, _Snapshot] = {}

    def read(self, node: str) -> dict[str, float | None]:
        """Return bit/s of payload by destination address, over all connections that have something to send just now.

        None where that isn't known yet: ask again after WINDOW_S. Within it, the answer is the same.
        """
        now = time.monotonic()
        last = self._snapshots.get(node)
        if last and now - last.at_s < WINDOW_S:
            return last.rates
        acknowledged = self._read_acknowledged(node)
        before = last if last and now - last.at_s < MAX_AGE_S else _Snapshot(now, {}, {})
        rates = rates_of(before.acknowledged, acknowledged, now - before.at_s)
        self._snapshots[node] = _Snapshot(now, acknowledged, rates)
        return rates

    def _read_acknowledged(self, node: str) -> dict[Connection, int]:
        acknowledged: dict[Connection, int] = {}
        for body in namespaces.dump(self._sockets[node], SOCK_DIAG_BY_FAMILY, _ESTABLISHED_TCP):
            source_port, port, address, _, waiting = _MESSAGE.unpack_from(body)
            if waiting:
                info = dict(namespaces.attributes(body[_MESSAGE_BYTES:])).get(INET_DIAG_INFO, b"")
                if len(info) >= _BYTES_ACKED.size:
                    (acknowledged[source_port, port, address],) = _BYTES_ACKED.unpack_from(info)
        return acknowledged


def rates_of(
    before: Mapping[Connection, int], after: Mapping[Connection, int], seconds: float
) -> dict[str, float | None]:
    """Return bit/s by destination address, from bytes acknowledged; None for one without an earlier measurement."""
    rates: dict[str, float | None] = {}
    for connection, acknowledged in after.items():
        address = socket.inet_ntoa(connection[2])
        rates.setdefault(address, None)
        if connection in before:
            rates[address] = (rates[address] or 0.0) + (acknowledged - before[connection]) * 8 / seconds
    return rates
