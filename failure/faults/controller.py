"""The controller and its registry, which die and are started again while packets flow.

What shows it is the sockets: a controller listens in each switch's namespace, where nobody else does, and a registry
answers at its address.
"""

import socket
import time
from pathlib import Path
from typing import Final

from railyard.core.errors import CheckFailed
from railyard.failure.faults.definition import FaultDefinition
from railyard.failure.scenario.kinds import Fault
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricController, FabricNet

_LISTEN: Final = "0A"  # /proc/net/tcp, column st
_START_S: Final = 10.0  # etcd takes a second


def _controller(net: FabricNet) -> FabricController:
    if net.fabric_controller is None:
        raise CheckFailed("the fabric has no controller that could crash")
    return net.fabric_controller


def has_listener(switch: str) -> bool:
    """Whether any TCP socket listens in the switch's namespace."""
    with namespaces.inside(switch):
        lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[3] == _LISTEN for line in lines)


CRASH: Final = FaultDefinition(
    apply=lambda net, fault: _controller(net).crash(),
    repair=lambda net, fault: _controller(net).restart(),
    symptoms=lambda net, fault: [not has_listener(switch.name) for switch in net.plan.switches],
)


def is_listening(address: str) -> bool:
    """Whether somebody listens at `unix:PATH` or `etcd:HOST:PORT`."""
    kind, _, location = address.partition(":")
    host, _, port = location.rpartition(":")
    family, at = (socket.AF_UNIX, location) if kind == "unix" else (socket.AF_INET, (host, int(port)))
    with socket.socket(family) as probe:
        return probe.connect_ex(at) == 0


def _registry(net: FabricNet) -> str:
    if not (address := _controller(net).registry_address):
        raise CheckFailed("the fabric's controller keeps no registry that could crash")
    return address


def _restart_registry(net: FabricNet, fault: Fault) -> None:
    _controller(net).restart_registry()
    deadline = time.monotonic() + _START_S
    while not is_listening(_registry(net)) and time.monotonic() < deadline:
        time.sleep(0.01)


REGISTRY_CRASH: Final = FaultDefinition(
    apply=lambda net, fault: _controller(net).crash_registry(),
    repair=_restart_registry,
    symptoms=lambda net, fault: [not is_listening(_registry(net))],
)
