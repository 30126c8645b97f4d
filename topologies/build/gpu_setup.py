"""Configuration of GPUs and shapers in netlink messages, sent in one conversation for each namespace.

What follows from a rank or a rate alone is packed once: a route of table 101, of which a fabric of 128 domains with 8
GPUs each has 910,000, costs 2 us here and 30 us with `ip -batch`. Layouts: linux/rtnetlink.h, linux/neighbour.h,
linux/fib_rules.h and linux/pkt_sched.h.
"""

import errno
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from railyard.core.errors import RailyardError
from railyard.topologies import routing
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import rtnetlink
from railyard.topologies.build.namespaces import HEADER, IFF_UP, LINK, REQUEST_ACK
from railyard.topologies.plan import Plan
from railyard.topologies.routing import FROM_HB, FROM_RAIL, Device, Route

_REQUEST = 0x1
_CREATE = 0x400
_REPLACE = 0x100
_EXCLUSIVE = 0x200
_NEWLINK = 16
_NEWADDR = 20
_NEWNEIGH = 28
_NEWRULE = 32
_NEWQDISC = 36
_NEWTCLASS = 40
_NLMSG_NOOP: Final = 1
# a send buffer of the usual 208 KiB takes 212,960
_SEND_BYTES: Final = 64 * 1024
_LOOPBACK: Final = 1  # index of lo in every namespace
_PERMANENT: Final = 0x80
# state and flag of an entry in a bridge's forwarding table
_STATIC = 0x40
_OF_MASTER = 0x04
_TO_TABLE: Final = 1
_ROOT: Final = 0xFFFFFFFF
_PLACEHOLDER: Final = b"\xff\xff\xff\xff"  # in place of a GPU's own address in messages for several


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, _REQUEST | flags, 0, 0) + body


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def send(parts: Iterable[bytes], node: str) -> int:
    """Send messages in this thread's namespace; return how many sends it took, when all are carried out.

    `parts`: whole messages, up to 64 KB in each. RailyardError with `node` and the first that the kernel refused.
    """
    sends = 0
    data = bytearray()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        for part in parts:
            if len(data) + len(part) > _SEND_BYTES:
                sock.send(data)
                sends += 1
                data = bytearray()
            data += part
        sock.send(data + HEADER.pack(HEADER.size, _NLMSG_NOOP, REQUEST_ACK, 0, 0))
        # errors come first, in the order of messages, and the acknowledgement last
        answer = sock.recv(65536)
    code = -struct.unpack_from("=i", answer, HEADER.size)[0]
    if code:
        kind = struct.unpack_from("=IH", answer, HEADER.size + 4)[1]
        raise RailyardError(
            f"{node}: the kernel refused message {kind} of its set-up: {errno.errorcode.get(code, code)}"
        )
    return sends + 1


def link_up(index: int) -> bytes:
    """Set an interface up."""
    return _message(_NEWLINK, 0, LINK.pack(0, 0, index, IFF_UP, IFF_UP))


def max_joined(index: int, size: int) -> bytes:
    """Limit the packets into which an interface may join received frames, bytes. Kernels before 5.19 ignore it."""
    return _message(_NEWLINK, 0, LINK.pack(0, 0, index, 0, 0) + _attribute(58, struct.pack("=I", size)))


def bridge_message(name: str, mtu: int) -> bytes:
    """Add a bridge without multicast snooping."""
    # kind, data: multicast snooping
    info = _attribute(1, b"bridge\0") + _attribute(2, _attribute(23, b"\0"))
    attributes = _attribute(3, name.encode() + b"\0") + _attribute(4, struct.pack("=I", mtu)) + _attribute(18, info)
    return _message(_NEWLINK, _CREATE | _EXCLUSIVE, LINK.pack(0, 0, 0, 0, 0) + attributes)


def bridge_port_messages(bridge: int, macs: Mapping[int, str]) -> list[bytes]:
    """Set a bridge up and give it ports that learn and flood nothing.

    `macs`: by port, the one that it leads to.
    """
    off = _attribute(4, b"bridge\0") + _attribute(5, _attribute(8, b"\0") + _attribute(9, b"\0"))
    master = _attribute(10, struct.pack("=I", bridge))
    parts = [link_up(bridge)]
    for port, mac in macs.items():
        head = LINK.pack(0, 0, port, 0, 0)
        parts += [
            _message(_NEWLINK, 0, head + master),
            _message(_NEWLINK, 0, head + _attribute(18, off)),
            link_up(port),
        ]
        entry = struct.pack("=BxxxiHBB", socket.AF_BRIDGE, port, _STATIC, _OF_MASTER, 0)
        address = _attribute(2, bytes.fromhex(mac.replace(":", "")))
        parts.append(_message(_NEWNEIGH, _CREATE | _REPLACE, entry + address))
    return parts


def _rule(device: Device, table: int, priority: int) -> bytes:
    head = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, table, 0, 0, _TO_TABLE, 0)
    incoming = _attribute(3, device.encode() + b"\0")
    number = _attribute(6, struct.pack("=I", priority))
    return _message(_NEWRULE, _CREATE | _EXCLUSIVE, head + incoming + number)


def _address(gpu: Gpu) -> bytes:
    address = socket.inet_aton(gpu.ip)
    head = struct.pack("=4BI", socket.AF_INET, 32, 0, 0, _LOOPBACK)
    return _message(_NEWADDR, _CREATE | _EXCLUSIVE, head + _attribute(2, address) + _attribute(1, address))


