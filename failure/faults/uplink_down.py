"""Fault kind uplink-down."""

from collections.abc import Sequence
from typing import Any

from railyard.failure.faults.definition import FaultKind, fault
from railyard.failure.faults.support.impact import Impact, cable
from railyard.failure.faults.support.links import is_up, set_link
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import FabricPlan, Link


@fault("uplink-down")
class UplinkDown(FaultKind):
    """The link between two switches (rail0-spine1, leaf0-spine1) loses its carrier; both switches use others."""

    order = 11
    target_sort = "link between switches"

    def _links(self, plan: FabricPlan) -> dict[str, Link]:
        return {link.name: link for link in plan.links if link.kind == "uplink"}

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return all links between switches."""
        return tuple(self._links(plan))

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return a dead cable."""
        link = self._links(plan)[target]
        return Impact(cables=frozenset({cable(link.a.node, link.b.node)}))

    def inject(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Set the upper end down: both ends lose their carrier."""
        set_link(self._links(net.plan)[target].b, "down")

    def repair(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Set the upper end up."""
        set_link(self._links(net.plan)[target].b, "up")

    def symptoms(self, net: EmulatedNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the lower end has no carrier."""
        return (not is_up(self._links(net.plan)[target].a),)
