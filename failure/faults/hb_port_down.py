"""Fault kind hb-port-down."""

from collections.abc import Sequence
from typing import Any, ClassVar

from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.links import CableFault, cut, hb_link, is_up, reconnect
from railyard.topologies.build.network import FabricNet
from railyard.topologies.spec import Layer


@fault("hb-port-down")
class HbPortDown(CableFault):
    """The cable of a GPU to its HB domain loses its carrier."""

    order, weight = 6, 1.0
    layer: ClassVar[Layer] = "hb"

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the bridge's end of the cable down."""
        cut(hb_link(net, target).b)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the bridge's end up."""
        reconnect(hb_link(net, target).b)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the GPU's end has no carrier."""
        return (not is_up(target, "hb0"),)
