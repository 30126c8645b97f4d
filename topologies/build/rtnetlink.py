"""Route changes and route dumps in the bytes that the kernel takes and gives, for the route agent and gpu_setup.py.

A message is 2 to 5 us of work here, and 120 with pyroute2, too much for thousands at once. Layouts: linux/netlink.h and
linux/rtnetlink.h, in the machine's byte order but for addresses.
"""

import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from railyard.topologies.addresses import Gpu, gpu_of_ip
from railyard.topologies.build import namespaces
from railyard.topologies.routing import FROM_HB, MAIN, Device, Hop, Route

RTM_NEWROUTE = 24
RTM_DELROUTE = 25
RTM_GETROUTE = 26
REQUEST = 0x1
ACK = 0x4
CREATE_REPLACE = 0x400 | 0x100
SCOPE_UNIVERSE = 0
SCOPE_LINK = 253
SCOPE_NOWHERE = 255
# flag of a next hop whose GPU is on the link, though no address of the link says so
ONLINK: Final = 4
# marks our routes in `ip route` (proto 99)
PROTOCOL: Final = 99
PROTOCOL_BOOT: Final = 3  # what `ip route` gives to routes
UNICAST: Final = 1
RTA_DST = 1
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_PRIORITY = 6
RTA_PREFSRC = 7
RTA_MULTIPATH = 9

# in one send: a receive buffer of the usual 208 KiB holds 256 answers and loses the rest
BATCH_MESSAGES: Final = 128
# in one send: a send buffer of the usual 208 KiB takes 212,960
BATCH_BYTES: Final = 64 * 1024

_FLAGS: Final = struct.Struct("=H")
_FLAGS_AT: Final = 6  # in a message
_REQUEST_HEADER: Final = struct.Struct("=IHHII 8BI HH4s HHI")  # the header, struct rtmsg, RTA_DST, RTA_PRIORITY
_NUMBER: Final = struct.Struct("=HHI")
_ADDRESS: Final = struct.Struct("=HH4s")
_ATTRIBUTE: Final = struct.Struct("=HH")
NEXT_HOP: Final = struct.Struct("=HBBi")
_ANSWER: Final = struct.Struct("=IHHIIi")


def put_message(route: Route, source: Gpu, index: Mapping[Device, int], sequence: int) -> bytes:
    """Put a route in, in the place of any to the same prefix with the same table and metric, at once.

    `index`: of the interfaces of `source`, where it is put. KeyError for an interface that isn't in it.
    """
    return _pack_put(route, _packed(source), index, sequence, PROTOCOL)


def base_message(route: Route, source: bytes, index: Mapping[Device, int]) -> bytes:
    """Put a base route in, as `ip route replace`. `source`: packed address of the GPU."""
    return _pack_put(route, source, index, 0, PROTOCOL_BOOT)


def source_attribute(address: bytes) -> bytes:
    """Return the part of a message that has its source, a packed address."""
    return _ADDRESS.pack(_ADDRESS.size, RTA_PREFSRC, address)


def _pack_put(route: Route, source: bytes, index: Mapping[Device, int], sequence: int, protocol: int) -> bytes:
    scope = SCOPE_LINK if route.is_on_link else SCOPE_UNIVERSE
    flags = 0
    if len(route.hops) == 1:
        device, via, _ = route.hops[0]
        next_hop_attribute = _NUMBER.pack(_NUMBER.size, RTA_OIF, index[device])
        if via is not None:
            flags = ONLINK
            next_hop_attribute += _ADDRESS.pack(_ADDRESS.size, RTA_GATEWAY, _packed(via))
    else:
        hops = b"".join([_next_hop(hop, index) for hop in route.hops])
        next_hop_attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(hops), RTA_MULTIPATH) + hops
    attributes = source_attribute(source) + next_hop_attribute
    head = _pack_request(route, RTM_NEWROUTE, CREATE_REPLACE, scope, flags, len(attributes), sequence, protocol)
    return head + attributes


def remove_message(route: Route, sequence: int) -> bytes:
    """Remove our route to that prefix with that table and metric, whatever its next hops are by now."""
    return _pack_request(route, RTM_DELROUTE, 0, SCOPE_NOWHERE, 0, 0, sequence)


