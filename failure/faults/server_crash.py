"""Fault kind server-crash."""

import signal
from collections.abc import Sequence
from typing import Any, Final

from railyard.failure.faults.definition import FaultKind, fault, size_of
from railyard.failure.faults.support.impact import FaultScope, Impact
from railyard.failure.faults.support.links import is_up, set_links
from railyard.failure.faults.support.processes import boot, disconnect, links_down, signal_all
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import Plan

_MIN_DOMAINS: Final = 3


def _gpus(plan: Plan, domain: str) -> list[str]:
    number = plan.hb_bridges.index(domain)
    return [gpu.name for gpu in plan.gpus if gpu.domain == number]


@fault("server-crash")
class ServerCrash(FaultKind):
    """All GPUs of an HB domain crash, and its bridge fails."""

    order, weight = 13, 1.0
    target_sort = "HB domain"
    stops_gpus = True

    def targets(self, plan: Plan) -> Sequence[str]:
        """Return all HB domains, where two others are left."""
        return list(plan.hb_bridges) if plan.spec.domains >= _MIN_DOMAINS else []

    def target_problem(self, plan: Plan, target: str) -> str:
        """Return what is wrong with a target; on a fabric that is too small, that."""
        if plan.spec.domains < _MIN_DOMAINS:
            return f"can't crash on {size_of(plan)}: {_MIN_DOMAINS} or more are needed, so that some are left to talk"
        return super().target_problem(plan, target)

    def impact(self, plan: Plan, target: str, p: Any) -> Impact:
        """Return dead GPUs and a dead bridge."""
        return Impact(nodes=frozenset({target, *_gpus(plan, target)}))

    def scope(self, plan: Plan, target: str, p: Any) -> FaultScope:
        """Return the GPUs with their cables. No rail switch is required: each of the others detects the fault too."""
        return FaultScope(super().scope(plan, target, p).affected)

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Set all interfaces and the bridge down, and kill all processes of the GPUs."""
        gpus = _gpus(net.plan, target)
        for gpu in gpus:
            disconnect(net, gpu)
        set_links(target, {target: "down"})
        for gpu in gpus:
            signal_all(gpu, signal.SIGKILL)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the bridge up, then each GPU's interfaces with their routes."""
        set_links(target, {target: "up"})
        for gpu in _gpus(net.plan, target):
            boot(net, gpu)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the bridge and each link of each GPU are down."""
        links = [is_down for gpu in _gpus(net.plan, target) for is_down in links_down(net, gpu)]
        return [not is_up(target, target), *links]
