"""Faults of one link of a node: base classes, and the state and rate of interfaces.

A cable is cut at the switch's end: a host keeps its routes when its carrier is lost, whereas Linux removes them from an
interface that is itself set down, as at a crashed GPU. Netlink by hand: starting a program would take longer than some
recoveries.
"""

import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from railyard.failure.faults.definition import FaultKind
from railyard.failure.faults.support.impact import Cable, Impact, cable
from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import IFF_UP, IFLA_GROUP, LINK
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import End, FabricPlan, Layer, Link

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
    """Change the flags of an interface that `change` selects, and its attributes."""
    with namespaces.inside(end.node), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as netlink:
        head = LINK.pack(socket.AF_UNSPEC, 0, socket.if_nametoindex(end.interface), flags, change)
        namespaces.send_request(netlink, RTM_NEWLINK, head + attributes)


def link_state(end: End) -> Any:
    """Return an interface as pyroute2 has it."""
    from pyroute2 import IPRoute  # slow to import, and only needed on a fabric

    with namespaces.inside(end.node), IPRoute() as netlink:
        return netlink.get_links(index=socket.if_nametoindex(end.interface))[0]


def is_up(end: End) -> bool:
    """Return whether an interface is set up and has a carrier."""
    return bool(link_state(end).get("operstate") == "UP")


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
    """Give the shapers at both ends of a cable a rate, and the burst that goes with it."""
    for end in (link.a, link.b):
        lines = net.shaper_commands(end.interface, rate_bps).splitlines(keepends=True)
        changed = [line.replace("class add", "class change") for line in lines if line.startswith("class add")]
        with namespaces.inside(end.node):
            namespaces.run(["tc", "-batch", "-"], "".join(changed))


class LinkFault(FaultKind):
    """A fault of one link of a node in a layer; targets are named as `Plan.link_names` has it."""

    target_sort = "GPU"
    layer: ClassVar[Layer] = "rail"

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

    def link(self, net: EmulatedNet, target: str) -> Link:
        """Return the link: `a` is the node's end."""
        return net.plan.link_of(target, self.layer)

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return a dead cable."""
        return Impact(cables=frozenset({self.cable(plan, target)}))


class CutLink(LinkFault):
    """A link whose far end is set down."""

    def inject(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Set the far end of the cable down: the near end loses its carrier."""
        set_link(self.link(net, target).b, "down")

    def repair(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Set the far end up."""
        set_link(self.link(net, target).b, "up")

    def symptoms(self, net: EmulatedNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the near end has no carrier."""
        return (not is_up(self.link(net, target).a),)
