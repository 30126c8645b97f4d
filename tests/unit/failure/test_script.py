"""Scripts that are played on nothing: what is broken when, and that all is mended however it ends."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from railyard.core.errors import CheckFailed
from railyard.core.wait import wait_until
from railyard.failure import active
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.script import NO_DEADLINE_NS, SETTLE_S, ActionLog, Player, QuietPeriod, Script, Timed

NET: Any = None
S = 1_000_000_000
WITHIN_S = 60  # only a defect takes so long


@dataclass
class World:
    """What is prepared and what is broken, by target, and what was done when."""

    prepared: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    done: list[tuple[str, str]] = field(default_factory=list)
    toothless: set[str] = field(default_factory=set)

    def prepare(self, net: object, target: str) -> None:
        assert target not in self.prepared, "two would be in each other's way"
        self.prepared.add(target)

    def inject(self, net: object, target: str) -> None:
        assert target in self.prepared
        self.done.append(("inject", target))
        if target not in self.toothless:
            self.broken.add(target)

    def repair(self, net: object, target: str) -> None:
        self.done.append(("repair", target))
        self.broken.discard(target)
        self.prepared.discard(target)

    def symptoms(self, net: object, target: str) -> tuple[bool, ...]:
        return (target in self.broken,)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    kinds: tuple[str, ...] = ("link-down", "gpu-crash")
    for kind in kinds:
        definition = type(FAULTS[kind])
        monkeypatch.setattr(definition, "prepare", lambda _, net, target, p: made.prepare(net, target))
        monkeypatch.setattr(definition, "inject", lambda _, net, target, p: made.inject(net, target))
        monkeypatch.setattr(definition, "repair", lambda _, net, target, p: made.repair(net, target))
        monkeypatch.setattr(definition, "symptoms", lambda _, net, target, p: made.symptoms(net, target))
    monkeypatch.setattr(active, "SYMPTOMS_TIMEOUT_S", 0.05)
    yield made
    assert not made.broken
    assert not made.prepared


def timed(target: str, at_s: float, repair_s: float, after: str = "") -> Timed:
    return Timed(Fault("link-down", target), at_s, repair_s, after)


def play(player: Player, late_ns: int = 0) -> None:
    """Play a script to its end, as if nothing ran for `late_ns` after its beginning."""
    player.play(time.monotonic_ns() - late_ns)
    wait_until(lambda: player.is_over(0.01), "the end of the script", WITHIN_S)


def test_faults_are_injected_and_repaired_at_their_times(world: World) -> None:
    script = Script("three", (timed("a", 0.8, 0.3), timed("b", 0.8, 0.1), timed("c", 0.1, 0.1)))
    player = Player(NET, script)
    begun_ns = time.monotonic_ns()
    play(player)
    assert world.done[:2] == [("inject", "c"), ("repair", "c")]
    assert {operation for operation, _ in world.done[2:4]} == {"inject"}
    assert world.done[4:] == [("repair", "b"), ("repair", "a")]
    assert player.injected_ns[0] - begun_ns >= 0.3 * S
    assert abs(player.injected_ns[0] - player.injected_ns[1]) < 0.2 * S
    assert player.repair_start_ns[0] - player.injected_ns[0] >= 0.3 * S
    assert [act.operation for act in player.actions.done].count("repair") == 3
    late = Player(NET, Script("one", (timed("a", 0.1, 0.05),)))
    play(late, late_ns=S)
    assert late.late_ns[0] >= 0.9 * S


def test_fault_without_effect_ends_the_script_after_repairs(world: World) -> None:
    world.toothless.add("b")
    player = Player(NET, Script("two", (timed("a", 0.1, 60), timed("b", 0.2, 60), timed("c", 60, 1))))
    with pytest.raises(CheckFailed, match="link-down at b had no effect"):
        play(player)
    assert ("repair", "a") in world.done
    assert ("inject", "c") not in world.done


def test_ended_script_repairs_and_unprepares_its_faults(world: World) -> None:
    player = Player(NET, Script("two", (timed("a", 0.0, 60), timed("b", 0.5, 60))))
    player.play(time.monotonic_ns())
    wait_until(lambda: world.broken and {"a", "b"} <= world.prepared, "both faults", WITHIN_S)
    player.end()
    assert [step for step in world.done if step[0] == "inject"] == [("inject", "a")]


def test_faults_can_follow_a_phase(world: World) -> None:
    ended = Future[int]()
    script = Script("phased", (timed("a", 0.1, 0.1, "moe"), timed("b", 0.0, 0.1, "moe"), timed("c", 0.0, 0.05)))
    player = Player(NET, script, {"moe": ended})
    player.play(time.monotonic_ns())
    assert not player.is_over(0.3)
    assert world.done == [("inject", "c"), ("repair", "c")]
    assert {"a", "b"} <= world.prepared, "before they are due"
    over_ns = time.monotonic_ns()
    ended.set_result(over_ns)
    wait_until(lambda: player.is_over(0.01), "the end of the script", WITHIN_S)
    assert player.injected_ns[0] - over_ns >= 0.1 * S


def test_faults_of_one_target_are_prepared_one_by_one(world: World) -> None:
    first = Future[int]()
    second = Future[int]()
    script = Script("again", (timed("a", 0, 0.05, "first"), timed("a", 0, 0.05, "second")))
    player = Player(NET, script, {"first": first, "second": second})
    player.play(time.monotonic_ns())
    first.set_result(time.monotonic_ns())
    wait_until(lambda: len(world.done) == 2, "the first repair", WITHIN_S)
    second.set_result(time.monotonic_ns())
    wait_until(lambda: player.is_over(0.01), "the end of the script", WITHIN_S)
    assert world.done == [("inject", "a"), ("repair", "a")] * 2


def test_script_that_waits_for_a_phase_can_be_ended(world: World) -> None:
    player = Player(NET, Script("stuck", (timed("a", 0, 1, "moe"),)), {"moe": Future()})
    player.play(time.monotonic_ns())
    assert not player.is_over(0.1)
    player.end()
    assert ("inject", "a") not in world.done


def test_phase_without_a_workload_is_refused(world: World) -> None:
    script = Script("x", (timed("a", 0, 1, "moe"),))
    with pytest.raises(ValueError, match=r"script x: .* no workload"):
        Player(NET, script)
    failed = Future[int]()
    failed.set_exception(CheckFailed("REASON"))
    with pytest.raises(CheckFailed, match="REASON"):
        play(Player(NET, script, {"moe": failed}))


def test_script_is_idle_between_settling_and_the_next_action() -> None:
    fault = Fault("link-down", "d0g1")
    actions = ActionLog(Script("two", (Timed(fault, 1, 1), timed("d0g2", 5, 1))))
    actions.schedule(1, "inject", NO_DEADLINE_NS - 1)
    assert actions.quiet_period(NO_DEADLINE_NS // 2) is None, "nothing has happened"
    actions.begin(0, "inject")
    assert actions.quiet_period(NO_DEADLINE_NS // 2) is None, "it is under way"
    actions.end(0, "inject", 77)
    (injected,) = actions.done
    settled_ns = injected.done_ns + int(SETTLE_S * 1e9)
    assert actions.quiet_period(settled_ns - 1) is None
    assert actions.quiet_period(settled_ns) == QuietPeriod(injected, (fault,), NO_DEADLINE_NS - 1)
    actions.schedule(0, "repair", settled_ns + 5)
    assert actions.quiet_period(settled_ns + 5) is None, "the next is due"
    actions.begin(0, "repair")
    actions.end(0, "repair", 99)
    after = actions.quiet_period(NO_DEADLINE_NS // 2)
    assert after == QuietPeriod(actions.done[1], (), NO_DEADLINE_NS - 1)