def batches(messages: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Yield (place of the first message, number of messages, data) of each send; answers fit into the receive buffer.

    Only a send's last message wants an answer. Errors are answered unasked, in the order of messages: when the last
    answer is there, all errors are.
    """
    sizes = list(map(len, messages))
    first = 0
    while first < len(messages):
        end = first + 1
        size = sizes[first]
        while end < len(messages) and end - first < BATCH_MESSAGES and size + sizes[end] <= BATCH_BYTES:
            size += sizes[end]
            end += 1
        data = bytearray().join(messages[first:end])
        flags_at = size - sizes[end - 1] + _FLAGS_AT
        _FLAGS.pack_into(data, flags_at, _FLAGS.unpack_from(data, flags_at)[0] | ACK)
        yield first, end - first, bytes(data)
        first = end


def answer_of(data: bytes) -> tuple[int, int]:
    """Return the sequence number and the errno (0: success) of the kernel's answer to one message."""
    # the kernel sends only NLMSG_ERROR to the messages that are packed here, so its type need not be looked at
    _, _, _, sequence, _, code = _ANSWER.unpack_from(data)
    return sequence, -code


def _pack_request(
    route: Route,
    verb: int,
    verb_flags: int,
    scope: int,
    flags: int,
    attribute_bytes: int,
    sequence: int,
    protocol: int = PROTOCOL,
) -> bytes:
    """The part that all messages have. `attribute_bytes`: length of the attributes that will follow it."""
    address, _, length = route.prefix.partition("/")
    return _REQUEST_HEADER.pack(
        *(_REQUEST_HEADER.size + attribute_bytes, verb, REQUEST | verb_flags, sequence, 0),
        *(socket.AF_INET, int(length), 0, 0, route.table, protocol, scope, UNICAST, flags),
        *(_ADDRESS.size, RTA_DST, socket.inet_aton(address)),
        *(_NUMBER.size, RTA_PRIORITY, route.metric),
    )


def _next_hop(hop: Hop, index: Mapping[Device, int]) -> bytes:
    """struct rtnexthop, which counts a weight from 0."""
    if hop.via is None:
        return NEXT_HOP.pack(NEXT_HOP.size, 0, hop.weight - 1, index[hop.device])
    size = NEXT_HOP.size + _ADDRESS.size
    gateway = _ADDRESS.pack(_ADDRESS.size, RTA_GATEWAY, _packed(hop.via))
    return NEXT_HOP.pack(size, ONLINK, hop.weight - 1, index[hop.device]) + gateway


@cache
def _packed(gpu: Gpu) -> bytes:
    return socket.inet_aton(gpu.ip)


_ROUTE: Final = struct.Struct("=8BI")


def read_routes(sock: socket.socket, sequence: int, index: Mapping[int, Device]) -> list[Route]:
    """Return our routes of all tables. OSError if the kernel refuses to list them.

    `index`: the name of each interface by its number. Routes by another interface are left out. A kernel that checks
    strictly (NETLINK_GET_STRICT_CHK) leaves out others' routes.
    """
    request = _ROUTE.pack(socket.AF_INET, 0, 0, 0, 0, PROTOCOL, 0, 0, 0)
    bodies = namespaces.dump(sock, RTM_GETROUTE, request, sequence)
    return [route for body in bodies if (route := _route_in(body, index))]


def _route_in(body: bytes, index: Mapping[int, Device]) -> Route | None:
    _, length, _, _, table, protocol, _, _, _ = _ROUTE.unpack_from(body)
    attributes = dict(namespaces.attributes(body[_ROUTE.size :]))
    if table not in (MAIN, FROM_HB) or protocol != PROTOCOL or RTA_DST not in attributes:
        return None
    metric = int.from_bytes(attributes.get(RTA_PRIORITY, b""), sys.byteorder)
    prefix = f"{socket.inet_ntoa(attributes[RTA_DST])}/{length}"
    if data := attributes.get(RTA_MULTIPATH):
        hops = list[Hop]()
        at = 0
        while at < len(data):
            size, _, weight, number = NEXT_HOP.unpack_from(data, at)
            if number in index:
                gateway = _gateway(dict(namespaces.attributes(data[at + NEXT_HOP.size : at + size])))
                hops.append(Hop(index[number], gateway, weight + 1))
            # which is a multiple of 4
            at += size
        return Route(prefix, tuple(hops), table, metric) if hops else None
    # no interface has number 0
    device = index.get(int.from_bytes(attributes.get(RTA_OIF, b""), sys.byteorder))
    return Route(prefix, (Hop(device, _gateway(attributes)),), table, metric) if device else None


def _gateway(attributes: Mapping[int, bytes]) -> Gpu | None:
    return gpu_of_ip(socket.inet_ntoa(attributes[RTA_GATEWAY])) if RTA_GATEWAY in attributes else None
