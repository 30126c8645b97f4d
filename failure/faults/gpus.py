"""GPUs that crash or hang, one or a whole server of them."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from railyard.failure.faults.cables import hb_link, rail_link
from railyard.failure.faults.definition import FaultDefinition
from railyard.failure.faults.links import is_set_up, is_up, set_links
from railyard.failure.faults.loss import all_lost, disable_loss, enable_loss, prepare_loss
from railyard.failure.scenario.kinds import Fault
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.routing import route_commands


def processes_in(gpu: str) -> list[int]:
    """The processes whose network namespace is this GPU's."""
    namespace_inode = namespaces.path(gpu).stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/net").stat().st_ino == namespace_inode:
                    found.append(int(entry.name))
            except OSError:  # it ended while we looked
                continue
    return found


def _signal_all(gpu: str, number: signal.Signals) -> None:
    for pid in processes_in(gpu):
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(pid, number)


def _crash_gpu(gpu: str) -> None:
    set_links(gpu, {"rail0": "down", "hb0": "down"})
    _signal_all(gpu, signal.SIGKILL)


def _boot_gpu(net: FabricNet, gpu: str) -> None:
    """Its rail cable has light once its routes are there: what comes by it sooner would be lost on the way through."""
    far = net.plan.rail_link(gpu_of_name(gpu)).b
    is_cable_up = is_set_up(far)  # not cut by another fault, which isn't over
    if is_cable_up:
        set_links(far.node, {far.interface: "down"})
    with namespaces.inside(gpu):
        commands = route_commands(net.plan, gpu_of_name(gpu), net.backups)
        namespaces.run(["ip", "-batch", "-"], "link set hb0 up\nlink set rail0 up\n" + commands)
    if is_cable_up:
        set_links(far.node, {far.interface: "up"})


def _links_down(gpu: str) -> tuple[bool, bool]:
    return not is_up(gpu, "rail0"), not is_up(gpu, "hb0")


CRASH: Final = FaultDefinition(
    apply=lambda net, fault: _crash_gpu(fault.target),
    repair=lambda net, fault: _boot_gpu(net, fault.target),
    symptoms=lambda net, fault: _links_down(fault.target),
)


def _prepare_hang(net: FabricNet, fault: Fault) -> None:
    prepare_loss(rail_link(net, fault), 1.0)
    prepare_loss(hb_link(net, fault), 1.0)


def _hang(net: FabricNet, fault: Fault) -> None:
    """A GPU forwards for others by itself (Rail-only IV-B): hung, it neither answers nor forwards. Its kernel here
    would do both, so nothing gets through its cables.
    """
    enable_loss(rail_link(net, fault), hb_link(net, fault))
    _signal_all(fault.target, signal.SIGSTOP)


def _resume(net: FabricNet, fault: Fault) -> None:
    _signal_all(fault.target, signal.SIGCONT)
    disable_loss(rail_link(net, fault), hb_link(net, fault))


def _hang_symptoms(net: FabricNet, fault: Fault) -> tuple[bool, ...]:
    stopped = []
    for pid in processes_in(fault.target):
        with suppress(psutil.NoSuchProcess):
            stopped.append(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return (*all_lost(rail_link(net, fault)), *all_lost(hb_link(net, fault)), *stopped)


HANG: Final = FaultDefinition(prepare=_prepare_hang, apply=_hang, repair=_resume, symptoms=_hang_symptoms)


def _server(net: FabricNet, fault: Fault) -> list[str]:
    """Its GPUs."""
    domain = net.plan.hb_bridges.index(fault.target)
    return [gpu.name for gpu in net.plan.gpus if gpu.domain == domain]


def _crash_server(net: FabricNet, fault: Fault) -> None:
    for gpu in _server(net, fault):
        set_links(gpu, {"rail0": "down", "hb0": "down"})
    set_links(fault.target, {fault.target: "down"})
    for gpu in _server(net, fault):
        _signal_all(gpu, signal.SIGKILL)


def _boot_server(net: FabricNet, fault: Fault) -> None:
    set_links(fault.target, {fault.target: "up"})
    for gpu in _server(net, fault):
        _boot_gpu(net, gpu)


def _server_symptoms(net: FabricNet, fault: Fault) -> tuple[bool, ...]:
    gpu_symptoms = (symptom for gpu in _server(net, fault) for symptom in _links_down(gpu))
    return not is_up(fault.target, fault.target), *gpu_symptoms


SERVER_CRASH: Final = FaultDefinition(apply=_crash_server, repair=_boot_server, symptoms=_server_symptoms)
