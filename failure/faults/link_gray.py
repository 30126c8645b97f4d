"""Fault kind link-gray."""

from typing import Annotated

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.impact import Impact
from railyard.failure.faults.support.links import LossyLink
from railyard.topologies.fabric_kinds import FabricPlan


@fault("link-gray")
class LinkGray(LossyLink):
    """The rail link of a GPU (d0g1; that of plane 1: d0g1:rail1) loses a share of its packets at random."""

    class Parameters(ConfigModel):
        """`loss`: the share that is lost. Beyond 0.2 TCP all but stops, and a link is dead rather than gray."""

        loss: Annotated[float, Field(ge=0.01, le=0.2)] = 0.05

    order = 3
    weight = 1.0
    loses_packets_throughout = True
    is_rerouted = False

    def loss(self, p: Parameters) -> float:
        """Return the parameter."""
        return p.loss

    def impact(self, plan: FabricPlan, target: str, p: Parameters) -> Impact:
        """Return a lossy cable: what it loses is sent again."""
        return Impact(lossy=self.cables(plan, target))
