"""Fault kind gpu-crash."""

import signal
from collections.abc import Sequence
from typing import Any

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.processes import GpuFault, boot, disconnect, links_down, signal_all
from railyard.topologies.build.network import FabricNet


@fault("gpu-crash")
class GpuCrash(GpuFault):
    """A GPU loses both links and all its processes."""

    order, weight = 11, 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "GPU crash, what it carried for others",
            "its carrier is lost (PORT_STATUS), a decision, and route changes at all sources that it forwarded for",
            100,
            150,
        ),
    )

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Set both interfaces down, and kill all processes in the GPU's namespace."""
        disconnect(net, target)
        signal_all(target, signal.SIGKILL)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the interfaces up, with their routes."""
        boot(net, target)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether each link is down."""
        return links_down(net, target)
