"""What the reader of port counters says, against what ip and tc say of the same interfaces.

box: near (shaped to 8 kbit/s) ====== far          lone (its other end is down)
"""

import json
import socket
from collections import Counter
from typing import Any

import pytest

from railyard.topologies.build import namespaces
from railyard.topologies.measure.counters import TRAFFIC, PortReader, PortStats, queue_drops
from tests.emulation.fabrics import eventually

pytestmark = pytest.mark.sandbox

BUILD = """link add near type veth peer name far
link set near up
link set far up
link add lone type veth peer name other
link set lone up
addr add 198.18.0.1/24 dev near
neigh add 198.18.0.2 dev near lladdr 02:48:00:00:00:00 nud permanent
"""
SHAPE = """qdisc add dev near root handle 1: htb default 1
class add dev near parent 1: classid 1:1 htb rate 8kbit burst 2k
qdisc add dev near parent 1:1 pfifo limit 10
"""


def say(*argv: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(namespaces.run(argv))
    return found


def read_by_programs(name: str) -> PortStats:
    """The same from `ip` and `tc`."""
    link = next(entry for entry in say("ip", "-s", "-s", "-j", "link") if entry["ifname"] == name)
    rx, tx = link["stats64"]["rx"], link["stats64"]["tx"]
    queue = next(entry for entry in say("tc", "-s", "-j", "qdisc", "show", "dev", name) if entry.get("root"))
    traffic = (rx["bytes"], tx["bytes"], rx["packets"], tx["packets"], rx["dropped"], tx["dropped"])
    return PortStats("LOWER_UP" in link["flags"], traffic, queue["backlog"], queue["drops"])


def test_the_reader_and_the_kernels_own_programs_agree() -> None:
    namespaces.create(["box", "empty"])
    with namespaces.inside("box"):
        namespaces.set_sysctl("net/ipv6/conf/default/disable_ipv6", 1)
        namespaces.run(["ip", "-batch", "-"], BUILD)
        namespaces.run(["tc", "-batch", "-"], SHAPE)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(40):
                sender.sendto(bytes(900), ("198.18.0.2", 9))
        reader = PortReader(["box", "empty"])
        seen = reader.read()
        # a frame may leave between the two looks
        eventually(lambda: reader.read()["box"]["near"] == read_by_programs("near"))
        dropped = Counter[str]()
        for queue in say("tc", "-s", "-j", "qdisc", "show"):
            dropped[queue["dev"]] += queue["drops"]
        assert queue_drops() == dropped
        assert dropped.total() > 0
    assert seen.keys() == {"box", "empty"}
    assert seen["empty"] == {}
    assert seen["box"].keys() == {"near", "far", "lone", "other"}
    assert (seen["box"]["lone"].up, seen["box"]["other"].up) == (False, False)
    near = dict(zip(TRAFFIC, seen["box"]["near"].traffic, strict=True))
    assert near["tx_packets"] > 0
    assert seen["box"]["near"].backlog_bytes > 5000
    assert seen["box"]["near"].queue_dropped > 10
    reader.close()
