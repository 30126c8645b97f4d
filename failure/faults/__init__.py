"""Breaking things and mending them, on a fabric that runs. What breaks is a real cable end, process or interface.

| fault              | injection                                                         | repair                     |
|--------------------|-------------------------------------------------------------------|----------------------------|
| link-down          | the switch's end of its cable is set down: the GPU has no light   | set up again               |
| link-silent        | nftables takes all that enters the cable at either end; light on  | rules removed              |
| link-gray          | the same, of a share of the packets at random                     | rules removed              |
| link-slow          | the shapers at both ends get a share of the rate                  | their rate again           |
| link-flapping      | the switch's end goes down and up in turns, from a thread         | thread ended, set up       |
| hb-port-down       | the bridge's end of the HB cable is set down                      | set up again               |
| rail-switch-crash, | SIGKILL to the switch's ovs-vswitchd; its cables keep their light | start it on its database   |
| spine-crash        |                                                                   |                            |
| rail-switch-hang   | SIGSTOP to it: its connections and its light stay                 | SIGCONT                    |
| rail-switch-reboot | SIGKILL, and started again after a while, unasked                 | wait until it is back      |
| gpu-crash          | both interfaces down, SIGKILL to all processes in its namespace   | interfaces up, routes anew |
| gpu-hang           | both cables as link-silent, SIGSTOP to its processes              | rules removed, SIGCONT     |
| server-crash       | gpu-crash at every GPU of an HB domain, its bridge set down       | bridge up, then the GPUs   |
| controller-crash   | SIGKILL to the controller's process                               | a new process              |
| registry-crash     | the server of the scores' registry killed                         | started at its address     |

A kind is a `FaultDefinition`. What programs must do for it is done by `prepare`, before the clock is read; `apply`
takes a message to the kernel or a signal for each thing that breaks. `symptoms` are looked for at the thing itself, by
frames sent through it where only they can tell: all of them are there while it is broken, none once it is mended.
"""

import time
from typing import Final

from railyard.core.errors import CheckFailed
from railyard.failure.faults import cables, controller, gpus, loss, switches
from railyard.failure.faults.definition import FaultDefinition, no_op
from railyard.failure.scenario.kinds import Fault, FaultKind
from railyard.topologies.build.network import FabricNet

__all__ = [
    "KINDS",
    "Fault",
    "FaultKind",
    "apply",
    "confirm",
    "inject",
    "is_in_effect",
    "prepare",
    "repair",
    "unprepare",
]

SYMPTOMS_TIMEOUT_S: Final = 5.0
"""A kernel may tell of a carrier a second late, and a busy machine later: so long before it is taken for an error."""
KINDS: Final[dict[FaultKind, FaultDefinition]] = {
    "link-down": cables.DOWN,
    "link-silent": loss.SILENT,
    "link-gray": loss.GRAY,
    "link-slow": cables.SLOW,
    "link-flapping": cables.FLAPPING,
    "hb-port-down": cables.HB_PORT_DOWN,
    "rail-switch-crash": switches.CRASH,
    "rail-switch-hang": switches.HANG,
    "rail-switch-reboot": switches.REBOOT,
    "spine-crash": switches.CRASH,
    "gpu-crash": gpus.CRASH,
    "gpu-hang": gpus.HANG,
    "server-crash": gpus.SERVER_CRASH,
    "controller-crash": controller.CRASH,
    "registry-crash": controller.REGISTRY_CRASH,
}


def inject(net: FabricNet, fault: Fault) -> int:
    """Break it, and tell when (monotonic ns, just before).

    CheckFailed if it was broken already, or isn't now: a fault that isn't there would make a fine recovery time.
    """
    prepare(net, fault)
    at_ns = apply(net, fault)
    confirm(net, fault)
    return at_ns


def prepare(net: FabricNet, fault: Fault) -> None:
    """Do what can be done before. CheckFailed if it is broken already."""
    if is_in_effect(net, fault):
        raise CheckFailed(f"{fault.kind} at {fault.target} can't be injected: it is broken already")
    KINDS[fault.kind].prepare(net, fault)


def apply(net: FabricNet, fault: Fault) -> int:
    """Break what is prepared; when (monotonic ns, just before)."""
    at_ns = time.monotonic_ns()
    KINDS[fault.kind].apply(net, fault)
    return at_ns


def confirm(net: FabricNet, fault: Fault) -> None:
    """CheckFailed if it isn't broken."""
    if not _await_state(net, fault, broken=True):
        raise CheckFailed(f"{fault.kind} at {fault.target} did not bite")


def unprepare(net: FabricNet, fault: Fault) -> None:
    """Take back what was prepared for a fault that never struck."""
    if KINDS[fault.kind].prepare is not no_op:
        KINDS[fault.kind].repair(net, fault)


def repair(net: FabricNet, fault: Fault) -> None:
    """Mend it. CheckFailed if some of it is still broken afterwards."""
    KINDS[fault.kind].repair(net, fault)
    if not _await_state(net, fault, broken=False):
        raise CheckFailed(f"{fault.kind} at {fault.target} is still there after its repair")


def is_in_effect(net: FabricNet, fault: Fault) -> bool:
    """True while the thing is broken, all of it, by looking at the thing itself."""
    return all(KINDS[fault.kind].symptoms(net, fault))


def _await_state(net: FabricNet, fault: Fault, broken: bool) -> bool:
    """Whether all signs are soon there, or all gone: the kernel tells of a carrier a moment after it changed."""
    deadline = time.monotonic() + SYMPTOMS_TIMEOUT_S
    while any(symptom != broken for symptom in KINDS[fault.kind].symptoms(net, fault)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
