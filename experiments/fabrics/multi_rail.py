"""Multi-rail fabrics: nodes with several NICs, each on a rail of its own; there are no HB domains."""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from railyard.core.errors import BadInput
from railyard.core.host import Datapath
from railyard.experiments.fabrics.definition import FABRIC_CLASSES, EventCallback, FabricClass
from railyard.topologies.capacity import Capacity
from railyard.topologies.multirail.plan import MultirailPlan, frames_needed, make_multirail_plan, nominal_plan
from railyard.topologies.multirail.spec import MultirailSpec

if TYPE_CHECKING:
    from railyard.topologies.build.network import EmulatedNet

LIGHT_FRAMES: Final = 3_000
"""Full frames a second, at all switches, that any machine carries: 5% of what a core does with the slowest datapath."""


@FABRIC_CLASSES.register("multi-rail")
class MultiRail(FabricClass[MultirailSpec, MultirailPlan]):
    """Nodes are joined by rails of several kinds, whose switches have static flows."""

    Fabric = MultirailSpec
    unused_keys = ("heartbeats", "reroute", "hosts", "underlay", "controller")

    def needs_capacity(self, fabrics: Sequence[MultirailSpec]) -> bool:
        """Return False if all rates are given, and so low that any machine carries them."""
        for fabric in fabrics:
            rates = tuple(rail.rate for rail in fabric.rails if isinstance(rail.rate, int))
            if len(rates) < len(fabric.rails) or frames_needed(fabric, rates) > LIGHT_FRAMES:
                return True
        return False

    def capacity(self, fabrics: Sequence[MultirailSpec], datapath: Datapath) -> Capacity:
        """Measure the frames that come many at once."""
        from railyard.controller.processes.clients import ControllerProcess
        from railyard.topologies.measure.capacity import measure_batched

        return measure_batched(datapath, ControllerProcess())

    def nominal_plan(self, fabric: MultirailSpec) -> MultirailPlan:
        """Return the plan at the nominal scale."""
        return nominal_plan(fabric)

    def plans(self, fabrics: Sequence[MultirailSpec], capacity: Capacity | None) -> list[MultirailPlan]:
        """Return the plans, each with the rates for which the machine carries enough frames."""
        frames_per_s = capacity.frames_per_s if capacity else inf
        plans = []
        for number, fabric in enumerate(fabrics):
            try:
                plans.append(make_multirail_plan(fabric, frames_per_s))
            except BadInput as error:
                field = error.field.replace("fabric", f"fabrics.{number}", 1)
                raise BadInput(field, error.value, error.allowed) from error
        return plans

    def network(
        self, plan: MultirailPlan, datapath: Datapath, on_event: EventCallback, user_app: str = ""
    ) -> "EmulatedNet":
        """Return a network whose switches have static flows."""
        from railyard.topologies.multirail.net import MultirailNet

        return MultirailNet(plan, datapath)
