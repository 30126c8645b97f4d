"""The lifecycle of a fault on a running fabric: prepared, injected, confirmed at what it breaks, repaired.

Everything that injects a fault (failure scripts, the Python API, the live page, trainings, GPU replacements, multi-rail
fabrics) does it through `ActiveFault`, and so has the same checks, the same order and the same notices.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, Self

from railyard.core.errors import CheckFailed
from railyard.core.wait import poll
from railyard.failure.faults import Fault, FaultKind
from railyard.topologies.build.network import EmulatedNet

SYMPTOMS_TIMEOUT_S: Final = 5.0
"""A kernel may report a carrier a second late, and a busy machine later: only then it counts as an error."""


Operation = Literal["prepare", "inject", "repair"]

PREPARE_S: Final = 0.6
"""Time before a due injection to check that the fault isn't active yet, and to prepare it."""

OnAction = Callable[[Operation, Fault, int], None]
"""Called with an operation, its fault, and when the operation began (monotonic ns), as soon as it is done."""


class Operator:
    """Carries out the operations of faults on a fabric of this machine."""

    def __init__(self, net: EmulatedNet) -> None:
        self.net = net

    def prepare(self, fault: Fault) -> None:
        """Do what a fault's kind does before the injection."""
        fault.definition.prepare(self.net, fault.target, fault.parameters)

    def inject(self, fault: Fault) -> int:
        """Inject a fault; return when (monotonic ns, just before)."""
        at_ns = time.monotonic_ns()
        fault.definition.inject(self.net, fault.target, fault.parameters)
        return at_ns

    def repair(self, fault: Fault) -> int:
        """Repair a fault; return when (monotonic ns, just before)."""
        at_ns = time.monotonic_ns()
        fault.definition.repair(self.net, fault.target, fault.parameters)
        return at_ns

    def symptoms(self, fault: Fault) -> Sequence[bool]:
        """Return for each affected part whether it is faulty."""
        return fault.definition.symptoms(self.net, fault.target, fault.parameters)


FaultyFabric = EmulatedNet | Operator
"""A fabric of this machine, or what carries out operations on one of several machines."""


def operator_of(fabric: FaultyFabric) -> Operator:
    """Return what carries out the operations of faults on a fabric."""
    if isinstance(fabric, Operator):
        return fabric
    return Operator(fabric)


def ignore_action(operation: Operation, fault: Fault, at_ns: int) -> None:
    """Take no notice of an operation."""


class ActiveFault:
    """One fault on a built fabric. Leaving its context repairs it, and undoes a preparation that no injection followed.

    The order is the same for all users: probes of the affected pairs begin, the fault is prepared, injected and
    confirmed, and repaired. Probes begin first because their start takes time, which would make the injection late.

    `injected_ns`, `repaired_ns`: when the injection and the repair began, monotonic ns; 0 before. `late_ns`: how long
    after it was due the injection began; 0 if it was due at no time.
    """

    def __init__(self, fabric: FaultyFabric, fault: Fault, on_action: OnAction = ignore_action) -> None:
        self.fault = fault
        self.injected_ns = 0
        self.repaired_ns = 0
        self.late_ns = 0
        self._operator = operator_of(fabric)
        self._on_action = on_action
        self._is_prepared = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Kind and target, for messages."""
        return f"{self.fault.kind} at {self.fault.target}"

    @property
    def is_injected(self) -> bool:
        """True after the injection and before the repair."""
        return bool(self.injected_ns) and not self.repaired_ns

    def prepare(self) -> None:
        """Do what can be done before the injection. CheckFailed if the target is faulty already."""
        if is_active(self._operator, self.fault):
            raise CheckFailed(f"{self.name} can't be injected: it is active already")
        # Half a preparation is undone too, but only of kinds that have one: a repair is no harmless operation.
        self._is_prepared = type(self.fault.definition).prepare is not FaultKind.prepare
        at_ns = time.monotonic_ns()
        self._operator.prepare(self.fault)
        self._on_action("prepare", self.fault, at_ns)

    def inject(self, due_ns: int | None = None) -> int:
        """Inject the fault, which is prepared; return when (monotonic ns, just before). `due_ns`: when it is due."""
        # set before, so that half an injection is repaired too
        self.injected_ns = time.monotonic_ns()
        self.injected_ns = self._operator.inject(self.fault)
        if due_ns is not None:
            self.late_ns = self.injected_ns - due_ns
        self._on_action("inject", self.fault, self.injected_ns)
        return self.injected_ns

    def confirm(self) -> None:
        """Raise CheckFailed if the fault isn't active: its recovery time would be 0."""
        if not self._await_symptoms(expected=True):
            raise CheckFailed(f"{self.name} had no effect")

    def begin(self) -> int:
        """Prepare, inject and confirm the fault; return when it was injected (monotonic ns, just before)."""
        self.prepare()
        self.inject()
        self.confirm()
        return self.injected_ns

    def repair(self) -> int:
        """Repair the fault; return when (monotonic ns, just before). CheckFailed if some part is still faulty after."""
        self.repaired_ns = time.monotonic_ns()
        self._operator.repair(self.fault)
        self._on_action("repair", self.fault, self.repaired_ns)
        if not self._await_symptoms(expected=False):
            raise CheckFailed(f"{self.name} is still active after its repair")
        return self.repaired_ns

    def close(self) -> None:
        """Repair the fault if it is active, or undo its preparation."""
        if self.is_injected:
            self.repair()
        elif self._is_prepared and not self.injected_ns:
            self._is_prepared = False
            # which undoes the preparation
            self._operator.repair(self.fault)

    def _await_symptoms(self, expected: bool) -> bool:
        """Wait until all symptoms are as expected: a kernel reports a carrier a moment after it changed."""

        def are_as_expected() -> bool:
            return set(self._operator.symptoms(self.fault)) == {expected}

        return poll(are_as_expected, SYMPTOMS_TIMEOUT_S)


def is_active(fabric: FaultyFabric, fault: Fault) -> bool:
    """Return whether all affected parts are faulty, observed at the parts themselves."""
    return all(operator_of(fabric).symptoms(fault))
