"""Switches whose process dies, hangs, or dies and comes back by itself. Their cables keep their carrier."""

import os
import signal
import threading
import time
from typing import Final

import psutil

from railyard.failure.faults.definition import FaultDefinition
from railyard.failure.scenario.kinds import Fault
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet


def _kill(net: FabricNet, fault: Fault) -> None:
    with namespaces.inside(fault.target):
        net.ovs[fault.target].kill()


def _start(net: FabricNet, fault: Fault) -> None:
    with namespaces.inside(fault.target):
        net.ovs[fault.target].start_vswitchd()


def _is_dead(net: FabricNet, fault: Fault) -> tuple[bool]:
    return (net.ovs[fault.target].processes["ovs-vswitchd"].poll() is not None,)


CRASH: Final = FaultDefinition(apply=_kill, repair=_start, symptoms=_is_dead)


def _hang(net: FabricNet, fault: Fault) -> None:
    os.kill(net.ovs[fault.target].vswitchd_pid, signal.SIGSTOP)


def _resume(net: FabricNet, fault: Fault) -> None:
    os.kill(net.ovs[fault.target].vswitchd_pid, signal.SIGCONT)


def _hang_symptoms(net: FabricNet, fault: Fault) -> tuple[bool]:
    return (psutil.Process(net.ovs[fault.target].vswitchd_pid).status() == psutil.STATUS_STOPPED,)


HANG: Final = FaultDefinition(apply=_hang, repair=_resume, symptoms=_hang_symptoms)


class _Reboot(threading.Thread):
    """Starts a dead switch after a while, if its fabric still stands."""

    def __init__(self, net: FabricNet, fault: Fault) -> None:
        super().__init__(name=f"reboot of {fault.target}", daemon=True)
        self._net, self._fault = net, fault

    def run(self) -> None:
        time.sleep(self._fault.down)
        if namespaces.path(self._fault.target).exists():
            _start(self._net, self._fault)


_rebooting: Final[dict[Fault, _Reboot]] = {}


def _reboot(net: FabricNet, fault: Fault) -> None:
    _kill(net, fault)
    _rebooting[fault] = _Reboot(net, fault)
    _rebooting[fault].start()


def _await_reboot(net: FabricNet, fault: Fault) -> None:
    _rebooting.pop(fault).join()


REBOOT: Final = FaultDefinition(apply=_reboot, repair=_await_reboot, symptoms=_is_dead)
