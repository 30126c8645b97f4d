"""The controller's process: its registry is started beside everything else, in turn, and may fail."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from controller import process
from controller.health.settings import HealthSpec
from tests.unit.broken_fabrics import plan
from topologies.errors import RailyardError

START = {"do": "start-health", "spec": HealthSpec().model_dump(mode="json")}


class Registry:
    """Stands in for a HealthLoop. `may_start`: it takes until then; `why`: it fails, at its start or restart."""

    may_start = threading.Event()
    why = ""
    address = "etcd:127.0.0.1:2379"

    def __init__(self, *_: Any) -> None:
        assert self.may_start.wait(5)
        self.restart_registry()

    def start(self) -> None:
        pass

    def crash_registry(self) -> None:
        pass

    def restart_registry(self) -> None:
        if self.why:
            raise RailyardError(self.why)


class Lab:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.registry = Registry
        monkeypatch.setattr(Registry, "may_start", threading.Event())
        monkeypatch.setattr(Registry, "why", "")
        app = SimpleNamespace(ask_stats=lambda: self.told.append(("asked", {})))
        monkeypatch.setattr(process, "OpenFlowServer", lambda hear: SimpleNamespace(app=app))
        monkeypatch.setattr(process, "Tell", lambda: lambda what, detail: self.told.append((what, detail)))
        monkeypatch.setattr(process, "HealthLoop", self.registry)
        self.process = process._Process()
        self.process._plan = plan("rail-only", "dr", 2, 2)

    def obey(self, *words: str) -> None:
        for word in words:
            self.process.obey(START if word == "start-health" else {"do": word})

    def words(self) -> list[str]:
        """What was told, once all is done that it was asked for."""
        self.process._registrar.shutdown()
        return [what for what, _ in self.told]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def test_while_a_registry_starts_other_commands_are_obeyed(lab: Lab) -> None:
    lab.obey("start-health", "crash-registry", "restart-registry", "stats")
    assert lab.told == [("asked", {})]
    lab.registry.may_start.set()
    assert lab.words() == ["asked", "registry", "registry-crashed", "registry-restarted"]
    assert lab.told[1][1] == {"address": Registry.address, "why": ""}


def test_a_registry_that_does_not_start_is_told_with_the_reason(lab: Lab) -> None:
    lab.registry.may_start.set()
    lab.registry.why = "etcd did not start"
    lab.obey("start-health", "crash-registry")
    assert lab.words() == ["registry-failed", "registry"]
    assert lab.told[1][1] == {"address": "", "why": "etcd did not start"}


def test_nor_does_one_that_does_not_come_back_end_the_controller(lab: Lab) -> None:
    lab.registry.may_start.set()
    lab.obey("start-health")
    lab.process._registrar.submit(lambda: setattr(lab.registry, "why", "no port is free"))
    lab.obey("restart-registry", "stats")
    assert sorted(lab.words()) == ["asked", "registry", "registry-failed"]
