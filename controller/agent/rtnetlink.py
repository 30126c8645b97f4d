"""Route changes as the kernel takes them: what is asked, packed into bytes, and its answers. Sockets are the agent's.

A message is 2 to 5 us of work here, and 120 with pyroute2, too much for thousands at once. Layouts: linux/netlink.h and
linux/rtnetlink.h, in the machine's byte order but for addresses.
"""

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from railyard.topologies.addresses import Gpu
from railyard.topologies.routing import AnyRoute, Device, Hop, Route

RTM_NEWROUTE: Final = 24
RTM_DELROUTE: Final = 25
REQUEST: Final = 0x1
ACK: Final = 0x4
CREATE_REPLACE: Final = 0x400 | 0x100
ONLINK: Final = 4  # of a next hop: its GPU is on the link, though no address of the link says so
PROTOCOL: Final = 99  # marks our routes in `ip route` (proto 99)
SCOPE_UNIVERSE: Final = 0
SCOPE_LINK: Final = 253
SCOPE_NOWHERE: Final = 255
UNICAST: Final = 1
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_MULTIPATH = 1, 4, 5, 6, 7, 9

BATCH_MESSAGES: Final = 128
"""In one send: a receive buffer of the usual 208 KiB holds 256 answers, and loses what comes on top."""
BATCH_BYTES: Final = 64 * 1024
"""In one send: a send buffer of the usual 208 KiB takes 212,960."""

_HEADER: Final = struct.Struct("=IHHII")
_FLAGS: Final = struct.Struct("=H")
_FLAGS_AT: Final = 6  # in a message
_REQUEST_HEADER: Final = struct.Struct("=IHHII 8BI HH4s HHI")  # the header, struct rtmsg, RTA_DST, RTA_PRIORITY
_NUMBER: Final = struct.Struct("=HHI")
_ADDRESS: Final = struct.Struct("=HH4s")
_ATTRIBUTE: Final = struct.Struct("=HH")
NEXT_HOP: Final = struct.Struct("=HBBi")
_ANSWER: Final = struct.Struct("=IHHIIi")


class Answer(NamedTuple):
    """The kernel's to the message of that sequence number. `errno`: 0 for well done."""

    sequence: int
    errno: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages for one send: `count` of those that were to be cut, from place `first`. Only the last wants an answer.

    Errors are answered unasked, in the order of messages; so when the last one's answer is there, all errors are.
    """

    first: int
    count: int
    data: bytes


def put_message(route: AnyRoute, source: Gpu, index: Mapping[Device, int], sequence: int) -> bytes:
    """Put a route in, in the place of any to the same prefix with the same table and metric, at once.

    `index`: of the interfaces of `source`, where it is put. KeyError for an interface that isn't in it.
    """
    scope, flags = SCOPE_UNIVERSE, 0
    if isinstance(route, Route):
        next_hop_attribute = _NUMBER.pack(_NUMBER.size, RTA_OIF, index[route.device])
        if route.via is None:
            scope = SCOPE_LINK
        else:
            flags = ONLINK
            next_hop_attribute += _ADDRESS.pack(_ADDRESS.size, RTA_GATEWAY, _packed(route.via))
    else:
        scope = SCOPE_LINK if route.is_on_link else SCOPE_UNIVERSE
        hops = b"".join([_next_hop(hop, index) for hop in route.hops])
        next_hop_attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(hops), RTA_MULTIPATH) + hops
    rest = _ADDRESS.pack(_ADDRESS.size, RTA_PREFSRC, _packed(source)) + next_hop_attribute
    return _pack_request(route, RTM_NEWROUTE, CREATE_REPLACE, scope, flags, len(rest), sequence) + rest


def remove_message(route: AnyRoute, sequence: int) -> bytes:
    """Remove our route to that prefix with that table and metric, whatever its next hops are by now."""
    return _pack_request(route, RTM_DELROUTE, 0, SCOPE_NOWHERE, 0, 0, sequence)


def batches(messages: Sequence[bytes]) -> Iterator[Batch]:
    """Cut into what one send takes, and whose answers fit into the receive buffer even if all are errors."""
    first = size = 0
    for place, message in enumerate(messages):
        if place > first and (place - first == BATCH_MESSAGES or size + len(message) > BATCH_BYTES):
            yield _batch(messages, first, place)
            first, size = place, 0
        size += len(message)
    if messages:
        yield _batch(messages, first, len(messages))


def answer_of(data: bytes) -> Answer:
    """What the kernel says to one message. (It sends nothing but NLMSG_ERROR to those that are packed here.)"""
    _, _, _, sequence, _, code = _ANSWER.unpack_from(data)
    return Answer(sequence, -code)


def _pack_request(
    route: AnyRoute, verb: int, verb_flags: int, scope: int, flags: int, rest: int, sequence: int
) -> bytes:
    """The part that all messages have. `rest`: bytes that will follow."""
    address, _, length = route.prefix.partition("/")
    return _REQUEST_HEADER.pack(
        *(_REQUEST_HEADER.size + rest, verb, REQUEST | verb_flags, sequence, 0),
        *(socket.AF_INET, int(length), 0, 0, route.table, PROTOCOL, scope, UNICAST, flags),
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


def _batch(messages: Sequence[bytes], first: int, end: int) -> Batch:
    data = bytearray().join(messages[first:end])
    flags_at = len(data) - len(messages[end - 1]) + _FLAGS_AT
    _FLAGS.pack_into(data, flags_at, _FLAGS.unpack_from(data, flags_at)[0] | ACK)
    return Batch(first, end - first, bytes(data))


@cache
def _packed(gpu: Gpu) -> bytes:
    return socket.inet_aton(gpu.ip)
