"""Switches whose process dies, hangs, or dies and comes back by itself. Their cables keep their carrier."""

import os
import signal
import threading
import time
from typing import Final

import psutil

from railyard.failure.faults.definition import Breakage
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


CRASH: Final = Breakage(strike=_kill, mend=_start, signs=_is_dead)


def _hang(net: FabricNet, fault: Fault) -> None:
    os.kill(net.ovs[fault.target].vswitchd_pid, signal.SIGSTOP)


def _wake(net: FabricNet, fault: Fault) -> None:
    os.kill(net.ovs[fault.target].vswitchd_pid, signal.SIGCONT)


def _hangs(net: FabricNet, fault: Fault) -> tuple[bool]:
    return (psutil.Process(net.ovs[fault.target].vswitchd_pid).status() == psutil.STATUS_STOPPED,)


HANG: Final = Breakage(strike=_hang, mend=_wake, signs=_hangs)


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


REBOOT: Final = Breakage(strike=_reboot, mend=_await_reboot, signs=_is_dead)
