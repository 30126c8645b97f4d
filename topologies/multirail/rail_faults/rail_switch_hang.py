"""Fault `rail-switch-hang` of a rail: SIGSTOP to its switch, which forwards nothing; links keep their carrier."""

import os
import signal
import time
from typing import TYPE_CHECKING

from railyard.topologies.multirail.rail_fault import RAIL_FAULTS, RailFault

if TYPE_CHECKING:
    from railyard.topologies.multirail.net import MultirailNet


class RailSwitchHang(RailFault):
    """A stopped switch."""

    def inject(self, net: "MultirailNet", node: str, rail: int) -> int:
        at_ns = time.monotonic_ns()
        os.kill(net.ovs[rail].vswitchd_pid, signal.SIGSTOP)
        return at_ns

    def repair(self, net: "MultirailNet", node: str, rail: int) -> None:
        os.kill(net.ovs[rail].vswitchd_pid, signal.SIGCONT)


RAIL_FAULTS.add("rail-switch-hang", RailSwitchHang())
