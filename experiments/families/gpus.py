"""Family of fabrics of GPUs in HB domains: schedules that are replayed, routing policies, failover."""

from typing import TYPE_CHECKING, Any, Final

from railyard.core.errors import BadInput
from railyard.core.host import Datapath, Machine, datapath_choice
from railyard.core.units import format_rate, format_size
from railyard.experiments.spec.experiment import FAMILIES, ExperimentSpec, FabricFamily, nominal_plan
from railyard.experiments.spec.hosts import UnderlaySpec
from railyard.topologies.capacity import Capacity, needs_batched, rails_cores
from railyard.topologies.fabric_kinds import BaseFabricSpec, FabricPlan
from railyard.topologies.plan import Plan
from railyard.topologies.spec import MIN_RAIL_BPS, FabricSpec

if TYPE_CHECKING:
    from railyard.topologies.build.network import EmulatedNet

MAX_DAYS: Final = 30  # of a workload with its repeats
CORE_BPS: Final[dict[Datapath, float]] = {"system": 40e9, "netdev-tso": 12.8e9, "netdev": 4.3e9}
"""Through one core's software switches at most, bit/s: a single TCP flow with nothing else to do, MTU 9000."""
BRIDGE_CORE_BPS: Final = 40e9  # the same through the kernel's own bridges, which HB domains are
LIGHT_FRAMES: Final = 1_200
"""Full frames a second, at all switches, that any machine carries: 2% of what a core does with the slowest datapath."""
_ONE_MACHINE: Final = ("routing", "background", "grid")
"""Sections of an experiment that need all GPUs on one machine."""
GPU_BYTES: Final = 1_000_000
"""Kernel memory of a GPU at least: a namespace with its tables, two veth pairs, shapers, a switch port."""


