"""Sessions: health scores that active faults share, and the records of a fault."""

from typing import Any, cast

import pytest

from railyard.controller.health.estimator import HealthSpec
from railyard.core.errors import BadInput
from railyard.core.records import IntervalId
from railyard.experiments.run.session import FabricSession
from railyard.failure.faults import Fault
from railyard.results.runs.records import Run


class Controller:
    """Notes when health scores were started and stopped."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def start_health(self, spec: HealthSpec) -> None:
        self.operations.append(f"start {spec.registry}")

    def stop_health(self) -> None:
        self.operations.append("stop")


def session_with(controller: Controller) -> FabricSession:
    return FabricSession("rail-only", cast(Any, None), cast(Any, controller))


def test_scores_last_until_the_end_of_their_last_fault() -> None:
    controller = Controller()
    session = session_with(controller)
    first = session.health_scores("embedded")
    second = session.health_scores("embedded")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert controller.operations == ["start embedded"]
    second.__exit__(None, None, None)
    assert controller.operations == ["start embedded", "stop"]


def test_another_registry_beside_an_active_one_is_refused() -> None:
    controller = Controller()
    session = session_with(controller)
    with (
        session.health_scores("embedded"),
        pytest.raises(BadInput, match="registry: 'etcd' can't run beside embedded, which an active fault uses"),
        session.health_scores("etcd"),
    ):
        pass
    assert controller.operations == ["start embedded", "stop"]


def test_fault_without_a_registry_needs_no_scores() -> None:
    controller = Controller()
    with session_with(controller).health_scores(None):
        assert controller.operations == []


def test_injection_and_repair_are_recorded_together() -> None:
    run = Run("mine", {}, {}, "now")
    session = session_with(Controller())
    session.record_fault(run, IntervalId("rail-only"), Fault("link-down", "d0g1"), 10, 30)
    assert [(event.monotonic_ns, event.what, event.detail["target"]) for event in run.events] == [
        (10, "link-down", "d0g1"),
        (30, "repair", "d0g1"),
    ]
    assert session.faults == [(Fault("link-down", "d0g1"), 10, 30)]
