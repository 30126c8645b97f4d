"""Packet loss on a cable, of some packets or all, while the cable keeps its carrier; and test frames that observe it.

Packets are lost where they leave, at the egress hook of both ends: a userspace switch reads frames by a packet socket,
before any ingress hook. They are forwarded to `hole-...`, an interface that is down, so that the sender gets no error:
TCP would treat a dropped packet as one that never left. Starting nft takes too long for an injection. So its rules
match a group of interfaces and are installed before; the injection is one netlink message that sets the group.

Test frames have an EtherType for experiments (IEEE 802, 0x88B5) and a MAC address that no node has, so switch, bridge
and GPU drop them. A packet socket at the far end receives them as they leave the cable, before any other receiver.
"""

import math
import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from railyard.failure.faults.support.links import LinkFault, set_groups
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import End, Link

WAIT_S: Final = 0.2  # longer than a frame waits in a shaper behind others
_BATCH: Final = 20  # of 60 bytes each: little beside what else is under way
_ETHERTYPE: Final = 0x88B5
_ETH_P_ALL: Final = 3  # of another protocol, frames that a bridge or a switch takes aren't seen
_ETHERTYPE_FILTER: Final = (
    (0x28, 0, 0, 12), (0x15, 0, 1, _ETHERTYPE),  # half word at 12, the EtherType
    (0x06, 0, 0, 64), (0x06, 0, 0, 0),
)  # fmt: skip
_HEADER: Final = bytes.fromhex("02fe0000000102fe00000002") + struct.pack("!H", _ETHERTYPE)
_KEY_BYTES: Final = 8


def lost_frames(link: Link, counts: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Send so many test frames at once, time after time; yield how many were lost from a to b and from b to a.

    All of them where there is no carrier.
    """
    with _packet_socket(link.a) as a, _packet_socket(link.b) as b:
        for count in counts:
            yield _lost(a, b, count), _lost(b, a, count)


def _packet_socket(end: End) -> socket.socket:
    with namespaces.inside(end.node):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # receives nothing until it is bound
        namespaces.attach_filter(sock, _ETHERTYPE_FILTER)
        sock.bind((end.interface, _ETH_P_ALL))
    return sock


def _lost(near: socket.socket, far: socket.socket, count: int) -> int:
    key = os.urandom(_KEY_BYTES)  # those of an earlier call that come late don't count
    try:
        for number in range(count):
            near.send(_HEADER + key + struct.pack("!I", number) + bytes(34))
    except OSError:  # the interface is down
        return count
    arrived: set[bytes] = set()
    deadline = time.monotonic() + WAIT_S
    while len(arrived) < count and (left := deadline - time.monotonic()) > 0:
        if select.select([far], [], [], left)[0]:
            frame, (_, _, direction, *_) = far.recvfrom(64)
            if direction != socket.PACKET_OUTGOING and frame[14 : 14 + _KEY_BYTES] == key:
                arrived.add(frame[14 + _KEY_BYTES :][:4])
    return count - len(arrived)


_GROUP: Final = 13
_NO_GROUP: Final = 0
_MILLION: Final = 1_000_000
SILENT_FRAMES: Final = 3
GRAY_FRAMES: Final = 10  # divided by the loss: that none of so many is lost has a probability of exp(-10)


def loss_rules(interface: str, loss: float) -> str:
    """Return rules for `nft -f` that lose this share of what leaves the interface, at random, while it is in the group.

    A packet is what the interface takes: with TSO, a TCP burst of up to 64 KB. A frame passes a switch's port twice,
    the second time as the marked copy that topologies/build/shaping.py makes of it; only the first pass counts.
    """
    chance = f"numgen random mod {_MILLION} < {round(loss * _MILLION)} " if loss < 1 else ""
    return (
        f"table netdev lossy_{interface} {{\n chain out {{\n"
        f'  type filter hook egress device "{interface}" priority -10\n'
        f'  meta oifgroup {_GROUP} meta mark 0 {chance}fwd to "hole-{interface}"\n'
        " }\n}\n"
    )


def prepare_loss(link: Link, loss: float) -> None:
    """Install the rules at both ends. Nothing is lost yet."""
    for end in (link.a, link.b):
        with namespaces.inside(end.node):
            sink = f"hole-{end.interface}"
            namespaces.run(["ip", "link", "add", sink, "type", "veth", "peer", "name", f"end-{end.interface}"])
            namespaces.run(["nft", "-f", "-"], loss_rules(end.interface, loss))


def enable_loss(*links: Link) -> None:
    """Start the loss on cables that are prepared."""
    set_groups([end for link in links for end in (link.a, link.b)], _GROUP)


def disable_loss(*links: Link) -> None:
    """Stop the loss, and remove the rules."""
    ends = [end for link in links for end in (link.a, link.b)]
    set_groups(ends, _NO_GROUP)
    for end in ends:
        with namespaces.inside(end.node):
            namespaces.run(["nft", "delete", "table", "netdev", f"lossy_{end.interface}"])
            namespaces.run(["ip", "link", "del", f"hole-{end.interface}"])


def all_lost(link: Link) -> tuple[bool, bool]:
    """Return whether none of a few frames arrives, from a to b and from b to a."""
    ((to_b, to_a),) = lost_frames(link, [SILENT_FRAMES])
    return to_b == SILENT_FRAMES, to_a == SILENT_FRAMES


class LossyLink(LinkFault):
    """A link that loses packets in both directions and keeps its carrier. Rules are installed before the injection."""

    def loss(self, p: Any) -> float:
        """Return the share of packets that is lost."""
        return 1.0

    def prepare(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Install the rules."""
        prepare_loss(self.link(net, target), self.loss(p))

    def inject(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Start the loss."""
        enable_loss(self.link(net, target))

    def repair(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Stop the loss."""
        disable_loss(self.link(net, target))

    def symptoms(self, net: EmulatedNet, target: str, p: Any) -> Sequence[bool]:
        """Return for each direction whether all frames are lost, or some where it isn't all."""
        link, loss = self.link(net, target), self.loss(p)
        if loss == 1:
            return all_lost(link)
        to_b = to_a = False
        for lost_to_b, lost_to_a in lost_frames(link, [_BATCH] * math.ceil(GRAY_FRAMES / loss / _BATCH)):
            to_b, to_a = to_b or lost_to_b > 0, to_a or lost_to_a > 0
            if to_b and to_a:
                break
        return to_b, to_a
