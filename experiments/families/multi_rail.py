"""Family of multi-rail fabrics: nodes with several NICs, each on a rail of its own; there are no HB domains."""

from typing import TYPE_CHECKING, Final

from railyard.core.host import Datapath
from railyard.experiments.measures.definition import RunContext, measures_of
from railyard.experiments.spec.experiment import FAMILIES, ExperimentSpec, FabricFamily
from railyard.topologies.capacity import Capacity
from railyard.topologies.fabric_kinds import BaseFabricSpec, FabricPlan
from railyard.topologies.multirail.plan import MultirailPlan, frames_needed, nominal_plan
from railyard.topologies.multirail.spec import MultirailSpec

if TYPE_CHECKING:
    from railyard.experiments.run.progress import Steps
    from railyard.results.runs.records import Run
    from railyard.topologies.build.network import EmulatedNet

LIGHT_FRAMES: Final = 3_000
"""Full frames a second, at all switches, that any machine carries: 5% of what a core does with the slowest datapath."""


@FAMILIES.register("multi-rail")
class MultiRail(FabricFamily):
    """Nodes are joined by rails of several kinds, whose switches have static flows."""

    Fabric = MultirailSpec
    without = (
        "routing", "background", "grid", "heartbeats", "reroute", "hosts", "underlay",
        "controller",
    )  # fmt: skip

    def nominal_plan(self, fabric: BaseFabricSpec) -> FabricPlan:
        """Return the plan at the nominal scale."""
        assert isinstance(fabric, MultirailSpec)
        return nominal_plan(fabric)

    def network(self, plan: FabricPlan, datapath: Datapath, user_app: str = "") -> "EmulatedNet":
        """Return a network whose switches have static flows."""
        from railyard.topologies.multirail.net import MultirailNet

        assert isinstance(plan, MultirailPlan)
        return MultirailNet(plan, datapath)

    def needs_capacity(self, spec: ExperimentSpec) -> bool:
        """Return False if all rates are given, and so low that any machine carries them."""
        for fabric in spec.rail_fabrics:
            given = tuple(rail.rate for rail in fabric.rails if isinstance(rail.rate, int))
            if len(given) < len(fabric.rails) or frames_needed(fabric, given) > LIGHT_FRAMES:
                return True
        return False

    def capacity(self, spec: ExperimentSpec, datapath: Datapath) -> Capacity:
        """Measure the frames that come many at once."""
        from railyard.controller.processes.clients import ControllerProcess
        from railyard.topologies.measure.capacity import measure_batched

        return measure_batched(datapath, ControllerProcess())

    def measure(
        self, spec: ExperimentSpec, datapath: Datapath, capacity: Capacity | None, run: "Run", steps: "Steps"
    ) -> None:
        """Run all measures."""
        context = RunContext(spec, (), datapath, capacity, run, steps)
        for measure in measures_of(spec):
            measure.run(context)
