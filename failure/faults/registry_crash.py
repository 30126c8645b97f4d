"""Fault kind registry-crash."""

from collections.abc import Sequence
from typing import Any, Final

from railyard.controller.health.estimator import RegistryKind
from railyard.core.config import ConfigModel
from railyard.core.errors import CheckFailed
from railyard.core.wait import poll
from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.impact import FaultScope
from railyard.failure.faults.support.processes import ControlPlaneFault, controller_of, is_listening
from railyard.topologies.build.network import FabricNet
from railyard.topologies.fabric_kinds import FabricPlan

_START_S: Final = 10.0  # etcd takes a second


@fault("registry-crash")
class RegistryCrash(ControlPlaneFault):
    """The server of the health scores' registry is killed, and started again by the repair."""

    class Parameters(ConfigModel):
        """`registry`: the kind of registry that runs, and crashes."""

        registry: RegistryKind = "embedded"

    order = 15
    process = "registry"

    def registry(self, p: Parameters) -> RegistryKind:
        """Return the kind of registry."""
        return p.registry

    def scope(self, plan: FabricPlan, target: str, p: Any) -> FaultScope:
        """Return the registry; the controller is required, which starts its server or uses it."""
        return FaultScope(frozenset({target}), frozenset({"controller"}))

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Kill the registry's server."""
        controller_of(net).set_registry(up=False)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Start the registry's server, and wait until it listens."""
        controller_of(net).set_registry(up=True)
        poll(lambda: is_listening(_address(net)), _START_S)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the registry doesn't listen."""
        return (not is_listening(_address(net)),)


def _address(net: FabricNet) -> str:
    if not (address := controller_of(net).registry_address):
        raise CheckFailed("the fabric's controller keeps no registry that could crash")
    return address
