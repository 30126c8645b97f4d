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


def disconnect(gpu: str) -> None:
    """Set both interfaces of a GPU down."""
    set_links(gpu, {"rail0": "down", "hb0": "down"})


def boot(net: FabricNet, gpu: str) -> None:
    """Set a GPU's interfaces up and restore its routes.

    The rail cable gets its carrier after the routes: packets that arrive earlier would be lost on their way through.
    """
    far = net.plan.rail_link(gpu_of_name(gpu)).b
    is_cable_up = is_set_up(far)  # False if another fault has cut the cable and isn't repaired yet
    if is_cable_up:
        set_links(far.node, {far.interface: "down"})
    with namespaces.inside(gpu):
        commands = route_commands(net.plan, gpu_of_name(gpu), net.backups)
        namespaces.run(["ip", "-batch", "-"], "link set hb0 up\nlink set rail0 up\n" + commands)
    if is_cable_up:
        set_links(far.node, {far.interface: "up"})


def links_down(gpu: str) -> tuple[bool, bool]:
    """Return whether the rail link and the HB link of a GPU are down."""
    return not is_up(gpu, "rail0"), not is_up(gpu, "hb0")


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
