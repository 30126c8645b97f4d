"""Differences that faults leave behind are found and named, in any order of kernel entries."""

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from railyard.failure.analysis.state_snapshot import (
    CLONED,
    PERMANENT,
    UNICAST,
    interface,
    neighbour,
    route,
    rules,
    state_differences,
    summarize,
)

HAD = {"d0g0": frozenset({"route a", "route b"}), "rail0": frozenset({"interface d0g0, set up"})}
NAMES = {7: "rail0"}
node_marks = st.frozensets(st.sampled_from(["route a", "route b", "route c", "interface x"]))
fabrics = st.fixed_dictionaries({"d0g0": node_marks, "hb0": node_marks, "rail0": node_marks})


def test_unchanged_state_has_no_differences() -> None:
    assert state_differences(HAD, dict(reversed(HAD.items()))) == []


def test_added_and_removed_state_is_named_by_node() -> None:
    now = {"rail0": frozenset({"interface d0g0, set down"}), "d0g0": HAD["d0g0"] | {"route detour"}}
    assert state_differences(HAD, now) == [
        "d0g0 still has route detour",
        "rail0 still has interface d0g0, set down",
        "rail0 still lacks interface d0g0, set up",
    ]


def test_many_are_named_in_part_and_counted() -> None:
    assert summarize(["a", "b", "c"]) == "a; b; c"
    assert summarize(["a", "b", "c", "d", "e"]) == "a; b; c (and 2 more)"


@given(before=fabrics, now=fabrics)
def test_each_difference_has_one_line(before: dict[str, frozenset[str]], now: dict[str, frozenset[str]]) -> None:
    differ = sum(len(before[node] ^ now[node]) for node in before)
    assert len(set(state_differences(before, now))) == differ


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data.ljust((len(data) + 3) & ~3, b"\0")


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def address(kind: int, ip: str) -> bytes:
    return attribute(kind, socket.inet_aton(ip))


def route_body(flags: int = 0, kind: int = UNICAST, via: bool = True) -> bytes:
    """To 198.18.1.1/32 by rail0, in table 101, which a byte holds as well as the attribute."""
    head = struct.pack("=8BI", socket.AF_INET, 32, 0, 0, 101, 99, 0, kind, flags)
    hop = address(5, "198.18.0.2") if via else b""
    return head + number(15, 101) + address(1, "198.18.1.1") + number(6, 20) + hop + number(4, 7)


def test_route_reads_as_ip_prints_it_with_or_without_carrier() -> None:
    line = "route 198.18.1.1/32 via 198.18.0.2 dev rail0 table 101 metric 20"
    linkdown = 16
    assert route(route_body(), NAMES) == route(route_body(linkdown), NAMES) == line
    assert route(route_body(via=False), NAMES) == line.replace(" via 198.18.0.2", "")


def test_state_made_by_the_kernel_is_ignored() -> None:
    local, reachable = 2, 2
    assert route(route_body(CLONED), NAMES) == route(route_body(kind=local), NAMES) == ""
    assert neighbour(neighbour_body(reachable), NAMES) == ""


def neighbour_body(state: int) -> bytes:
    head = struct.pack("=BxxxiHBB", socket.AF_INET, 7, state, 0, UNICAST)
    return head + address(1, "198.18.1.1") + attribute(2, bytes.fromhex("025200010000"))


def test_neighbours_interfaces_and_tables_are_read() -> None:
    assert neighbour(neighbour_body(PERMANENT), NAMES) == "neighbour 198.18.1.1 lladdr 02:52:00:01:00:00 dev rail0"
    named = attribute(3, b"rail0\0")
    up, down = (struct.pack("=BxHiII", 0, 1, 7, flags, 0) + named for flags in (0x1043, 0x1002))
    assert interface(up) == "interface rail0, set up"
    assert interface(down + number(27, 13)) == "interface rail0, set down, group 13"
    assert interface(up + number(27, 0)) == "interface rail0, set up"
    assert rules(struct.pack("=BBH", 5, 0, 0) + attribute(1, b"lossy_rail0\0")) == "nftables' table lossy_rail0"
