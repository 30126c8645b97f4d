"""Routes as the kernel tells them: what asks for all of them, and what is in its answer. Sockets are the agent's.

Layouts: linux/netlink.h and linux/rtnetlink.h, as in rtnetlink.py, which packs what changes routes.
"""

import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from railyard.controller.agent.rtnetlink import (
    NEXT_HOP,
    PROTOCOL,
    REQUEST,
    RTA_DST,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_OIF,
    RTA_PRIORITY,
    RTM_NEWROUTE,
)
from railyard.topologies.addresses import Gpu, gpu_of_ip
from railyard.topologies.routing import FROM_HB, MAIN, AnyRoute, Device, Hop, Route, SpreadRoute

RTM_GETROUTE: Final = 26
DUMP: Final = 0x300
DONE: Final = 3
ERROR: Final = 2
_DUMP_REQUEST: Final = struct.Struct("=IHHII 8BI")  # the header, struct rtmsg
_HEADER: Final = struct.Struct("=IHHII")
_ROUTE: Final = struct.Struct("=8BI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NUMBER: Final = struct.Struct("=I")
_CODE: Final = struct.Struct("=i")
_ALIGN: Final = 4


def dump_request(sequence: int) -> bytes:
    """Ask for all tables. A kernel that checks strictly (NETLINK_GET_STRICT_CHK) leaves out others' routes."""
    header = (_DUMP_REQUEST.size, RTM_GETROUTE, REQUEST | DUMP, sequence, 0)
    return _DUMP_REQUEST.pack(*header, socket.AF_INET, 0, 0, 0, 0, PROTOCOL, 0, 0, 0)


def answer_in(data: bytes, sequence: int, index: Mapping[int, Device]) -> tuple[list[AnyRoute], bool]:
    """Our routes in one part of the answer to that question, and whether it was the last. OSError if it is a refusal.

    `index`: the name of each interface by its number. Routes by another interface are left out.
    """
    found, is_last = list[AnyRoute](), False
    for kind, number, body in _messages(data):
        if number != sequence:  # of a question that was interrupted
            continue
        if kind == ERROR:
            (code,) = _CODE.unpack_from(body)
            raise OSError(-code, "the kernel does not tell its routes")
        is_last = is_last or kind == DONE
        if kind == RTM_NEWROUTE and (route := _route_in(body, index)):
            found.append(route)
    return found, is_last


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(type, sequence number, body) of each."""
    at = 0
    while at < len(data):
        size, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
        yield kind, sequence, data[at + _HEADER.size : at + size]
        at += _aligned(size)


def _route_in(body: bytes, index: Mapping[int, Device]) -> AnyRoute | None:
    _, length, _, _, table, protocol, _, _, _ = _ROUTE.unpack_from(body)
    attributes = dict(_attributes(body[_ROUTE.size :]))
    if table not in (MAIN, FROM_HB) or protocol != PROTOCOL or RTA_DST not in attributes:
        return None
    metric = _number(attributes[RTA_PRIORITY]) if RTA_PRIORITY in attributes else 0
    prefix = f"{socket.inet_ntoa(attributes[RTA_DST])}/{length}"
    if RTA_MULTIPATH in attributes:
        hops = tuple(_hops(attributes[RTA_MULTIPATH], index))
        return SpreadRoute(prefix, hops, table, metric) if hops else None
    device = index.get(_number(attributes[RTA_OIF])) if RTA_OIF in attributes else None
    return Route(prefix, device, _gateway(attributes), table, metric) if device else None


def _hops(data: bytes, index: Mapping[int, Device]) -> Iterator[Hop]:
    """Yield the next hops of an RTA_MULTIPATH."""
    at = 0
    while at < len(data):
        size, _, weight, number = NEXT_HOP.unpack_from(data, at)
        if number in index:
            attributes = dict(_attributes(data[at + NEXT_HOP.size : at + size]))
            yield Hop(index[number], _gateway(attributes), weight + 1)
        at += _aligned(size)


def _gateway(attributes: Mapping[int, bytes]) -> Gpu | None:
    return gpu_of_ip(socket.inet_ntoa(attributes[RTA_GATEWAY])) if RTA_GATEWAY in attributes else None


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        yield kind, data[at + _ATTRIBUTE.size : at + size]
        at += _aligned(size)


def _number(data: bytes) -> int:
    (value,) = _NUMBER.unpack(data)
    return int(value)


def _aligned(size: int) -> int:
    return (size + _ALIGN - 1) & ~(_ALIGN - 1)
