"""Silence that no fault explains is counted, once, and nothing else is."""

from collections.abc import Iterator
from typing import Any

import pytest

from railyard.controller.processes.messages import HeartbeatCost
from railyard.experiments.run import heartbeats
from railyard.experiments.spec.heartbeats import HeartbeatsSpec
from railyard.failure.analysis.evaluate import false_alarms
from railyard.failure.faults import Fault
from railyard.failure.faults.definition import ControllerEvent
from tests.unit.stand_ins import plan_of, run_of, session_of

S = 1_000_000_000
PLAN = plan_of("rail-only", 3, 3)


def silent(at_s: float, *names: tuple[str, str]) -> list[ControllerEvent]:
    return [(round(at_s * S), "silent", {kind: name}) for kind, name in names]


def received(at_s: float, *names: tuple[str, str]) -> list[ControllerEvent]:
    return [(round(at_s * S), "resumed", {kind: name}) for kind, name in names]


def fault_interval(kind: str, target: str, since_s: float = 2, until_s: float = 4) -> tuple[Fault, int, int]:
    return (Fault(kind, target), round(since_s * S), round(until_s * S))


LINK, OTHER, RAIL = ("link", "d0g1"), ("link", "d1g1"), ("rail", "rail1")


@pytest.mark.parametrize(
    ("at_s", "name", "wanted"),
    [
        (2.1, LINK, 0),
        (2.1, RAIL, 0),
        (2.1, OTHER, 1),
        (2.1, ("hb-link", "d0g1"), 1),
        (1.9, LINK, 1),
        (5.0, LINK, 0),
        (5.1, LINK, 1),
    ],
)
def test_fault_explains_alarms_until_a_second_after_repair(at_s: float, name: tuple[str, str], wanted: int) -> None:
    assert false_alarms(silent(at_s, name), [fault_interval("link-silent", "d0g1")], PLAN) == wanted


def test_each_alarm_counts_and_words_about_something_else_do_not() -> None:
    events = [
        (S, "port-down", {"switch": "rail1", "port": "d0g1"}),
        *silent(1, LINK),
        *received(2, LINK),
        *silent(3, LINK),
    ]
    assert false_alarms(events, [], PLAN) == 2
    assert false_alarms(events, [fault_interval("link-silent", "d0g1", 2.9)], PLAN) == 1


def test_a_gpu_counts_by_its_links() -> None:
    assert false_alarms(silent(1, ("gpu", "d0g1"), ("hb-link", "d0g1"), LINK), [], PLAN) == 2
    hang = fault_interval("gpu-hang", "d0g1")
    assert false_alarms(silent(3, ("gpu", "d0g1"), ("hb-link", "d0g1"), LINK), [hang], PLAN) == 0


def test_link_of_a_silent_rail_is_no_alarm() -> None:
    """When a rail recovers, some links resume first, and the others are then reported one by one."""
    events = [*silent(3, RAIL), *silent(9, OTHER), *received(9, RAIL), *received(9.1, OTHER)]
    assert false_alarms(events, [fault_interval("link-silent", "d0g1")], PLAN) == 0
    assert false_alarms([*events, *silent(10, OTHER)], [fault_interval("link-silent", "d0g1")], PLAN) == 1
    domain = [*silent(1, ("hb-domain", "hb0")), *silent(2, ("hb-link", "d0g2"), ("hb-link", "d1g2"))]
    assert false_alarms(domain, [], PLAN) == 2, "the domain, and the link of another"


def test_events_while_the_controller_is_away_are_not_awaited() -> None:
    events: list[ControllerEvent] = [*silent(3, RAIL), (4 * S, "controller-crashed", {}), *silent(20, OTHER)]
    faults = [fault_interval("rail-switch-hang", "rail1"), fault_interval("controller-crash", "controller", 4, 5)]
    assert false_alarms(events, faults, PLAN) == 1
    assert false_alarms([event for event in events if event[1] == "silent"], faults, PLAN) == 0


def test_a_dead_switch_explains_its_links() -> None:
    faults = [fault_interval("rail-switch-crash", "rail1")]
    assert false_alarms(silent(2.1, LINK, OTHER, ("link", "d0g2")), faults, PLAN) == 1


class FakeHeartbeatProcess:
    """They cost something, and end."""

    def __init__(self, *_: object) -> None:
        self.stopped = False

    def cost(self) -> HeartbeatCost:
        return HeartbeatCost(sent=1000, received=900, cpu_s=0.5, seconds=10.0)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeHeartbeatProcess]]:
    found: list[FakeHeartbeatProcess] = []

    def make(*arguments: Any) -> FakeHeartbeatProcess:
        found.append(FakeHeartbeatProcess(*arguments))
        return found[-1]

    monkeypatch.setattr(heartbeats, "HeartbeatProcess", make)
    yield found
    assert all(each.stopped for each in found)


def test_false_alarms_are_measured_beside_cost_and_faults(made: list[FakeHeartbeatProcess]) -> None:
    run, (session, _) = run_of(), session_of(plan_of())
    session.faults.append((Fault("link-silent", "d1g0"), 2 * S, 4 * S))  # before
    with heartbeats.heartbeats_running(session, HeartbeatsSpec(), run):
        session.faults.append((Fault("link-silent", "d0g1"), 2 * S, 4 * S))
        for event in [*silent(2.1, LINK), *silent(2.2, ("link", "d1g0"))]:
            session.on_event(*event)
    figures = {m.metric: (m.fabric, m.workload, m.value, m.unit) for m in run.measurements}
    assert figures["false_alarms"] == ("a fabric", "heartbeats", 1.0, "1")
    assert figures["packets"] == ("a fabric", "heartbeats", 100.0, "1/s")
    assert len(made) == 1


def test_nothing_is_measured_without_heartbeats(made: list[FakeHeartbeatProcess]) -> None:
    run, (session, _) = run_of(), session_of(plan_of())
    with heartbeats.heartbeats_running(session, "off", run):
        pass
    assert (run.measurements, made) == ([], [])
