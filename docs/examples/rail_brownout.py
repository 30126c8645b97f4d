"""Fault kind `rail-brownout`: every port of a rail switch drops to a share of its rate.

A power-capped or overheated switch still forwards, but slowly. Nothing loses its carrier and heartbeats have a traffic
class of their own, so the controller doesn't reroute: traffic over the rail is slow until the repair. Random faults
draw the kind if a spec's mix names it:

    faults: [{kind: rail-brownout, target: rail1, rate: 0.2}]
    scripts: [{name: brownouts, random_faults: {count: 3, mix: {rail-brownout: 1, link-down: 2}}}]
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.failure.faults import Impact, cable, fault
from railyard.failure.faults.support.links import reshape, shaped_bps
from railyard.failure.faults.support.processes import SwitchFault
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import FabricPlan, Link


def ports(plan: FabricPlan, switch: str) -> list[Link]:
    """Return the cables of a switch, to GPUs and to spines."""
    return [link for link in plan.links if switch in (link.a.node, link.b.node)]


@fault("rail-brownout")
class RailBrownout(SwitchFault):  # its targets are the rail switches
    """Every port of a rail switch drops to a share of its rate."""

    class Parameters(ConfigModel):
        """`rate`: the share of each port's rate that is left."""

        rate: Annotated[float, Field(ge=0.01, lt=1)] = 0.1

    is_rerouted = False

    def impact(self, plan: FabricPlan, target: str, p: Parameters) -> Impact:
        """Return slow cables: what follows for the oracle, probes and concurrent faults is derived from that."""
        return Impact(
            slowed={cable(k.a.node, k.b.node): round(k.rate_bps * p.rate) for k in ports(plan.electrical, target)}
        )

    def inject(self, net: EmulatedNet, target: str, p: Parameters) -> None:
        """Give the shapers at both ends of each cable a share of their rate."""
        for link in ports(net.plan, target):
            reshape(net, link, round(link.rate_bps * p.rate))

    def repair(self, net: EmulatedNet, target: str, p: Parameters) -> None:
        """Give the shapers their full rate."""
        for link in ports(net.plan, target):
            reshape(net, link, link.rate_bps)

    def symptoms(self, net: EmulatedNet, target: str, p: Parameters) -> Sequence[bool]:
        """Return for each end of each cable whether it is slow: below halfway to its full rate."""
        ends = [(end, link.rate_bps) for link in ports(net.plan, target) for end in (link.a, link.b)]
        return [shaped_bps(end) < rate_bps * (1 + p.rate) / 2 for end, rate_bps in ends]
