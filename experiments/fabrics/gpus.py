"""Fabrics of GPUs in HB domains, whose routes are the controller's and agents' matter."""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from railyard.core.errors import BadInput
from railyard.core.host import Datapath, Machine, datapath_choice
from railyard.core.units import format_rate, format_size
from railyard.experiments.fabrics.definition import FABRIC_CLASSES, EventCallback, FabricClass
from railyard.experiments.spec.experiment import nominal_plan
from railyard.topologies.capacity import Capacity, auto_rail_bps, max_rail_bps, needs_batched, rails_cores
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import MIN_RAIL_BPS, FabricSpec

if TYPE_CHECKING:
    from railyard.topologies.build.network import EmulatedNet

CORE_BPS: Final[dict[Datapath, float]] = {"system": 40e9, "netdev-tso": 12.8e9, "netdev": 4.3e9}
"""Through one core's software switches at most, bit/s: a single TCP flow with nothing else to do, MTU 9000."""
# the same through the kernel's own bridges, which HB domains are
BRIDGE_CORE_BPS: Final = 40e9
LIGHT_FRAMES: Final = 1_200
"""Full frames a second, at all switches, that any machine carries: 2% of what a core does with the slowest datapath."""
GPU_BYTES: Final = 1_000_000
"""Kernel memory of a GPU at least: a namespace with its tables, two veth pairs, shapers, a switch port."""


@FABRIC_CLASSES.register("gpus")
class Gpus(FabricClass[FabricSpec, Plan]):
    """GPUs in HB domains, joined by rails; a controller and agents make the routes."""

    Fabric = FabricSpec

    def check(self, fabrics: Sequence[FabricSpec]) -> None:
        """Raise BadInput for a rail that is too slow, and for a HB rate beside an `auto` rail."""
        for i, fabric in enumerate(fabrics):
            if fabric.rail_rate != "auto" and fabric.rail_rate < MIN_RAIL_BPS:
                least = f"{format_rate(MIN_RAIL_BPS)} or more: packets are whole, and too few to show anything"
                raise BadInput(f"fabrics.{i}.rail_rate", format_rate(fabric.rail_rate), f"must be {least}")
            if fabric.rail_rate == "auto" and fabric.hb_rate != "auto":
                rate = fabric.model_dump(mode="json")["hb_rate"]
                allowed = "can't be given without rail_rate: an auto rail may come out above it"
                raise BadInput(f"fabrics.{i}.hb_rate", rate, allowed)

    def check_budget(self, fabrics: Sequence[FabricSpec], machine: Machine) -> None:
        """Raise BadInput for a fabric that needs too much memory, or whose links are together faster than all cores."""
        datapath, _ = datapath_choice(machine)
        for i, fabric in enumerate(fabrics):
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
                links = fabric.domains * (fabric.rail_count if field == "rail_rate" else fabric.rails)
                capacity_bps = core_bps * machine.cores
                if rate != "auto" and rate * links > capacity_bps:
                    allowed = (
                        f"is more than this machine carries: "
                        f"{links} links share {format_rate(capacity_bps, 3)} at best"
                        f" ({machine.cores:g} cores), so {format_rate(capacity_bps / links, 2)} or less; or auto"
                    )
                    raise BadInput(f"fabrics.{i}.{field}", format_rate(rate), allowed)

    def needs_capacity(self, fabrics: Sequence[FabricSpec]) -> bool:
        """Return False if all rail rates are given, and so low that any machine carries them."""
        for fabric in fabrics:
            rate = fabric.rail_rate
            if rate == "auto" or rails_cores(fabric, rate, 1, 1) > LIGHT_FRAMES:
                return True
        return False

    def capacity(self, fabrics: Sequence[FabricSpec], datapath: Datapath) -> Capacity:
        """Measure what packets cost that come singly; if a given rate is too high for these, also many at once."""
        from railyard.controller.processes.clients import ControllerProcess
        from railyard.topologies.measure.capacity import measure_batched, measure_costs

        capacity = measure_costs(datapath, ControllerProcess())
        # a given rate is refused only if the machine couldn't carry it even if frames came many at once
        if any(needs_batched(fabric, capacity) for fabric in fabrics):
            batched_s = measure_batched(datapath, ControllerProcess()).batched_s
            capacity = capacity._replace(batched_s=batched_s)
        return capacity

    def nominal_plan(self, fabric: FabricSpec) -> Plan:
        """Return the plan with `auto` rails at their nominal rate."""
        return nominal_plan(fabric)

    def plans(self, fabrics: Sequence[FabricSpec], capacity: Capacity | None) -> list[Plan]:
        """Return the plans, with the same rate for all `auto` rails."""
        # one rate for all fabrics of an experiment, so that their times can be compared
        auto_bps = auto_rail_bps(fabrics, capacity) if capacity else 0
        return [make_plan(fabric, auto_bps) for fabric in fabrics]

    def check_plan(self, plan: Plan, number: int, capacity: Capacity | None) -> None:
        """Raise BadInput for a fabric whose rails are faster than this machine carries. `number`: of the fabric."""
        max_bps = max_rail_bps(plan.spec, capacity) if capacity else inf
        if plan.rail_bps > max_bps:
            most = f"{format_rate(max_bps, 2)} or less for {plan.spec.gpus} GPUs, or auto"
            value = format_rate(plan.rail_bps)
            raise BadInput(f"fabrics.{number}.rail_rate", value, f"is more than this machine carries: {most}")

    def network(self, plan: Plan, datapath: Datapath, on_event: EventCallback, user_app: str = "") -> "EmulatedNet":
        """Return a network with a controller."""
        from railyard.controller.processes.clients import ControllerProcess
        from railyard.topologies.build.network import FabricNet

        return FabricNet(plan, datapath, ControllerProcess(on_event=on_event, user_app=user_app))
