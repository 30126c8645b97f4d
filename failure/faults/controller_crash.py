"""Fault kind controller-crash."""

from collections.abc import Sequence
from typing import Any

from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.processes import ControlPlaneFault, controller_of, has_listener
from railyard.topologies.build.network import FabricNet


@fault("controller-crash")
class ControllerCrash(ControlPlaneFault):
    """The controller's process is killed, and started again by the repair."""

    order = 14
    process = "controller"
    stops_controller = True

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Kill the controller."""
        controller_of(net).crash()

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Start a new controller."""
        controller_of(net).restart()

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return for each switch whether no controller listens there."""
        return [not has_listener(switch.name) for switch in net.plan.switches]
