"""Fault kind link-down."""

from collections.abc import Sequence
from typing import Any

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.links import CableFault, cut, is_up, rail_link, reconnect
from railyard.topologies.build.network import FabricNet


@fault("link-down")
class LinkDown(CableFault):
    """The rail cable of a GPU loses its carrier."""

    order, weight = 1, 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "link down, source side", "no carrier, and the kernel's own backup route: no controller", 5, 20, "source"
        ),
        FirstPacketTarget(
            "link down, far side", "PORT_STATUS, a decision, and route changes at every source", 15, 40, "far"
        ),
    )

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the switch's end of the cable down."""
        cut(rail_link(net, target).b)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the switch's end up."""
        reconnect(rail_link(net, target).b)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the GPU's end has no carrier."""
        return (not is_up(target, "rail0"),)
