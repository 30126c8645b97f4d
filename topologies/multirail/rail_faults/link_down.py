"""Fault `link-down` of a rail: the switch's end of a NIC's link is set down, so the NIC has no carrier."""

import socket
import time
from typing import TYPE_CHECKING, Literal

from railyard.topologies.build import namespaces
from railyard.topologies.multirail.rail_fault import RAIL_FAULTS, RailFault, nic_of
from railyard.topologies.plan import End

if TYPE_CHECKING:
    from railyard.topologies.multirail.net import MultirailNet


class LinkDown(RailFault):
    """A NIC without carrier; the node keeps its addresses."""

    is_link = True

    def inject(self, net: "MultirailNet", node: str, rail: int) -> int:
        return _set(net.plan.link(nic_of(net, node, rail)).b, "down")

    def repair(self, net: "MultirailNet", node: str, rail: int) -> None:
        _set(net.plan.link(nic_of(net, node, rail)).b, "up")


def _set(end: End, state: Literal["up", "down"]) -> int:
    from pyroute2 import IPRoute

    with namespaces.inside(end.node), IPRoute() as netlink:
        index = socket.if_nametoindex(end.interface)
        at_ns = time.monotonic_ns()
        netlink.link("set", index=index, state=state)
    return at_ns


RAIL_FAULTS.add("link-down", LinkDown())
