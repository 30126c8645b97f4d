"""Faults of GPUs: the base class, and what happens to a GPU's processes and interfaces."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from railyard.failure.faults.definition import FaultKind
from railyard.failure.faults.support.impact import Impact
from railyard.failure.faults.support.links import is_set_up, is_up, set_links
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import Plan
from railyard.topologies.routing import route_commands


def processes_in(gpu: str) -> list[int]:
    """Return the processes whose network namespace is this GPU's."""
    namespace_inode = namespaces.path(gpu).stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/net").stat().st_ino == namespace_inode:
                    found.append(int(entry.name))
            except OSError:  # the process ended meanwhile
                continue
    return found


def signal_all(gpu: str, number: signal.Signals) -> None:
    """Send a signal to all processes of a GPU."""
    for pid in processes_in(gpu):
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(pid, number)


def disconnect(net: FabricNet, gpu: str) -> None:
    """Set all interfaces of a GPU down."""
    set_links(gpu, dict.fromkeys(reversed(net.plan.devices), "down"))


def boot(net: FabricNet, gpu: str) -> None:
    """Set a GPU's interfaces up and restore its routes.

    The rail cables get their carriers after the routes: packets that arrive earlier would be lost on their way through.
    """
    ends = [link.b for link in net.plan.rail_links(gpu_of_name(gpu))]
    cables_up = [far for far in ends if is_set_up(far)]  # not those that another fault has cut
    for far in cables_up:
        set_links(far.node, {far.interface: "down"})
    with namespaces.inside(gpu):
        commands = route_commands(net.plan, gpu_of_name(gpu), net.backups)
        up = "".join(f"link set {device} up\n" for device in net.plan.devices)
        namespaces.run(["ip", "-batch", "-"], up + commands)
    for far in cables_up:
        set_links(far.node, {far.interface: "up"})


def links_down(net: FabricNet, gpu: str) -> tuple[bool, ...]:
    """Return whether each rail link, and the HB link, of a GPU is down."""
    return tuple(not is_up(gpu, device) for device in (*net.plan.devices[1:], "hb0"))


class GpuFault(FaultKind):
    """A fault of one GPU, which is the target."""

    target_sort = "GPU"
    stops_gpus = True

    def targets(self, plan: Plan) -> Sequence[str]:
        """Return all GPUs."""
        return [gpu.name for gpu in plan.gpus]

    def impact(self, plan: Plan, target: str, p: Any) -> Impact:
        """Return a dead GPU."""
        return Impact(nodes=frozenset({target}))
