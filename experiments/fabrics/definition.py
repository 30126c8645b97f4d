"""Classes of fabrics: what differs between fabrics of GPUs and multi-rail fabrics, whatever is measured on them.

A class is one module of `fabrics/`; its methods import what is slow to load (mininet). Its fabrics have one
specification class and one kind of plan.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from railyard.core.host import Datapath, Machine
from railyard.core.registry import Registry
from railyard.topologies.capacity import Capacity
from railyard.topologies.fabric_kinds import BaseFabricSpec, FabricPlan

if TYPE_CHECKING:
    from railyard.topologies.build.network import EmulatedNet

SpecT = TypeVar("SpecT", bound=BaseFabricSpec)
PlanT = TypeVar("PlanT", bound=FabricPlan)
EventCallback = Callable[[int, str, dict[str, Any]], None]
"""Called with the time (monotonic ns), the name and the detail of an event, from any thread."""


class FabricClass(Generic[SpecT, PlanT]):
    """Base of classes of fabrics: checks, plans and networks."""

    Fabric: ClassVar[type[BaseFabricSpec]] = BaseFabricSpec
    """The specification class of its fabrics."""
    unused_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of an experiment that have no effect on its fabrics."""

    def check(self, fabrics: Sequence[SpecT]) -> None:
        """Raise BadInput for rates that no fabric can have."""

    def check_budget(self, fabrics: Sequence[SpecT], machine: Machine) -> None:
        """Raise BadInput for a fabric that is certainly too large or too fast for this machine."""

    def needs_capacity(self, fabrics: Sequence[SpecT]) -> bool:
        """Return whether rates depend on what this machine carries, which takes 3 s to measure."""
        return True

    def capacity(self, fabrics: Sequence[SpecT], datapath: Datapath) -> Capacity:
        """Measure what this machine carries, in a sandbox."""
        raise NotImplementedError

    def nominal_plan(self, fabric: SpecT) -> PlanT:
        """Return the plan of a fabric, with `auto` rates at their nominal ones."""
        raise NotImplementedError

    def plans(self, fabrics: Sequence[SpecT], capacity: Capacity | None) -> list[PlanT]:
        """Return the plans of an experiment's fabrics, with `auto` rates that this machine carries.

        `capacity`: what the machine carries, if it was measured. BadInput for fabrics that it can't build.
        """
        raise NotImplementedError

    def check_plan(self, plan: PlanT, number: int, capacity: Capacity | None) -> None:
        """Raise BadInput for a plan that is faster than this machine carries. `number`: of the fabric."""

    def network(self, plan: PlanT, datapath: Datapath, on_event: EventCallback, user_app: str = "") -> "EmulatedNet":
        """Return a network of the plan, not yet started, with its controller if it has one, or the user's app."""
        raise NotImplementedError


FABRIC_CLASSES: Final = Registry[FabricClass[Any, Any]](
    "fabric class",
    "railyard.experiments.fabrics",
    FabricClass,
    ["Fabric", "capacity", "nominal_plan", "plans", "network"],
)


def class_of(fabric: type[BaseFabricSpec]) -> FabricClass[Any, Any]:
    """Return the class of fabrics with this specification class."""
    return next(definition for definition in FABRIC_CLASSES.values() if issubclass(fabric, definition.Fabric))