@FAMILIES.register("gpus")
class Gpus(FabricFamily):
    """Workloads are schedules between GPUs; routes and faults are the controller's and agents' matter."""

    Fabric = FabricSpec

    def check(self, spec: ExperimentSpec) -> None:
        """Check rates, then every section on every fabric."""
        for i, fabric in enumerate(spec.gpu_fabrics):
            if fabric.rail_rate != "auto" and fabric.rail_rate < MIN_RAIL_BPS:
                least = f"{format_rate(MIN_RAIL_BPS)} or more: packets are whole, and too few to show anything"
                raise BadInput(f"fabrics.{i}.rail_rate", format_rate(fabric.rail_rate), f"must be {least}")
            if fabric.rail_rate == "auto" and fabric.hb_rate != "auto":
                rate = fabric.model_dump(mode="json")["hb_rate"]
                allowed = "can't be given without rail_rate: an auto rail may come out above it"
                raise BadInput(f"fabrics.{i}.hb_rate", rate, allowed)
        _check_controller(spec)
        _check_hosts(spec)

    def check_budget(self, spec: ExperimentSpec, machine: Machine) -> None:
        """Raise BadInput for a fabric that needs too much memory, or whose links are together faster than all cores."""
        datapath, _ = datapath_choice(machine)
        for i, fabric in enumerate(spec.gpu_fabrics):
            need = fabric.gpus * GPU_BYTES
            if need > machine.memory_bytes:
                allowed = (
                    f"makes {fabric.gpus:,} GPUs with {fabric.rails} rails, which need {format_size(need, 2)} of memory"
                    f" or more: this machine has {format_size(machine.memory_bytes, 2)} free"
                )
                raise BadInput(f"fabrics.{i}.domains", fabric.domains, allowed)
            for field, rate, core_bps in (
                ("rail_rate", fabric.rail_rate, CORE_BPS[datapath]),
                ("hb_rate", fabric.hb_rate, BRIDGE_CORE_BPS),
            ):
                capacity_bps = core_bps * machine.cores
                if rate != "auto" and rate * fabric.gpus > capacity_bps:
                    allowed = (
                        f"is more than this machine carries: "
                        f"{fabric.gpus} links share {format_rate(capacity_bps, 3)} at best"
                        f" ({machine.cores:g} cores), so {format_rate(capacity_bps / fabric.gpus, 2)} or less; or auto"
                    )
                    raise BadInput(f"fabrics.{i}.{field}", format_rate(rate), allowed)

    def needs_capacity(self, spec: ExperimentSpec) -> bool:
        """Return False if all rail rates are given, and so low that any machine carries them."""
        given = [(fabric, fabric.rail_rate) for fabric in spec.gpu_fabrics]
        return any(rate == "auto" or rails_cores(fabric, rate, 1, 1) > LIGHT_FRAMES for fabric, rate in given)

    def capacity(self, spec: ExperimentSpec, datapath: Datapath) -> Capacity:
        """Measure what packets cost that come singly; if a given rate is too high for these, also many at once."""
        from railyard.controller.processes.clients import ControllerProcess
        from railyard.topologies.measure.capacity import measure_batched, measure_costs

        found = measure_costs(datapath, ControllerProcess())
        if any(needs_batched(fabric, found) for fabric in spec.gpu_fabrics):
            found = found._replace(batched_s=measure_batched(datapath, ControllerProcess()).batched_s)
        return found

    def nominal_plan(self, fabric: BaseFabricSpec) -> FabricPlan:
        """Return the plan with `auto` rails at their nominal rate."""
        assert isinstance(fabric, FabricSpec)
        return nominal_plan(fabric)

    def network(self, plan: FabricPlan, datapath: Datapath, user_app: str = "") -> "EmulatedNet":
        """Return a network with a controller."""
        from railyard.controller.processes.clients import ControllerProcess
        from railyard.experiments.run import observers
        from railyard.topologies.build.network import FabricNet

        assert isinstance(plan, Plan)

        def show(ns: int, event: str, detail: dict[str, Any]) -> None:
            observers.show(event, detail, ns)

        return FabricNet(plan, datapath, ControllerProcess(on_event=show, user_app=user_app))

    def step_count(self, spec: ExperimentSpec) -> int:
        """Return the number of builds and calibrations of shared fabrics."""
        from railyard.experiments.measures.definition import shared_reroutes, sharing_measures

        if not sharing_measures(spec):
            return 0
        fabrics = len(spec.fabrics)
        builds = sum(len(shared_reroutes(spec, number)) for number in range(fabrics))
        calibrations = fabrics
        return builds + calibrations

    def measure(self, spec: ExperimentSpec, *context: Any) -> None:
        """Run workloads, inject faults, and run all measures."""
        from railyard.experiments.run import gpu_fabrics

        gpu_fabrics.measure(spec, *context)


def _check_controller(spec: ExperimentSpec) -> None:
    """Raise BadInput for an app of the user's on fabrics whose switches need Railyard's flows."""
    if spec.controller is None:
        return
    if spec.machine_count > 1:
        raise BadInput("controller", spec.controller, "can't be given together with hosts of 2 or more")
    if any(fabric.optical for fabric in spec.gpu_fabrics):
        raise BadInput("controller", spec.controller, "can't be given with optical switches")


def _check_hosts(spec: ExperimentSpec) -> None:
    """Raise BadInput for what can't be on several machines, and for an underlay that nothing would use."""
    if spec.machine_count == 1:
        if spec.underlay != UnderlaySpec():
            raise BadInput("underlay", spec.underlay.model_dump(mode="json"), "is for hosts of 2 or more")
        return
    if not spec.underlay.interface:
        raise BadInput("underlay.interface", "", "must be named: the interface that leads to the other machines")
    for key in _ONE_MACHINE:
        if given := getattr(spec, key):
            count = len(given) if isinstance(given, tuple) else 1
            raise BadInput(key, count, "can't be given together with hosts: it needs all GPUs on one machine")
    for i, fabric in enumerate(spec.gpu_fabrics):
        if fabric.spine_count or fabric.optical or fabric.definition.is_graph:
            what = "optical switches" if fabric.optical else "links between switches"
            raise BadInput(f"fabrics.{i}.kind", fabric.kind, f"can't be on several hosts with {what}")
        if fabric.domains < spec.machine_count:
            allowed = f"must be {fabric.domains} or less: HB domains are whole on a machine, fabrics.{i} has no more"
            raise BadInput("hosts", spec.machine_count, allowed)
