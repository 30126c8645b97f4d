"""Faults of one link of a node: base classes, and the state and rate of interfaces.

A cable is cut at the switch's end.
"""

import math
import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from railyard.failure.faults.definition import FaultKind
from railyard.failure.faults.support.impact import Cable, Impact, cable
from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import IFF_UP, IFLA_GROUP, LINK
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import End, FabricPlan, Layer, Link
from railyard.topologies.measure.counters import IFF_LOWER_UP
from railyard.topologies.plan import Plan

RTM_NEWLINK: Final = 16
_GROUP: Final = struct.Struct("=HHI")


def set_link(end: End, state: str) -> None:
    """Set an interface up or down."""
    _set(end, flags=IFF_UP if state == "up" else 0, change=IFF_UP)


def set_groups(ends: Iterable[End], group: int) -> None:
    """Put interfaces into a group, which nftables can match."""
    for end in ends:
        _set(end, attributes=_GROUP.pack(_GROUP.size, IFLA_GROUP, group))


def _set(end: End, flags: int = 0, change: int = 0, attributes: bytes = b"") -> None:
    # netlink by hand: starting a program would take longer than some recoveries
    with namespaces.inside(end.node), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as netlink:
        head = LINK.pack(socket.AF_UNSPEC, 0, socket.if_nametoindex(end.interface), flags, change)
        namespaces.send_request(netlink, RTM_NEWLINK, head + attributes)


def link_state(end: End) -> Any:
    """Return an interface as pyroute2 has it."""
    # slow to import, and only needed on a fabric
    from pyroute2 import IPRoute

    with namespaces.inside(end.node), IPRoute() as netlink:
        return netlink.get_links(index=socket.if_nametoindex(end.interface))[0]


def is_up(end: End) -> bool:
    """Return whether an interface is set up and has a carrier."""
    # not its operational state: a tunnel's is unknown until its carrier changes
    flags = link_state(end)["flags"]
    return bool(flags & IFF_UP and flags & IFF_LOWER_UP)


def is_set_up(end: End) -> bool:
    """Return whether an interface is set up, with a carrier or without."""
    return bool(link_state(end)["flags"] & IFF_UP)


