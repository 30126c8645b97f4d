"""Route messages, byte for byte as pyroute2 encodes them, and batches that every buffer can take."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from benchmarks.route_changes import pyroute2_message
from railyard.topologies.addresses import Gpu, rank_prefixes
from railyard.topologies.build import rtnetlink
from railyard.topologies.build.rtnetlink import ACK, BATCH_BYTES, BATCH_MESSAGES, RTM_DELROUTE, answer_of, batches
from railyard.topologies.routing import Device, Hop, Route, host_prefix

gpus = st.builds(Gpu, st.integers(0, 1023), st.integers(0, 255))
devices = st.sampled_from(("hb0", "rail0"))
prefixes = st.one_of(gpus.map(host_prefix), st.integers(0, 255).map(lambda rank: rank_prefixes(rank, 2)[0]))
tables, metrics = st.integers(1, 255), st.integers(1, 2**32 - 1)
one_hop = st.tuples(st.builds(Hop, devices, st.none() | gpus, st.just(1)))
weighted_hops = st.builds(Hop, devices, st.none() | gpus, st.integers(1, 256))
several_hops = st.lists(weighted_hops, min_size=2, max_size=16).map(tuple)
routes = st.builds(Route, prefixes, one_hop | several_hops, tables, metrics)
indices = st.fixed_dictionaries({"hb0": st.integers(1, 2**31 - 1), "rail0": st.integers(1, 2**31 - 1)})
sequences = st.integers(0, 2**32 - 1)
HEADER = struct.Struct("=IHHII")


@given(route=routes, source=gpus, index=indices, sequence=sequences)
def test_a_route_is_packed_as_pyroute2_does(route: Route, source: Gpu, index: dict[Device, int], sequence: int) -> None:
    packed = rtnetlink.put_message(route, source, index, sequence)
    assert packed == pyroute2_message(route, source, index, sequence)


@given(route=routes, sequence=sequences)
def test_removal_names_prefix_table_and_metric_alone(route: Route, sequence: int) -> None:
    packed = rtnetlink.remove_message(route, sequence)
    text = rtmsg(packed)
    text.decode()
    assert (text["header"]["type"], text["header"]["length"]) == (RTM_DELROUTE, len(packed))
    assert text["header"]["sequence_number"] == sequence
    assert (text["family"], text["table"]) == (socket.AF_INET, route.table)
    assert text["scope"] == rtnetlink.SCOPE_NOWHERE  # any
    assert text["proto"] == rtnetlink.PROTOCOL  # and no other
    address, length = route.prefix.split("/")
    assert (dict(text["attrs"]), text["dst_len"]) == ({"RTA_DST": address, "RTA_PRIORITY": route.metric}, int(length))


@given(sizes=st.lists(st.integers(4, 5000).map(lambda size: size * 4), max_size=400))
def test_batches_keep_order_fit_and_request_one_answer(sizes: list[int]) -> None:
    messages = [HEADER.pack(size, 24, 1, i, 0) + bytes(size - HEADER.size) for i, size in enumerate(sizes)]
    seen: list[tuple[int, int]] = []
    for first, count, data in batches(messages):
        assert first == len(seen)
        assert count <= BATCH_MESSAGES
        assert len(data) <= BATCH_BYTES
        at, flags = 0, list[int]()
        while at < len(data):
            size, _, flag, sequence, _ = HEADER.unpack_from(data, at)
            seen.append((sequence, size))
            flags.append(flag)
            at += size
        assert flags == [1] * (count - 1) + [1 | ACK]
    assert seen == list(enumerate(sizes))


def test_few_batches_are_cut() -> None:
    route = Route("198.18.0.1/32", tuple(Hop("hb0", Gpu(0, rank)) for rank in range(256)))  # the largest fabric
    message = rtnetlink.put_message(route, Gpu(1, 0), {"hb0": 2, "rail0": 3}, 7)
    assert [count for _, count, _ in batches([message] * 40)] == [15, 15, 10]
    small = rtnetlink.remove_message(route, 7)
    assert [count for _, count, _ in batches([small] * 300)] == [128, 128, 44]
    assert list(batches([])) == []


def test_answer_has_its_request_and_result() -> None:
    assert answer_of(struct.pack("=IHHIIiIHHII", 36, 2, 0x100, 4_000_000_000, 1, 0, 68, 24, 5, 9, 0))[1] == 0
    bad = answer_of(struct.pack("=IHHIIiIHHII", 36, 2, 0x100, 4_000_000_000, 1, -22, 68, 24, 5, 9, 0))
    assert bad == (4_000_000_000, 22)


def test_an_interface_that_the_gpu_lacks_is_not_packed() -> None:
    with pytest.raises(KeyError, match="rail0"):
        rtnetlink.put_message(Route("198.18.0.1/32", (Hop("rail0"),)), Gpu(0, 0), {"hb0": 2}, 1)


@pytest.mark.parametrize(
    ("hops", "text"),
    [
        ((), "needs a next hop"),
        ((Hop("hb0"), Hop("rail0", weight=0)), "198.18.2.1/32: weights must be 1 to 256"),
        ((Hop("hb0", Gpu(0, 1), 257),), "198.18.2.1/32: weights must be 1 to 256"),
    ],
)
def test_a_spread_route_that_no_kernel_takes_is_refused(hops: tuple[Hop, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Route("198.18.2.1/32", hops)
