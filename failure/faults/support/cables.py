"""Faults of one GPU cable: the base class, and how a cable end is cut.

A cable is cut at the switch's end: a host keeps its routes when its carrier is lost, whereas Linux removes them from an
interface that is itself set down, as at a crashed GPU.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from railyard.failure.faults.definition import FaultKind
from railyard.failure.faults.support.impact import Cable, Impact, gpu_cable
from railyard.failure.faults.support.links import set_links
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.build.network import FabricNet
from railyard.topologies.optical import Layer
from railyard.topologies.plan import End, Link, Plan


def rail_link(net: FabricNet, gpu: str) -> Link:
    """Return a GPU's rail cable."""
    return net.plan.rail_link(gpu_of_name(gpu))


def hb_link(net: FabricNet, gpu: str) -> Link:
    """Return a GPU's cable to its HB domain."""
    return net.plan.hb_link(gpu_of_name(gpu))


def cut(end: End) -> None:
    """Set one end of a cable down: the other end loses its carrier."""
    set_links(end.node, {end.interface: "down"})


def reconnect(end: End) -> None:
    """Set one end of a cable up."""
    set_links(end.node, {end.interface: "up"})


class CableFault(FaultKind):
    """A fault of the cable of one GPU in a layer; the target is the GPU."""

    target_sort = "GPU"
    layer: ClassVar[Layer] = "rail"

    def targets(self, plan: Plan) -> Sequence[str]:
        """Return all GPUs."""
        return [gpu.name for gpu in plan.gpus]

    def cable(self, plan: Plan, target: str) -> Cable:
        """Return the GPU's cable."""
        return gpu_cable(plan, gpu_of_name(target), self.layer)

    def impact(self, plan: Plan, target: str, p: Any) -> Impact:
        """Return a dead cable."""
        return Impact(cables=frozenset({self.cable(plan, target)}))
