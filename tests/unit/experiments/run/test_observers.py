"""Observers of a run: who subscribes follows it, and a run without observers emits the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from railyard.experiments.run import observers
from railyard.experiments.run.observers import Observer, ReplayCallbacks
from railyard.failure.faults import Fault
from railyard.topologies.build.network import EmulatedNet
from railyard.workloads.schedule import Schedule

FAULT = Fault("link-down", "d0g0")
SCHEDULE = cast(Schedule, None)


class Log(Observer):
    """An observer that notes what it follows."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def provenance(self) -> dict[str, str]:
        return {"live_page": "mine.html"}

    def begin_step(self, text: str) -> None:
        self.lines.append(text)

    def show(self, ns: int, event: str, detail: dict[str, Any]) -> None:
        self.lines.append((ns, event, detail))

    @contextmanager
    def fabric(self, label: str, net: EmulatedNet, events: list[Any]) -> Iterator[None]:
        self.lines.append(f"{label} is up")
        yield
        self.lines.append(f"{label} is down")

    @contextmanager
    def probing(self, fault: Fault) -> Iterator[Callable[[int], None]]:
        yield self.lines.append

    def replay_callbacks(self, schedule: Schedule, callbacks: ReplayCallbacks) -> ReplayCallbacks:
        def started(ns: int) -> None:
            self.lines.append(f"replay at {ns}")
            callbacks.started(ns)

        return callbacks._replace(started=started)


def emit_all() -> list[int]:
    """Emit one of each; return when the replay began, as its own callback has it."""
    started: list[int] = []
    observers.begin_step("building")
    observers.show_fault("prepare", FAULT, 1)
    observers.show_fault("inject", FAULT, 2)
    net = cast(EmulatedNet, SimpleNamespace())
    with observers.fabric("rail-only", net, []), observers.probing(FAULT) as injected:
        injected(3)
        observers.replay_callbacks(SCHEDULE, started.append)["started"](4)
    return started


def test_observer_follows_the_run_while_subscribed() -> None:
    log = Log()
    with observers.subscribed(log):
        assert emit_all() == [4]
        assert observers.provenance() == {"live_page": "mine.html"}
    emit_all()
    inject = (2, "inject", {"kind": "link-down", "target": "d0g0"})
    assert log.lines == ["building", inject, "rail-only is up", 3, "replay at 4", "rail-only is down"]


def test_run_without_observers_calls_its_own_callbacks() -> None:
    assert emit_all() == [4]
    assert observers.provenance() == {}


def test_observer_that_defines_nothing_changes_nothing() -> None:
    with observers.subscribed(Observer()):
        assert emit_all() == [4]
