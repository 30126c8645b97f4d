"""Choice of spines: hashed connections spread, each stays on one, and none goes by a dead spine or cable."""

import socket
import time

import pytest

from railyard.topologies.addresses import Gpu
from tests.emulation.fabrics import Fabric, build, eventually

pytestmark = pytest.mark.sandbox
SRC, DST = Gpu(0, 0), Gpu(1, 1)
MANY = 48


def went_up(fabric: Fabric, before: dict[int, int], dead: int = 0) -> dict[int, int]:
    """Packets that rail0 has sent to each spine since then."""
    return {spine: count - before[spine] for spine, count in fabric.packets_to_spines(dead=dead).items()}


def spread_of_many(fabric: Fabric, dead: int = 0) -> dict[int, int]:
    """Make many connections, and tell which spines their packets went to."""
    before = fabric.packets_to_spines(dead=dead)
    for connection in fabric.connect(SRC, DST, MANY):
        connection.detach()
    return went_up(fabric, before, dead)


def at_rest(fabric: Fabric) -> dict[int, int]:
    """The packets to spines, once what other connections had still to send or to acknowledge is over."""

    def look() -> dict[int, int] | None:
        before = fabric.packets_to_spines()
        time.sleep(0.05)
        return before if fabric.packets_to_spines() == before else None

    found = eventually(look)
    assert found is not None
    return found


def send(fabric: Fabric, connection: socket.socket, packets: int) -> dict[int, int]:
    """Send one by one on a connection; by spine, the packets that went up."""
    before = at_rest(fabric)
    for _ in range(packets):
        connection.sendall(b"!")
    eventually(lambda: sum(went_up(fabric, before).values()) >= packets)
    return went_up(fabric, before)


def test_connections_spread_over_spines_and_keep_their_spine() -> None:
    fabric = build("rail-optimized", 2, 2, spines=3)
    before = fabric.packets_to_spines()
    connections = fabric.connect(SRC, DST, MANY)
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    spread = went_up(fabric, before)
    assert min(spread.values()) > 2 * MANY / 3 / 8, spread  # SYN and ACK each; chance alone keeps far above that
    for connection in connections[:6]:
        assert sorted(send(fabric, connection, 5).values())[:2] == [0, 0]


def test_killed_spine_is_avoided_and_used_after_its_return() -> None:
    fabric = build("rail-optimized", 2, 2, spines=2)
    group = fabric.openflow("rail0", "dump-groups")
    fabric.net.ovs["spine0"].kill()
    fabric.await_event("switch-down")
    for rail in ("rail0", "rail1"):
        eventually(lambda rail=rail: "output:2001" not in fabric.openflow(rail, "dump-groups"))  # type: ignore[misc]
    assert spread_of_many(fabric, dead=1)[0] == 0
    assert "decided" not in fabric.whats()  # no GPU's route had to change
    fabric.restart("spine0")
    fabric.await_event("switch-up")
    eventually(lambda: fabric.openflow("rail0", "dump-groups") == group)
    assert min(spread_of_many(fabric).values()) > 0


def test_assigned_uplink_carries_all_until_its_spine_dies() -> None:
    """Round robin: rail0 sends to d0g1 by spine 0 and to d1g1, the destination, by spine 1."""
    fabric = build("rail-optimized", 2, 2, spines=2, policy="round-robin")
    assert "output:2002" in fabric.openflow("rail0", "dump-flows")
    assert spread_of_many(fabric)[0] == 0
    fabric.net.ovs["spine1"].kill()
    fabric.await_event("switch-down")
    eventually(lambda: "output:2002" not in fabric.openflow("rail0", "dump-flows"))
    assert spread_of_many(fabric, dead=1)[0] >= 2 * MANY
    assert "decided" not in fabric.whats()  # no GPU's route had to change
    fabric.restart("spine1")
    fabric.await_event("switch-up")
    eventually(lambda: "output:2002" in fabric.openflow("rail0", "dump-flows"))
    at_rest(fabric)
    assert spread_of_many(fabric)[0] == 0


def test_cut_uplink_is_avoided_at_both_of_its_ends() -> None:
    fabric = build("rail-optimized", 2, 3, spines=2)
    rank_1 = "group_id=3"
    fabric.in_node("spine0", "ip", "link", "set", "rail1", "down")
    for rail in ("rail0", "rail2"):
        eventually(lambda rail=rail: rank_1 in fabric.openflow(rail, "dump-groups"))  # type: ignore[misc]
    assert spread_of_many(fabric)[0] == 0
    before = fabric.packets_to_spines()
    for connection in fabric.connect(SRC, Gpu(1, 2), MANY):
        connection.detach()
    assert min(went_up(fabric, before).values()) > 0  # to rank 2 both spines still serve
    fabric.in_node("spine0", "ip", "link", "set", "rail1", "up")
    eventually(lambda: rank_1 not in fabric.openflow("rail0", "dump-groups"))
    assert min(spread_of_many(fabric).values()) > 0


def test_without_spines_hb_domains_carry_traffic_between_rails() -> None:
    fabric = build("rail-optimized", 2, 2, spines=1)
    assert fabric.trace(SRC, DST) == [DST]
    fabric.net.ovs["spine0"].kill()
    fabric.await_event("rerouted")
    assert fabric.trace(SRC, DST) == [Gpu(1, 0), DST]
    fabric.restart("spine0")
    fabric.await_event("rerouted", times=2)
    eventually(lambda: fabric.trace(SRC, DST, 0.5) == [DST])  # rail switches may learn of the spine after the GPUs
