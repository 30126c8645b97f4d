"""The lifecycle of one fault, on a fabric that only remembers what was done."""

from collections.abc import Sequence
from typing import Any

import pytest

from railyard.core.errors import CheckFailed
from railyard.failure import active
from railyard.failure.active import ActiveFault, Operation, Operator
from railyard.failure.faults import Fault

NO_NET: Any = None
SILENT = Fault("link-silent", "d0g1")  # its kind has a preparation, which a repair undoes
CUT = Fault("link-down", "d0g1")  # its kind has none


class RecordingOperator(Operator):
    """Remembers operations; a fault is active from its injection until its repair, unless it has no effect."""

    def __init__(self, has_effect: bool = True, is_faulty: bool = False) -> None:
        super().__init__(NO_NET)
        self.operations: list[str] = []
        self.is_faulty = is_faulty
        self._has_effect = has_effect

    def prepare(self, fault: Fault) -> None:
        self.operations.append("prepare")

    def inject(self, fault: Fault) -> int:
        self.operations.append("inject")
        self.is_faulty = self._has_effect
        return operation_number(self.operations)

    def repair(self, fault: Fault) -> int:
        self.operations.append("repair")
        self.is_faulty = False
        return operation_number(self.operations)

    def symptoms(self, fault: Fault) -> Sequence[bool]:
        return (self.is_faulty,)


def operation_number(operations: Sequence[str]) -> int:
    """Stand in for the time of the last operation."""
    return len(operations)


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "SYMPTOMS_TIMEOUT_S", 0.02)


def test_leaving_the_context_repairs_an_injected_fault() -> None:
    operator = RecordingOperator()
    with ActiveFault(operator, CUT) as fault:
        assert fault.begin() == fault.injected_ns == 2
    assert operator.operations == ["prepare", "inject", "repair"]
    assert fault.repaired_ns


def test_repaired_fault_is_not_repaired_again() -> None:
    operator = RecordingOperator()
    with ActiveFault(operator, CUT) as fault:
        fault.begin()
        fault.repair()
    assert operator.operations.count("repair") == 1


@pytest.mark.parametrize(("fault", "operations"), [(SILENT, ["prepare", "repair"]), (CUT, ["prepare"])])
def test_preparation_without_injection_is_undone(fault: Fault, operations: list[str]) -> None:
    operator = RecordingOperator()
    with ActiveFault(operator, fault) as unused:
        unused.prepare()
    assert operator.operations == operations
    assert not unused.injected_ns


def test_second_injection_fails_and_leaves_the_first() -> None:
    operator = RecordingOperator()
    with ActiveFault(operator, CUT) as first:
        first.begin()
        second = ActiveFault(operator, CUT)
        with (
            pytest.raises(CheckFailed, match="link-down at d0g1 can't be injected: it is active already"),
            second,
        ):
            second.begin()
        assert operator.is_faulty
        assert "repair" not in operator.operations


def test_fault_without_effect_is_reported_and_repaired() -> None:
    operator = RecordingOperator(has_effect=False)
    with pytest.raises(CheckFailed, match="link-down at d0g1 had no effect"), ActiveFault(operator, CUT) as fault:
        fault.begin()
    assert operator.operations == ["prepare", "inject", "repair"]


def test_half_an_injection_is_repaired() -> None:
    class Failing(RecordingOperator):
        def inject(self, fault: Fault) -> int:
            super().inject(fault)
            raise CheckFailed("the second cable has no end here")

    operator = Failing()
    with pytest.raises(CheckFailed, match="second cable"), ActiveFault(operator, CUT) as fault:
        fault.begin()
    assert operator.operations == ["prepare", "inject", "repair"]


def test_repair_without_effect_is_reported() -> None:
    class Stuck(RecordingOperator):
        def repair(self, fault: Fault) -> int:
            at_ns = super().repair(fault)
            self.is_faulty = True
            return at_ns

    fault = ActiveFault(Stuck(), CUT)
    fault.begin()
    with pytest.raises(CheckFailed, match="link-down at d0g1 is still active after its repair"):
        fault.repair()


def test_operations_are_reported_with_their_times() -> None:
    actions: list[tuple[Operation, Fault, int]] = []
    with ActiveFault(RecordingOperator(), CUT, lambda *action: actions.append(action)) as fault:
        fault.begin()
    names = [operation for operation, _, _ in actions]
    assert names == ["prepare", "inject", "repair"]
    assert [at_ns for _, _, at_ns in actions[1:]] == [fault.injected_ns, fault.repaired_ns]


def test_lateness_counts_from_the_due_time() -> None:
    with ActiveFault(RecordingOperator(), CUT) as fault:
        fault.prepare()
        injected_ns = fault.inject(-5)
        assert fault.late_ns == injected_ns + 5
