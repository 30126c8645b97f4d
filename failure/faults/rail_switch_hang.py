"""Fault kind rail-switch-hang."""

import signal
from collections.abc import Sequence
from typing import Any

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.processes import SwitchFault, is_stopped, send_signal
from railyard.topologies.build.network import FabricNet


@fault("rail-switch-hang")
class RailSwitchHang(SwitchFault):
    """The process of a rail switch is stopped: its connections and carriers stay."""

    order, weight = 8, 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "rail switch stopped",
            "three heartbeats of 20 ms missing, the next check of them, and route changes",
            100,
            150,
        ),
    )

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Stop the switch's process."""
        send_signal(net, target, signal.SIGSTOP)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Continue the switch's process."""
        send_signal(net, target, signal.SIGCONT)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the process is stopped."""
        return (is_stopped(net, target),)

    def keeps_forwarding(self, datapath: str) -> bool:
        """Return True for the kernel's datapath, which works without the process."""
        return datapath == "system"
