"""Fault kind link-silent."""

from collections.abc import Sequence
from typing import Any

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.links import CableFault, rail_link
from railyard.failure.faults.support.loss import all_lost, disable_loss, enable_loss, prepare_loss
from railyard.topologies.build.network import FabricNet


@fault("link-silent")
class LinkSilent(CableFault):
    """The rail cable of a GPU loses all packets, in both directions, and keeps its carrier."""

    order, weight = 2, 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "silent link", "three heartbeats of 20 ms missing, the next check of them, and route changes", 100, 150
        ),
    )

    def prepare(self, net: FabricNet, target: str, p: Any) -> None:
        """Install the rules."""
        prepare_loss(rail_link(net, target), 1.0)

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Start the loss."""
        enable_loss(rail_link(net, target))

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Stop the loss."""
        disable_loss(rail_link(net, target))

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether no frame arrives, by direction."""
        return all_lost(rail_link(net, target))
