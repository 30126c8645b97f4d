"""Injection and repair of a fault on a running fabric, checked at what breaks."""

import time
from typing import Final

from railyard.core.errors import CheckFailed
from railyard.failure.faults import Fault, FaultKind
from railyard.topologies.build.network import FabricNet

SYMPTOMS_TIMEOUT_S: Final = 5.0
"""A kernel may report a carrier a second late, and a busy machine later: only then it counts as an error."""


def inject(net: FabricNet, fault: Fault) -> int:
    """Prepare a fault, inject it, and return when (monotonic ns, just before).

    CheckFailed if the target was faulty before, or isn't after: the recovery time of a fault without effect would be 0.
    """
    prepare(net, fault)
    at_ns = apply(net, fault)
    confirm(net, fault)
    return at_ns


def prepare(net: FabricNet, fault: Fault) -> None:
    """Do what can be done before the injection. CheckFailed if the target is faulty already."""
    if is_active(net, fault):
        raise CheckFailed(f"{fault.kind} at {fault.target} can't be injected: it is active already")
    fault.definition.prepare(net, fault.target, fault.parameters)


def apply(net: FabricNet, fault: Fault) -> int:
    """Inject a prepared fault; return when (monotonic ns, just before)."""
    at_ns = time.monotonic_ns()
    fault.definition.inject(net, fault.target, fault.parameters)
    return at_ns


def confirm(net: FabricNet, fault: Fault) -> None:
    """Raise CheckFailed if the fault isn't active."""
    if not _await_symptoms(net, fault, expected=True):
        raise CheckFailed(f"{fault.kind} at {fault.target} had no effect")


def unprepare(net: FabricNet, fault: Fault) -> None:
    """Undo the preparation of a fault that was never injected."""
    if type(fault.definition).prepare is not FaultKind.prepare:
        fault.definition.repair(net, fault.target, fault.parameters)


def repair(net: FabricNet, fault: Fault) -> None:
    """Repair a fault. CheckFailed if some part is still faulty afterwards."""
    fault.definition.repair(net, fault.target, fault.parameters)
    if not _await_symptoms(net, fault, expected=False):
        raise CheckFailed(f"{fault.kind} at {fault.target} is still active after its repair")


def is_active(net: FabricNet, fault: Fault) -> bool:
    """Whether all affected parts are faulty, observed at the parts themselves."""
    return all(fault.definition.symptoms(net, fault.target, fault.parameters))


def _await_symptoms(net: FabricNet, fault: Fault, expected: bool) -> bool:
    """Wait until all symptoms are as expected: a kernel reports a carrier a moment after it changed."""
    deadline = time.monotonic() + SYMPTOMS_TIMEOUT_S
    while any(is_there != expected for is_there in fault.definition.symptoms(net, fault.target, fault.parameters)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
