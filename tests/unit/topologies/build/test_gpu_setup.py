"""Messages that set up GPUs and shapers: as many as the lines of `ip -batch`, packed once for a whole rank."""

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from railyard.topologies import routing
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import gpu_setup, rtnetlink
from railyard.topologies.build.gpu_setup import GpuSetup, bridge_port_messages, shaper_messages
from railyard.topologies.build.shaping import heartbeat_lane_commands, htb_commands
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.routing import Device, Route, gpu_commands
from railyard.topologies.spec import parse_fabric

INDEX = {"hb0": 2, "rail0": 3, "rail1": 4}
KINDS = {16: "link", 20: "addr", 24: "route", 28: "neigh", 32: "rule"}


def plan(**spec: Any) -> Plan:
    return make_plan(parse_fabric({"kind": "rail-only", "domains": 3, "rails": 3, **spec}), 10**8)


def split(parts: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    data = b"".join(parts)
    while data:
        length, kind = struct.unpack_from("=IH", data)
        yield KINDS[kind], data[:length]
        data = data[length:]


@pytest.mark.parametrize("spec", [{}, {"policy": "rd"}, {"kind": "rail-optimized"}, {"kind": "dual-plane"}])
def test_each_command_has_one_message(spec: dict[str, Any]) -> None:
    fabric = plan(**spec)
    setup = GpuSetup(fabric, True, INDEX)
    for gpu in fabric.gpus:
        lines = gpu_commands(fabric, gpu, True).splitlines()
        found = [kind for kind, _ in split(setup.messages(gpu))]
        assert sorted(found) == sorted(line.split()[0] for line in lines)


def test_every_route_has_the_source_of_its_gpu() -> None:
    fabric = plan()
    setup = GpuSetup(fabric, True, INDEX)
    for gpu in fabric.gpus:
        source = rtnetlink.source_attribute(socket.inet_aton(gpu.ip))
        assert all(source in data for kind, data in split(setup.messages(gpu)) if kind == "route")


def test_routes_of_a_rank_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, pack = list[Route](), rtnetlink.base_message

    def counted(route: Route, source: bytes, index: Mapping[Device, int]) -> bytes:
        packed.append(route)
        return pack(route, source, index)

    monkeypatch.setattr(rtnetlink, "base_message", counted)
    fabric = plan(domains=64, rails=4)
    setup = GpuSetup(fabric, True, INDEX)
    for domain in range(64):
        setup.messages(Gpu(domain, 0))
    assert len(packed) <= 64 * 3 + 64 * 12


@pytest.mark.parametrize("spec", [{}, {"kind": "rail-optimized"}])
def test_only_pairs_forwarded_and_the_rail_add_messages(spec: dict[str, Any]) -> None:
    """Twice the domains: no further message but a neighbour and K-1 routes of table 101 for each other domain."""
    counts = []
    for domains in (16, 32):
        fabric = plan(domains=domains, rails=4, **spec)
        found = [kind for kind, _ in split(GpuSetup(fabric, True, INDEX).messages(Gpu(1, 2)))]
        neighbours = len(routing.neighbours(fabric, Gpu(1, 2)))
        counts.append(len(found) - neighbours - (domains - 1) * 3)
    assert counts[0] == counts[1]


def test_only_plain_htb_classes_are_packed() -> None:
    commands = htb_commands("lo", 10**8, 9000)
    messages = shaper_messages(commands)
    assert messages is not None
    assert len(messages) == len(commands.splitlines())
    assert shaper_messages(commands + heartbeat_lane_commands("lo", 9000)) is None


def test_ticks_equal_the_ticks_of_tc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_setup, "_ticks_per_us", lambda: 15.625)
    assert gpu_setup._ticks(18_028, 2_500_000) == 112_671  # 7,211 us


def test_bridge_takes_four_messages_for_each_port() -> None:
    macs = {number: Gpu(0, number).mac("hb") for number in range(2, 10)}
    messages = list(split(bridge_port_messages(1, macs)))
    assert [kind for kind, _ in messages] == ["link"] + ["link", "link", "link", "neigh"] * 8
    assert all(
        bytes.fromhex(mac.replace(":", "")) in data
        for mac, (_, data) in zip(macs.values(), messages[4::4], strict=True)
    )