class GpuSetup:
    """Messages that set up the GPUs of a fabric, as `routing.gpu_commands` says in text.

    `index`: interface index of each device, the same at every GPU.
    `backups`: whether to add backup routes.
    """

    def __init__(self, plan: Plan, backups: bool, index: Mapping[Device, int]) -> None:
        self._plan = plan
        self._backups = backups
        self._index = index
        self._carried: dict[tuple[int, int], bytes] = {}
        self._neighbours: dict[tuple[Gpu, Device], bytes] = {}

    def messages(self, gpu: Gpu) -> list[bytes]:
        """Return the messages of one GPU, once its interfaces exist."""
        plan = self._plan
        index = self._index
        parts = [link_up(_LOOPBACK), _address(gpu)]
        parts += [link_up(index[device]) for device in plan.devices]
        parts.append(_rule("hb0", FROM_HB, 100))
        parts += [_rule(device, FROM_RAIL, 101) for device in plan.devices[1:]]
        parts += [self._neighbour(neighbour, device) for neighbour, device in routing.neighbours(plan, gpu)]
        routes = [*routing.source_routes(plan, gpu), *routing.local_transit_routes(plan, gpu)]
        if self._backups:
            routes += routing.backup_routes(plan, gpu)
        address = socket.inet_aton(gpu.ip)
        parts += self._packed(routes, address)
        # these routes are the same for all GPUs of a rank but for their source
        placeholder = rtnetlink.source_attribute(_PLACEHOLDER)
        source = rtnetlink.source_attribute(address)
        for domain in range(plan.spec.domains):
            if domain != gpu.domain:
                parts.append(self._carried_to(gpu.rank, domain).replace(placeholder, source))
        return parts

    def _packed(self, routes: Iterable[Route], source: bytes) -> list[bytes]:
        return [rtnetlink.base_message(route, source, self._index) for route in routes]

    def _carried_to(self, rank: int, domain: int) -> bytes:
        key = (rank, domain)
        if key not in self._carried:
            routes = routing.over_planes(routing.carried_routes(self._plan, rank, domain), self._plan)
            self._carried[key] = b"".join(self._packed(routes, _PLACEHOLDER))
        return self._carried[key]

    def _neighbour(self, neighbour: Gpu, device: Device) -> bytes:
        key = (neighbour, device)
        if key not in self._neighbours:
            head = struct.pack("=BxxxiHBB", socket.AF_INET, self._index[device], _PERMANENT, 0, 0)
            mac = bytes.fromhex(neighbour.mac_of(device).replace(":", ""))
            body = head + _attribute(1, socket.inet_aton(neighbour.ip)) + _attribute(2, mac)
            self._neighbours[key] = _message(_NEWNEIGH, _CREATE | _REPLACE, body)
        return self._neighbours[key]


_QDISC: Final = re.compile(r"qdisc add dev (\S+) root handle 1: htb default (\d+)")
_CLASS: Final = re.compile(
    r"class add dev (\S+) parent 1:(\d*) classid 1:(\d+) htb rate (\d+)bit ceil (\d+)bit burst (\d+)b cburst (\d+)b"
    r"(?: prio (\d+))? quantum (\d+)"
)


def shaper_messages(commands: str) -> list[bytes] | None:
    """Return messages for lines of `tc -batch` in this thread's namespace; None if they have more than HTB classes."""
    parts = []
    for line in commands.splitlines():
        match = _QDISC.fullmatch(line) or _CLASS.fullmatch(line)
        if not match:
            return None
        device, *words = match.groups()
        numbers = [int(word or 0) for word in words]
        pack = _htb_class if len(numbers) > 1 else _htb_qdisc
        parts.append(pack(socket.if_nametoindex(device), *numbers))
    return parts


@cache
def _htb_qdisc(index: int, default: int) -> bytes:
    # version, rate2quantum, default class
    options = _attribute(2, struct.pack("=5I", 3, 10, default, 0, 0))
    return _traffic_control(_NEWQDISC, index, 0x10000, _ROOT, options)


@cache
def _htb_class(
    index: int, parent: int, number: int, rate: int, ceil: int, burst: int, ceil_burst: int, priority: int, quantum: int
) -> bytes:
    rate_bytes = rate // 8
    ceil_bytes = ceil // 8
    specs = _rate_spec(rate_bytes) + _rate_spec(ceil_bytes)
    times = (_ticks(burst, rate_bytes), _ticks(ceil_burst, ceil_bytes))
    options = _attribute(1, specs + struct.pack("=5I", *times, quantum, 0, priority))
    # rates that don't fit into 32 bits have attributes of their own
    if rate_bytes > _ROOT:
        options += _attribute(6, struct.pack("=Q", rate_bytes))
    if ceil_bytes > _ROOT:
        options += _attribute(7, struct.pack("=Q", ceil_bytes))
    return _traffic_control(_NEWTCLASS, index, 0x10000 + number, 0x10000 + parent, options)


def _rate_spec(bytes_per_s: int) -> bytes:
    """Return a struct tc_ratespec of Ethernet; the kernel needs no rate tables then."""
    return struct.pack("=BBHhHI", 0, 1, 0, -1, 0, min(bytes_per_s, _ROOT))


def _traffic_control(kind: int, index: int, handle: int, parent: int, options: bytes) -> bytes:
    head = struct.pack("=BxxxiIII", socket.AF_UNSPEC, index, handle, parent, 0)
    return _message(kind, _CREATE | _EXCLUSIVE, head + _attribute(1, b"htb\0") + _attribute(2, options))


@cache
def _ticks_per_us() -> float:
    to_us, from_us = (int(word, 16) for word in Path("/proc/net/psched").read_text().split()[:2])
    return to_us / from_us


def _ticks(size: int, rate: int) -> int:
    """Return the time that bytes take at a rate (bytes/s), in the packet scheduler's clock, as `tc` computes it."""
    return int(int(1e6 * size / rate) * _ticks_per_us())
