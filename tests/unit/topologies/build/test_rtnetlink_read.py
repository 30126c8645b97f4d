"""Routes as the kernel tells them: whatever was packed to be put is read as the same again, and nothing else is."""

import errno
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from railyard.topologies.addresses import Gpu, rank_prefixes
from railyard.topologies.build.namespaces import NLMSG_DONE, NLMSG_ERROR, REQUEST_DUMP
from railyard.topologies.build.rtnetlink import RTM_GETROUTE, put_message, read_routes
from railyard.topologies.routing import FROM_HB, FROM_RAIL, MAIN, Device, Hop, Route, host_prefix

INDEX: dict[Device, int] = {"hb0": 7, "rail0": 1_000_001}
NAMES = {number: name for name, number in INDEX.items()}
SOURCE = Gpu(0, 0)
HEADER = struct.Struct("=IHHII")

gpus = st.builds(Gpu, st.integers(0, 1023), st.integers(0, 255))
prefixes = st.one_of(gpus.map(host_prefix), st.integers(0, 255).map(lambda rank: rank_prefixes(rank, 2)[0]))
devices, tables, metrics = (
    st.sampled_from(("hb0", "rail0")),
    st.sampled_from((MAIN, FROM_HB)),
    st.integers(1, 2**32 - 1),
)
one_hop = st.tuples(st.builds(Hop, devices, st.none() | gpus, st.just(1)))
weighted_hops = st.builds(Hop, devices, st.none() | gpus, st.integers(1, 256))
several_hops = st.lists(weighted_hops, min_size=2, max_size=9).map(tuple)
routes = st.builds(Route, prefixes, one_hop | several_hops, tables, metrics)


def message(kind: int, sequence: int, body: bytes = b"\0\0\0\0") -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, 2, sequence, 0) + body


DONE = message(NLMSG_DONE, 5)


def read(*datagrams: bytes) -> tuple[list[Route], bytes]:
    """Return the routes read from a kernel that answers with these datagrams, and the question that it got."""
    kernel, agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, agent:
        for datagram in datagrams:
            kernel.send(datagram)
        return read_routes(agent, 5, NAMES), kernel.recv(4096)


@given(reported=st.lists(routes, min_size=1, max_size=5), is_last_apart=st.booleans())
def test_written_attributes_are_read(reported: list[Route], is_last_apart: bool) -> None:
    data = b"".join(put_message(route, SOURCE, INDEX, 5) for route in reported)
    assert read(*((data, DONE) if is_last_apart else (data + DONE,)))[0] == reported


def test_foreign_routes_tables_and_interfaces_are_left_out() -> None:
    prefix = host_prefix(Gpu(1, 0))
    ours = Route(prefix, (Hop("rail0"),), metric=10)
    left_out = [
        put_message(Route(prefix, (Hop("rail0"),), metric=10, table=FROM_RAIL), SOURCE, INDEX, 5),
        put_message(Route(prefix, (Hop("rail0"),), metric=11), SOURCE, {"rail0": 99}, 5),
        put_message(Route(prefix, (Hop("rail0"),), metric=12), SOURCE, INDEX, 4),  # an answer to an older question
    ]
    foreign = bytearray(put_message(Route(prefix, (Hop("rail0"),), metric=13), SOURCE, INDEX, 5))
    foreign[HEADER.size + 5] = 3  # struct rtmsg's protocol: `ip route` itself
    data = b"".join([*left_out, bytes(foreign), put_message(ours, SOURCE, INDEX, 5)])
    assert read(data, DONE)[0] == [ours]


def test_a_refusal_is_an_error() -> None:
    with pytest.raises(OSError, match="EPERM") as caught:
        read(message(NLMSG_ERROR, 5, struct.pack("=i", -errno.EPERM)))
    assert caught.value.errno == errno.EPERM


def test_request_asks_for_own_routes_of_all_tables() -> None:
    _, request = read(DONE)
    text = rtmsg(request)
    text.decode()
    header = text["header"]
    assert (header["type"], header["flags"], header["sequence_number"]) == (RTM_GETROUTE, REQUEST_DUMP, 5)
    assert header["length"] == len(request)
    assert (text["table"], text["proto"], text["dst_len"], text["scope"]) == (0, 99, 0, 0)
