"""Fault kind link-gray."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.impact import Impact
from railyard.failure.faults.support.links import CableFault, rail_link
from railyard.failure.faults.support.loss import disable_loss, enable_loss, prepare_loss, some_lost
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import Plan


@fault("link-gray")
class LinkGray(CableFault):
    """The rail cable of a GPU loses a share of its packets at random, in both directions."""

    class Parameters(ConfigModel):
        """`loss`: the share that is lost. Beyond 0.2 TCP all but stops, and a link is dead rather than gray."""

        loss: Annotated[float, Field(ge=0.01, le=0.2)] = 0.05

    order, weight = 3, 1.0
    loses_packets_throughout = True
    is_rerouted = False

    def impact(self, plan: Plan, target: str, p: Parameters) -> Impact:
        """Return a lossy cable: what it loses is sent again."""
        return Impact(lossy=frozenset({self.cable(plan, target)}))

    def prepare(self, net: FabricNet, target: str, p: Parameters) -> None:
        """Install the rules."""
        prepare_loss(rail_link(net, target), p.loss)

    def inject(self, net: FabricNet, target: str, p: Parameters) -> None:
        """Start the loss."""
        enable_loss(rail_link(net, target))

    def repair(self, net: FabricNet, target: str, p: Parameters) -> None:
        """Stop the loss."""
        disable_loss(rail_link(net, target))

    def symptoms(self, net: FabricNet, target: str, p: Parameters) -> Sequence[bool]:
        """Return whether some frames are lost, by direction."""
        return some_lost(rail_link(net, target), p.loss)