def shaped_bps(end: End) -> int:
    """Return the rate of an interface's shaper, bit/s, rounded to bytes/s: that of its largest class."""
    from pyroute2 import IPRoute

    with namespaces.inside(end.node), IPRoute() as netlink:
        classes = netlink.get_classes(index=socket.if_nametoindex(end.interface))
    return 8 * max(int(each.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")["rate"]) for each in classes)


def reshape(net: EmulatedNet, link: Link, rate_bps: int) -> None:
    """Give the shapers at both ends of a cable, those on this machine, a rate, and the burst that goes with it."""
    for end in filter(lambda end: net.has(end.node), (link.a, link.b)):
        lines = net.shaper_commands(end.interface, rate_bps).splitlines(keepends=True)
        changed = [line.replace("class add", "class change") for line in lines if line.startswith("class add")]
        with namespaces.inside(end.node):
            namespaces.run(["tc", "-batch", "-"], "".join(changed))


class LinkFault(FaultKind):
    """A fault of one link of a node in a layer; targets are named as `Plan.link_names` has it."""

    target_sort = "GPU"
    layer: ClassVar[Layer] = "rail"

    def target_sort_on(self, plan: FabricPlan) -> str:
        """Return NIC where GPUs share NICs, and the layer is that of the rails."""
        has_nics = isinstance(plan, Plan) and plan.nics and self.layer == "rail"
        return "NIC" if has_nics else self.target_sort

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return all links of the layer."""
        return plan.link_names(self.layer)

    def canonical_target(self, target: str) -> str:
        """Return the GPU's name for its first link of the layer: d0g1:rail0 is d0g1."""
        return target.removesuffix(f":{self.layer}0")

    def cable(self, plan: FabricPlan, target: str) -> Cable:
        """Return the cable of the link."""
        near, far = plan.ends_of(target, self.layer)
        return cable(near.node, far.node)

    def cables(self, plan: FabricPlan, target: str) -> frozenset[Cable]:
        """Return the cable of the link, and of a NIC that GPUs share also their connections to it."""
        cables = {self.cable(plan, target)}
        if isinstance(plan, Plan):
            cables.update(cable(link.a.node, link.b.node) for link in plan.cables_behind(target))
        return frozenset(cables)

    def link(self, net: EmulatedNet, target: str) -> Link:
        """Return the link: `a` is the node's end."""
        return net.plan.link_of(target, self.layer)

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return a dead cable."""
        return Impact(cables=self.cables(plan, target))


class CutLink(LinkFault):
    """A link whose far end is set down."""

    spans_machines = True

    def inject(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Set the far end of the cable down: the near end loses its carrier."""
        self._set_far_end(net, target, "down")

    def repair(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Set the far end up."""
        self._set_far_end(net, target, "up")

    def symptoms(self, net: EmulatedNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the near end has no carrier; of a NIC that GPUs share, also whether each of them has none."""
        ends = [self.link(net, target).a]
        if isinstance(net.plan, Plan):
            # a GPU learns of it from its NIC, and may do so later
            ends += [link.a for link in net.plan.cables_behind(target)]
        return [not is_up(end) for end in ends if net.has(end.node)]

    def _set_far_end(self, net: EmulatedNet, target: str, state: str) -> None:
        # A host keeps its routes when its carrier is lost, whereas Linux removes them from an interface that is itself
        # set down, as at a crashed GPU.
        far = self.link(net, target).b
        if net.has(far.node):
            set_link(far, state)


# Packet loss: packets are lost where they leave, at the egress hook of both ends, since a userspace switch reads frames
# by a packet socket, before any ingress hook. They are forwarded to `hole-...`, an interface that is down, so that the
# sender gets no error: TCP would treat a dropped packet as one that never left. Starting nft takes too long for an
# injection: its rules match a group of interfaces and are installed before, and one netlink message sets the group.
#
# Test frames observe the loss. Their EtherType is for experiments (IEEE 802, 0x88B5), and their MAC address is no
# node's, so switch, bridge and GPU drop them. A packet socket at the far end receives them before any other receiver.
# longer than a frame waits in a shaper behind other frames
WAIT_S: Final = 0.2
# frames of 60 bytes each: little beside the traffic that is under way
_BATCH: Final = 20
_ETHERTYPE: Final = 0x88B5
# a socket of another protocol doesn't see frames that a bridge or a switch takes
_ETH_P_ALL: Final = 3
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
        # receives nothing until it is bound
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        namespaces.attach_filter(sock, _ETHERTYPE_FILTER)
        sock.bind((end.interface, _ETH_P_ALL))
    return sock


def _lost(near: socket.socket, far: socket.socket, count: int) -> int:
    # those of an earlier call that come late don't count
    key = os.urandom(_KEY_BYTES)
    try:
        for number in range(count):
            near.send(_HEADER + key + struct.pack("!I", number) + bytes(34))
    except OSError:  # the interface is down
        return count
    arrived: set[bytes] = set()
    deadline = time.monotonic() + WAIT_S
    while len(arrived) < count:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            break
        readable, _, _ = select.select([far], [], [], remaining_s)
        if readable:
            frame, (_, _, direction, *_) = far.recvfrom(64)
            if direction != socket.PACKET_OUTGOING and frame[14 : 14 + _KEY_BYTES] == key:
                arrived.add(frame[14 + _KEY_BYTES :][:4])
    return count - len(arrived)


LOSS_GROUP: Final = 13
_MILLION: Final = 1_000_000
SILENT_FRAMES: Final = 3
# divided by the loss: that none of so many frames is lost has a probability of exp(-10)
GRAY_FRAMES: Final = 10


def loss_rules(interface: str, loss: float) -> str:
    """Return rules for `nft -f` that lose this share of what leaves the interface, at random, while it is in the group.

    A packet is what the interface takes: with TSO, a TCP burst of up to 64 KB.
    """
    chance = ""
    if loss < 1:
        chance = f"numgen random mod {_MILLION} < {round(loss * _MILLION)} "
    # A frame passes a switch's port twice, the second time as the marked copy that topologies/build/shaping.py makes of
    # it: mark 0 is the first pass, which alone counts.
    return (
        f"table netdev lossy_{interface} {{\n chain out {{\n"
        f'  type filter hook egress device "{interface}" priority -10\n'
        f'  meta oifgroup {LOSS_GROUP} meta mark 0 {chance}fwd to "hole-{interface}"\n'
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
    set_groups(_ends(links), LOSS_GROUP)


def _ends(links: Iterable[Link]) -> list[End]:
    ends: list[End] = []
    for link in links:
        ends += [link.a, link.b]
    return ends


def disable_loss(*links: Link) -> None:
    """Stop the loss, and remove the rules."""
    ends = _ends(links)
    set_groups(ends, 0)
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
        link = self.link(net, target)
        loss = self.loss(p)
        if loss == 1:
            return all_lost(link)
        to_b = to_a = False
        for lost_to_b, lost_to_a in lost_frames(link, [_BATCH] * math.ceil(GRAY_FRAMES / loss / _BATCH)):
            to_b = to_b or lost_to_b > 0
            to_a = to_a or lost_to_a > 0
            if to_b and to_a:
                break
        return to_b, to_a
