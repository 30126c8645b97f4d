"""Faults of one electrical switch: the base class, and signals to its process. Its cables keep their carrier."""

import os
import signal
from collections.abc import Sequence
from typing import Any, ClassVar

import psutil

from railyard.failure.faults.definition import FaultKind
from railyard.failure.faults.support.impact import Impact
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import Plan


def kill(net: FabricNet, switch: str) -> None:
    """Kill a switch's ovs-vswitchd."""
    with namespaces.inside(switch):
        net.ovs[switch].kill()


def start(net: FabricNet, switch: str) -> None:
    """Start a switch's ovs-vswitchd on its database."""
    with namespaces.inside(switch):
        net.ovs[switch].start_vswitchd()


def is_dead(net: FabricNet, switch: str) -> bool:
    """Whether a switch's ovs-vswitchd has ended."""
    return net.ovs[switch].processes["ovs-vswitchd"].poll() is not None


def send_signal(net: FabricNet, switch: str, number: signal.Signals) -> None:
    """Send a signal to a switch's ovs-vswitchd."""
    os.kill(net.ovs[switch].vswitchd_pid, number)


def is_stopped(net: FabricNet, switch: str) -> bool:
    """Whether a switch's ovs-vswitchd is stopped by a signal."""
    return psutil.Process(net.ovs[switch].vswitchd_pid).status() == psutil.STATUS_STOPPED


class SwitchFault(FaultKind):
    """A fault of a rail switch, or of the single switch; the target is the switch."""

    target_sort = "rail switch"
    roles: ClassVar[tuple[str, ...]] = ("rail", "single")

    def targets(self, plan: Plan) -> Sequence[str]:
        """Return all switches of these roles."""
        return [switch.name for switch in plan.switches if switch.role in self.roles]

    def impact(self, plan: Plan, target: str, p: Any) -> Impact:
        """Return a dead switch."""
        return Impact(nodes=frozenset({target}))


class SwitchCrash(SwitchFault):
    """A switch whose process is killed, and started again by the repair."""

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Kill the switch's process."""
        kill(net, target)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Start the switch's process."""
        start(net, target)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the process has ended."""
        return (is_dead(net, target),)
