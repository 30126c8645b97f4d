"""Fault kind server-crash."""

from collections.abc import Sequence
from typing import Any, Final

from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.impact import FaultScope, Impact
from railyard.failure.faults.support.links import is_up, set_link
from railyard.failure.faults.support.processes import CrashedGpus
from railyard.topologies.build.network import FabricNet
from railyard.topologies.fabric_kinds import End, FabricPlan

_MIN_DOMAINS: Final = 3


@fault("server-crash")
class ServerCrash(CrashedGpus):
    """All GPUs of an HB domain crash, and its bridge fails."""

    order = 13
    weight = 1.0
    target_sort = "HB domain"

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return all HB domains, where two others are left."""
        domains = list(dict.fromkeys(plan.ends_of(name, "hb")[1].node for name in plan.link_names("hb")))
        return domains if len(domains) >= _MIN_DOMAINS else []

    def gpus(self, plan: FabricPlan, target: str) -> Sequence[str]:
        """Return the GPUs of the HB domain."""
        return [name for name, layer in plan.links_at.get(target, ()) if layer == "hb" and name != target]

    def target_problem(self, plan: FabricPlan, target: str) -> str:
        """Return what is wrong with a target; on a fabric that is too small, that."""
        if not self.targets(plan):
            return f"can't crash on {plan.title}: {_MIN_DOMAINS} or more are needed, so that some are left to talk"
        return super().target_problem(plan, target)

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return dead GPUs and a dead bridge."""
        return Impact(nodes=frozenset({target, *self.gpus(plan, target)}))

    def scope(self, plan: FabricPlan, target: str, p: Any) -> FaultScope:
        """Return the GPUs with their cables. No rail switch is required: each of the others detects the fault too."""
        return FaultScope(super().scope(plan, target, p).affected)

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the bridge down, then all interfaces of the GPUs, and kill their processes."""
        set_link(End(target, target), "down")
        super().inject(net, target, p)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the bridge up, then each GPU's interfaces with their routes."""
        set_link(End(target, target), "up")
        super().repair(net, target, p)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the bridge and each link of each GPU are down."""
        return [not is_up(End(target, target)), *super().symptoms(net, target, p)]
