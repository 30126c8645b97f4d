"""Faults of the controller and its registry, which die and are started again while packets flow.

They are observed at sockets: a controller listens in each switch's namespace, where nothing else does, and a registry
answers at its address.
"""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from railyard.core.errors import CheckFailed
from railyard.failure.faults.definition import ControllerEvent, FaultKind
from railyard.failure.faults.support.impact import FaultScope, Impact
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricController, FabricNet
from railyard.topologies.plan import Plan

_LISTEN: Final = "0A"  # /proc/net/tcp, column st


def controller_of(net: FabricNet) -> FabricController:
    """Return the fabric's controller. CheckFailed if it has none."""
    if net.fabric_controller is None:
        raise CheckFailed("the fabric has no controller that could crash")
    return net.fabric_controller


def has_listener(switch: str) -> bool:
    """Whether any TCP socket listens in the switch's namespace."""
    with namespaces.inside(switch):
        lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[3] == _LISTEN for line in lines)


def is_listening(address: str) -> bool:
    """Whether a server listens at `unix:PATH` or `etcd:HOST:PORT`."""
    kind, _, location = address.partition(":")
    host, _, port = location.rpartition(":")
    family, at = (socket.AF_UNIX, location) if kind == "unix" else (socket.AF_INET, (host, int(port)))
    with socket.socket(family) as probe:
        return probe.connect_ex(at) == 0


class ControlPlaneFault(FaultKind):
    """A fault of a control process, whose name is the only target. It is over when the process has restarted."""

    is_control_plane = True
    process: str

    def targets(self, plan: Plan) -> Sequence[str]:
        """Return the process."""
        return [self.process]

    def target_problem(self, plan: Plan, target: str) -> str:
        """Return what the target must be; empty if it is."""
        return "" if target == self.process else f"must be {self.process} for {self.process}-crash"

    def impact(self, plan: Plan, target: str, p: Any) -> Impact:
        """Return nothing: no part of the data plane fails."""
        return Impact()

    def scope(self, plan: Plan, target: str, p: Any) -> FaultScope:
        """Return the process."""
        return FaultScope(frozenset({target}))

    def end_ns(self, target: str, injected_ns: int, repair_start_ns: int, events: Sequence[ControllerEvent]) -> int:
        """Return when the process had restarted."""
        restarts = (at for at, kind, _ in events if kind == f"{target}-restarted" and at >= repair_start_ns)
        return min(restarts, default=repair_start_ns)
