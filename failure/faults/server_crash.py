"""Fault kind server-crash."""

import signal
from collections.abc import Sequence
from typing import Any, Final

from railyard.failure.faults.definition import FaultKind, fault
from railyard.failure.faults.support.impact import FaultScope, Impact
from railyard.failure.faults.support.links import is_up, set_links
from railyard.failure.faults.support.processes import boot, disconnect, links_down, signal_all
from railyard.topologies.build.network import FabricNet
from railyard.topologies.fabric_kinds import End, FabricPlan

_MIN_DOMAINS: Final = 3


def _domains(plan: FabricPlan) -> dict[str, list[str]]:
    """Return the GPUs of each HB domain."""
    found: dict[str, list[str]] = {}
    for name in plan.link_names("hb"):
        found.setdefault(plan.ends_of(name, "hb")[1].node, []).append(name)
    return found


@fault("server-crash")
class ServerCrash(FaultKind):
    """All GPUs of an HB domain crash, and its bridge fails."""

    order, weight = 13, 1.0
    target_sort = "HB domain"
    stops_gpus = True

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return all HB domains, where two others are left."""
        domains = list(_domains(plan))
        return domains if len(domains) >= _MIN_DOMAINS else []

    def target_problem(self, plan: FabricPlan, target: str) -> str:
        """Return what is wrong with a target; on a fabric that is too small, that."""
        if not self.targets(plan):
            return f"can't crash on {plan.title}: {_MIN_DOMAINS} or more are needed, so that some are left to talk"
        return super().target_problem(plan, target)

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return dead GPUs and a dead bridge."""
        return Impact(nodes=frozenset({target, *_domains(plan)[target]}))

    def scope(self, plan: FabricPlan, target: str, p: Any) -> FaultScope:
        """Return the GPUs with their cables. No rail switch is required: each of the others detects the fault too."""
        return FaultScope(super().scope(plan, target, p).affected)

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Set all interfaces and the bridge down, and kill all processes of the GPUs."""
        gpus = _domains(net.plan)[target]
        for gpu in gpus:
            disconnect(net, gpu)
        set_links(target, {target: "down"})
        for gpu in gpus:
            signal_all(gpu, signal.SIGKILL)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the bridge up, then each GPU's interfaces with their routes."""
        set_links(target, {target: "up"})
        for gpu in _domains(net.plan)[target]:
            boot(net, gpu)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the bridge and each link of each GPU are down."""
        links = [is_down for gpu in _domains(net.plan)[target] for is_down in links_down(net, gpu)]
        return [not is_up(End(target, target)), *links]
