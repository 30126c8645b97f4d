"""Faults of processes: base classes for GPUs, electrical switches, and the controller with its registry.

A dead switch's cables keep their carrier. Faults of the control plane are observed at sockets: a controller listens in
each switch's namespace, where nothing else does, and a registry answers at its address.
"""

import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from railyard.core import watch
from railyard.core.errors import CheckFailed
from railyard.failure.faults.definition import ControllerEvent, FaultKind
from railyard.failure.faults.support.impact import FaultScope, Impact
from railyard.failure.faults.support.links import is_set_up, is_up, set_groups, set_link
from railyard.topologies.addresses import GPU_SWITCHES, gpu_of_name, switch_title
from railyard.topologies.build import namespaces
from railyard.topologies.build.carrier import HELD_GROUP
from railyard.topologies.build.network import EmulatedNet, FabricNet
from railyard.topologies.fabric_kinds import End, FabricPlan, Link
from railyard.topologies.routing import route_commands

if TYPE_CHECKING:
    from railyard.controller.processes.clients import ControllerProcess


def processes_in(gpu: str) -> list[int]:
    """Return the processes whose network namespace is this GPU's."""
    namespace_inode = namespaces.path(gpu).stat().st_ino
    pids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        # the process ended meanwhile
        with suppress(OSError):
            if (entry / "ns/net").stat().st_ino == namespace_inode:
                pids.append(int(entry.name))
    return pids


def signal_all(gpu: str, number: signal.Signals) -> None:
    """Send a signal to all processes of a GPU."""
    for pid in processes_in(gpu):
        # it has just ended by itself
        with suppress(ProcessLookupError):
            watch.send_signal(pid, number)


def gpu_links(net: FabricNet, gpu: str) -> tuple[Link, ...]:
    """Return all links of a GPU: rail0 and those of other planes, then hb0."""
    return net.plan.gpu_links(gpu_of_name(gpu))


def boot(net: FabricNet, gpu: str) -> None:
    """Set a GPU's interfaces up and restore its routes."""
    # the link of a NIC that other GPUs use stays as it is
    links = () if net.plan.nics else net.plan.rail_links(gpu_of_name(gpu))
    # The rail cables get their carriers after the routes: packets that arrive earlier would be lost on their way
    # through. A cable that another fault has cut stays as it is.
    cables_up: list[End] = []
    to_other_machines: list[End] = []
    for link in links:
        if not net.has(link.b.node):
            to_other_machines.append(link.a)
        elif is_set_up(link.b):
            cables_up.append(link.b)
    set_groups(to_other_machines, HELD_GROUP)
    for far in cables_up:
        set_link(far, "down")
    with namespaces.inside(gpu):
        commands = route_commands(net.plan, gpu_of_name(gpu), net.backups)
        up = "".join(f"link set {device} up\n" for device in net.plan.devices)
        namespaces.run(["ip", "-batch", "-"], up + commands)
    for far in cables_up:
        set_link(far, "up")
    set_groups(to_other_machines, 0)


class GpuFault(FaultKind):
    """A fault of one GPU, which is the target."""

    target_sort = "GPU"
    stops_gpus = True

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return all GPUs: the nodes that have a link into an HB domain."""
        return plan.link_names("hb")

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return a dead GPU."""
        return Impact(nodes=frozenset({target}))


