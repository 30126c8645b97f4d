"""Fault kind rail-switch-hang."""

import signal
from collections.abc import Sequence
from typing import Any

import psutil

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.processes import SwitchFault
from railyard.topologies.build.network import EmulatedNet


@fault("rail-switch-hang")
class RailSwitchHang(SwitchFault):
    """The process of a rail switch is stopped: its connections and carriers stay."""

    order = 8
    weight = 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "switch stopped",
            "three heartbeats of 20 ms missing, the next check of them, and route changes",
            100,
            150,
        ),
    )

    def inject(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Stop the switch's process."""
        net.ovs[target].signal(signal.SIGSTOP)

    def repair(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Continue the switch's process."""
        net.ovs[target].signal(signal.SIGCONT)

    def symptoms(self, net: EmulatedNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the process is stopped."""
        return (psutil.Process(net.ovs[target].vswitchd_pid).status() == psutil.STATUS_STOPPED,)

    def keeps_forwarding(self, datapath: str) -> bool:
        """Return True for the kernel's datapath, which works without the process."""
        return datapath == "system"
