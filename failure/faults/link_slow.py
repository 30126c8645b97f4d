"""Fault kind link-slow."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.impact import Impact
from railyard.failure.faults.support.links import LinkFault, reshape, shaped_bps
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import FabricPlan


@fault("link-slow")
class LinkSlow(LinkFault):
    """The rail link of a GPU (d0g1; that of plane 1: d0g1:rail1) drops to a share of its rate both ways."""

    class Parameters(ConfigModel):
        """`rate`: the share of the rate that is left. Below 0.01 a packet takes longer than a fault."""

        rate: Annotated[float, Field(ge=0.01, lt=1)] = 0.1

    order = 4
    weight = 1.0
    is_rerouted = False
    spans_machines = True

    def random_parameters(self) -> Parameters:
        """Return half the rate: below, a queue holds probes for longer than a connectivity check waits."""
        return self.Parameters(rate=0.5)

    def impact(self, plan: FabricPlan, target: str, p: Parameters) -> Impact:
        """Return a slow cable."""
        rate_bps = plan.link_of(target, self.layer).rate_bps
        return Impact(slowed=dict.fromkeys(self.cables(plan, target), max(1, round(rate_bps * p.rate))))

    def inject(self, net: EmulatedNet, target: str, p: Parameters) -> None:
        """Give the shapers at both ends a share of their rate."""
        link = self.link(net, target)
        reshape(net, link, max(1, round(link.rate_bps * p.rate)))

    def repair(self, net: EmulatedNet, target: str, p: Parameters) -> None:
        """Give the shapers their full rate."""
        link = self.link(net, target)
        reshape(net, link, link.rate_bps)

    def symptoms(self, net: EmulatedNet, target: str, p: Parameters) -> Sequence[bool]:
        """Return whether each end is slow. The kernel rounds rates to bytes/s, so the limit is halfway to full rate."""
        link = self.link(net, target)
        limit_bps = link.rate_bps * (1 + p.rate) / 2
        return [shaped_bps(end) < limit_bps for end in (link.a, link.b) if net.has(end.node)]