class CrashedGpus(GpuFault):
    """A crash of one GPU or several: they lose all links and all their processes."""

    spans_machines = True

    def gpus(self, plan: FabricPlan, target: str) -> Sequence[str]:
        """Return the GPUs that crash."""
        return [target]

    def inject(self, net: FabricNet, target: str, p: Any) -> None:
        """Set all interfaces down, and kill all processes in the GPUs' namespaces."""
        gpus = self.gpus(net.plan, target)
        for gpu in gpus:
            for device in reversed(net.plan.devices):
                set_link(End(gpu, device), "down")
        for gpu in gpus:
            signal_all(gpu, signal.SIGKILL)

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """Set the interfaces up, with their routes."""
        for gpu in self.gpus(net.plan, target):
            boot(net, gpu)

    def symptoms(self, net: FabricNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether each link is down."""
        symptoms: list[bool] = []
        for gpu in self.gpus(net.plan, target):
            symptoms += [not is_up(link.a) for link in gpu_links(net, gpu)]
        return symptoms


class SwitchFault(FaultKind):
    """A fault of a switch that rail links of GPUs lead to; the target is the switch."""

    spans_machines = True
    target_sort = "rail switch"
    roles: ClassVar[tuple[str, ...]] = GPU_SWITCHES

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return all switches of these roles."""
        return [switch.name for switch in plan.switches_of(*self.roles)]

    def target_sort_on(self, plan: FabricPlan) -> str:
        """Return what the fabric's switches of these roles are called."""
        titles = [switch_title(switch.role, switch.name) for switch in plan.switches_of(*self.roles)]
        return " or ".join(dict.fromkeys(titles)) or self.target_sort

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return a dead switch."""
        return Impact(nodes=frozenset({target}))


class SwitchCrash(SwitchFault):
    """A switch whose ovs-vswitchd is killed, and started again on its database by the repair."""

    def inject(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Kill the switch's process."""
        with namespaces.inside(target):
            net.ovs[target].kill()

    def repair(self, net: EmulatedNet, target: str, p: Any) -> None:
        """Start the switch's process."""
        with namespaces.inside(target):
            net.ovs[target].start_vswitchd()

    def symptoms(self, net: EmulatedNet, target: str, p: Any) -> Sequence[bool]:
        """Return whether the process has ended."""
        return (net.ovs[target].processes["ovs-vswitchd"].poll() is not None,)


def controller_of(net: FabricNet) -> "ControllerProcess":
    """Return the fabric's controller. CheckFailed if it has none."""
    if net.fabric_controller is None:
        raise CheckFailed("the fabric has no controller that could crash")
    return cast("ControllerProcess", net.fabric_controller)


def has_listener(switch: str) -> bool:
    """Return whether any TCP socket listens in the switch's namespace."""
    with namespaces.inside(switch):
        lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[3] == "0A" for line in lines)  # column st: LISTEN


def is_listening(address: str) -> bool:
    """Return whether a server listens at `unix:PATH` or `etcd:HOST:PORT`."""
    kind, _, location = address.partition(":")
    if kind == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(location) == 0
    host, _, port = location.rpartition(":")
    with socket.socket(socket.AF_INET) as probe:
        return probe.connect_ex((host, int(port))) == 0


class ControlPlaneFault(FaultKind):
    """A fault of a control process, whose name is the only target. It is over when the process has restarted."""

    is_control_plane = True
    process: str

    def targets(self, plan: FabricPlan) -> Sequence[str]:
        """Return the process, where the fabric has it."""
        return [name for name in plan.control_processes if name == self.process]

    def target_problem(self, plan: FabricPlan, target: str) -> str:
        """Return what the target must be; empty if it is."""
        if not self.targets(plan):
            return f"can't crash on {plan.title}: it has no {self.process}"
        return "" if target == self.process else f"must be {self.process} for {self.process}-crash"

    def impact(self, plan: FabricPlan, target: str, p: Any) -> Impact:
        """Return nothing: no part of the data plane fails."""
        return Impact()

    def scope(self, plan: FabricPlan, target: str, p: Any) -> FaultScope:
        """Return the process."""
        return FaultScope(frozenset({target}))

    def end_ns(self, target: str, injected_ns: int, repair_start_ns: int, events: Sequence[ControllerEvent]) -> int:
        """Return when the process had restarted."""
        restarts: list[int] = []
        for at_ns, kind, _ in events:
            if kind == f"{target}-restarted" and at_ns >= repair_start_ns:
                restarts.append(at_ns)
        return min(restarts, default=repair_start_ns)
