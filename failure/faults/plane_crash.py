"""Fault kind plane-crash."""

import signal
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.failure.faults.definition import GoodputTarget, fault
from railyard.failure.faults.support.impact import Impact
from railyard.failure.faults.support.processes import SwitchCrash
from railyard.topologies.addresses import MAX_RAILS
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.plan import Plan


@fault("plane-crash")
class PlaneCrash(SwitchCrash):
    """The processes of all rail switches of a plane are killed, while streams fill the rails."""

    class Parameters(ConfigModel):
        """`stream_load`: the share of a GPU's rail that its streams fill together."""

        stream_load: Annotated[float, Field(ge=0.05, le=1)] = 0.6

    order = 10
    spans_machines = False
    target_sort = "plane"
    goodput_target = GoodputTarget(
        "plane dead, goodput at what is left",
        "flows of the other planes go on; those of the dead one wait for route changes at every GPU, and retransmit",
        100,
    )

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return all planes, where there are several."""
        planes = {switch.index // MAX_RAILS for switch in plan.switches_of("rail")}
        if len(planes) < 2:
            return []
        return [f"plane{plane}" for plane in sorted(planes)]

    def target_sort_on(self, plan: FabricPlan) -> str:
        """Return what a target is called."""
        return self.target_sort

    def switches(self, plan: FabricPlan, target: str) -> Sequence[str]:
        """Return the rail switches of a plane."""
        plane = int(target.removeprefix("plane"))
        return [switch.name for switch in plan.switches_of("rail") if switch.index // MAX_RAILS == plane]

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return dead switches."""
        return Impact(nodes=frozenset(self.switches(plan, target)))

    def inject(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Kill the process of each switch."""
        switches = self.switches(net.plan, target)
        # all of them first: the end of each takes tens of milliseconds
        for switch in switches:
            net.ovs[switch].signal(signal.SIGKILL)
        for switch in switches:
            super().inject(net, switch, p)

    def repair(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Start the process of each switch."""
        for switch in self.switches(net.plan, target):
            super().repair(net, switch, p)

    def symptoms(self, net: EmulatedNet, target: str, p: Any) -> Sequence[bool]:
        """Return for each switch whether its process has ended."""
        symptoms: list[bool] = []
        for switch in self.switches(net.plan, target):
            symptoms += super().symptoms(net, switch, p)
        return symptoms

    def stream_load(self, p: Parameters) -> float:
        """Return the share of a rail that a GPU's streams fill together."""
        return p.stream_load

    def remaining_share(self, plan: Plan, target: str, p: Any) -> float:
        """Return the share of a rail that the other planes carry."""
        kind = plan.spec.definition
        dead = int(target.removeprefix("plane"))
        living = tuple(plane for plane in kind.all_planes if plane != dead)
        return len(kind.carrying(living)) / len(kind.carrying(kind.all_planes))
