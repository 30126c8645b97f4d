"""Connectivity checks that were due, from the times of actions."""

import pytest

from railyard.core.records import ConnectivityCheck, IntervalId
from railyard.failure.active import Operation
from railyard.failure.connectivity.check import missed_checks
from railyard.failure.faults import Fault
from railyard.failure.script import Action

S = 1_000_000_000
CUT, CRASH, AWAY = Fault("link-down", "d0g1"), Fault("gpu-crash", "d1g1"), Fault("controller-crash", "controller")
CHECK_S, AFTER_S = 0.2, 1.2


def act(at_s: float, operation: Operation, fault: Fault = CUT, takes_s: float = 0.02) -> Action:
    return Action(round(at_s * S), round((at_s + takes_s) * S), operation, fault)


def check(at_s: float) -> ConnectivityCheck:
    return ConnectivityCheck(IntervalId(), round(at_s * S), "", 0, 12, 12, 12, 0, 0, 0)


def missing(actions: list[Action], *taken_s: float) -> list[tuple[str, int]]:
    found = missed_checks(actions, [check(at_s) for at_s in taken_s], CHECK_S, AFTER_S)
    assert not any(one.done or one.pairs for one in found)
    return [(one.last_event, one.broken) for one in found]


def test_check_is_due_after_an_action_with_enough_idle_time() -> None:
    actions = [act(1, "inject"), act(3, "repair")]
    first, last = ("inject link-down d0g1", 1), ("repair link-down d0g1", 0)
    assert missing(actions) == [first, last]
    assert missing(actions, 1.6) == [last]
    assert missing(actions, 1.6, 3.6) == []
    assert missing([act(1, "inject"), act(1.7, "repair")], 2.3) == [], "too short for one"


def test_of_acts_that_come_together_one_is_due_after_all() -> None:
    actions = [act(1, "inject"), act(1.01, "inject", CRASH), act(3, "repair"), act(3.01, "repair", CRASH)]
    assert missing(actions, 3.6) == [("inject gpu-crash d1g1", 2)]


@pytest.mark.parametrize(("fault", "is_due"), [(CRASH, True), (AWAY, False)])
def test_long_action_is_excused_for_a_starting_controller(fault: Fault, is_due: bool) -> None:
    actions = [act(1, "inject", fault), act(2, "repair", fault, takes_s=0.5), act(3, "inject"), act(4, "repair")]
    assert missing(actions, 1.6, 3.6, 4.6) == ([(f"repair {fault.kind} {fault.target}", 0)] if is_due else [])
