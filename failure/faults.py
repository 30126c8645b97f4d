"""Breaking things and mending them, on a fabric that runs. What breaks is a real cable end, process or interface.

| fault             | injection                                                           | repair                     |
|-------------------|---------------------------------------------------------------------|----------------------------|
| link-down         | the switch's end of the cable is set down: the GPU sees no carrier  | set up again               |
| rail-switch-crash | SIGKILL to the switch's ovs-vswitchd; the cables keep their carrier | start it on its database   |
| gpu-crash         | both interfaces go down, SIGKILL to all processes in its namespace  | interfaces up, routes anew |

A cable is cut at the switch's end, since a host keeps its routes when light is lost, and Linux takes them away from an
interface that is itself set down: which is what a crashed GPU's reboot has to make good.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pyroute2 import IPRoute

from topologies import namespaces
from topologies.addresses import gpu_of_name
from topologies.errors import CheckFailed
from topologies.net import FabricNet
from topologies.routes import route_commands

FaultKind = Literal["link-down", "rail-switch-crash", "gpu-crash"]
SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What to break: `target` is a GPU (link-down: its rail link) or a rail switch."""

    kind: FaultKind
    target: str


def inject(net: FabricNet, fault: Fault) -> int:
    """Break it, and tell when (monotonic ns, just before).

    CheckFailed if it was broken already, or isn't now: a fault that isn't there would make a fine recovery time.
    """
    if bites(net, fault):
        raise CheckFailed(f"{fault.kind} at {fault.target} can't be injected: it is broken already")
    at_ns = time.monotonic_ns()
    _INJECT[fault.kind](net, fault.target)
    if not _comes(net, fault, broken=True):
        raise CheckFailed(f"{fault.kind} at {fault.target} did not bite")
    return at_ns


def repair(net: FabricNet, fault: Fault) -> None:
    """Mend it. CheckFailed if it is still broken afterwards."""
    _REPAIR[fault.kind](net, fault.target)
    if not _comes(net, fault, broken=False):
        raise CheckFailed(f"{fault.kind} at {fault.target} is still there after its repair")


def bites(net: FabricNet, fault: Fault) -> bool:
    """True while the thing is broken, by looking at the thing itself."""
    if fault.kind == "rail-switch-crash":
        return net.ovs[fault.target].processes["ovs-vswitchd"].poll() is not None
    with namespaces.inside(fault.target):
        carrier = namespaces.run(["ip", "-br", "link", "show", "dev", "rail0"]).split()[1]
    return carrier != "UP"


def _comes(net: FabricNet, fault: Fault, broken: bool) -> bool:
    """Whether it soon is as wanted: the kernel tells of a carrier a moment after it changed."""
    deadline = time.monotonic() + SETTLE_S
    while bites(net, fault) != broken:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _switch_end(net: FabricNet, gpu: str, state: str) -> None:
    end = net.plan.rail_link(gpu_of_name(gpu)).b
    _set_links(end.node, {end.interface: state})


def _set_links(node: str, states: dict[str, str]) -> None:
    """By netlink, not by starting a program: that alone would take longer than some recoveries."""
    with namespaces.inside(node), IPRoute() as netlink:
        for interface, state in states.items():
            netlink.link("set", index=socket.if_nametoindex(interface), state=state)


def _cut(net: FabricNet, gpu: str) -> None:
    _switch_end(net, gpu, "down")


def _splice(net: FabricNet, gpu: str) -> None:
    _switch_end(net, gpu, "up")


def _kill_switch(net: FabricNet, switch: str) -> None:
    with namespaces.inside(switch):
        net.ovs[switch].kill()


def _start_switch(net: FabricNet, switch: str) -> None:
    with namespaces.inside(switch):
        net.ovs[switch].start_vswitchd()


def processes_in(gpu: str) -> list[int]:
    """The processes whose network namespace is this GPU's."""
    wanted = namespaces.path(gpu).stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/net").stat().st_ino == wanted:
                    found.append(int(entry.name))
            except OSError:  # it ended while we looked
                continue
    return found


def _crash_gpu(net: FabricNet, gpu: str) -> None:
    _set_links(gpu, {"rail0": "down", "hb0": "down"})
    for pid in processes_in(gpu):
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(pid, signal.SIGKILL)


def _boot_gpu(net: FabricNet, gpu: str) -> None:
    with namespaces.inside(gpu):
        commands = route_commands(net.plan, gpu_of_name(gpu), net.plan.policy, net.backups)
        namespaces.run(["ip", "-batch", "-"], "link set hb0 up\nlink set rail0 up\n" + commands)


_INJECT: Final[dict[FaultKind, Callable[[FabricNet, str], None]]] = {
    "link-down": _cut,
    "rail-switch-crash": _kill_switch,
    "gpu-crash": _crash_gpu,
}
_REPAIR: Final[dict[FaultKind, Callable[[FabricNet, str], None]]] = {
    "link-down": _splice,
    "rail-switch-crash": _start_switch,
    "gpu-crash": _boot_gpu,
}
