"""The run's handle on the controller: its behaviour during an outage, and the first messages to the next process."""

import operator
import socket
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.failover.heartbeat_detector import SilentComponents
from railyard.controller.health.estimator import HealthSpec
from railyard.controller.processes import clients
from railyard.controller.processes.clients import PORTS, ControllerProcess
from railyard.controller.processes.messages import ReplaceGpu
from railyard.core.errors import RailyardError
from railyard.core.worker import Message
from railyard.topologies.addresses import Gpu
from tests.unit.broken_fabrics import plan
from tests.unit.messages import messages

SILENCE = {"links": [[0, 1]], "rails": [], "gpus": [], "hb_links": [], "hb_domains": []}


class FakeWorker:
    """A child that answers every request; `sent` holds the received messages, by kind."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.sent: list[Any] = []
        self.stopped = False
        self.why = ""

    def send(self, command: Message) -> None:
        self.sent.append(command)

    def await_events(self, wanted: set[str]) -> dict[str, dict[str, Any]]:
        return {what: {"address": "unix:/run/railyard/registry.sock", "why": self.why} for what in wanted}

    def end(self) -> None:
        self.stopped = True

    def words(self) -> list[str]:
        return [type(command).__name__ for command in self.sent]


class Lab:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: list[FakeWorker] = []
        self.listened: list[int] = []
        self.called: set[tuple[str, int]] = set()
        self.reported: list[str] = []
        monkeypatch.setattr(clients, "Worker", self._child)
        monkeypatch.setattr(clients, "listeners", self._listen)
        monkeypatch.setattr(clients, "set_controller_port", lambda switch, port: self.called.add((switch, port)))
        self.controller = ControllerProcess(on_event=lambda ns, what, detail: self.reported.append(what))
        self.controller.connect(plan("rail-only", "dr", 2, 2))

    def _listen(self, switches: object, port: int) -> list[socket.socket]:
        self.listened.append(port)
        return []

    def _child(self, *words: Any, **options: Any) -> FakeWorker:
        self.children.append(FakeWorker(*words, **options))
        return self.children[-1]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def test_crash_kills_the_process_and_is_reported(lab: Lab) -> None:
    assert not lab.controller.is_down
    lab.controller.crash()
    assert (lab.children[0].stopped, lab.controller.is_down, lab.reported) == (True, True, ["controller-crashed"])


def test_messages_about_an_absent_controller(lab: Lab, data_regression: DataRegressionFixture) -> None:
    controller = lab.controller
    texts = messages(operator.call, {"restarted while it runs": controller.restart}, ValueError)
    controller.replace_gpu("d1g0")
    lab.children[0].why = "REASON"
    texts |= messages(controller.start_health, {"registry fails": HealthSpec()}, RailyardError)
    assert not lab.children[0].stopped
    assert controller.registry_address == ""
    texts |= messages(controller.replace_gpu, {"no such GPU": "d9g9"}, RailyardError)
    assert lab.children[0].sent[-1] == ReplaceGpu(gpu="d9g9")
    controller.crash()
    texts |= messages(operator.call, {"crashed twice": controller.crash}, ValueError)
    texts |= messages(controller.port_counters, {"counters while away": 2}, RailyardError)
    texts |= messages(controller.replace_gpu, {"replacement while away": "d0g1"}, RailyardError)
    # the end of a fabric ends an absent controller
    controller.stop()
    assert not controller.is_down
    texts |= messages(controller.port_counters, {"stopped": 2}, RailyardError)
    data_regression.check(texts)


def test_restart_listens_elsewhere_and_redirects_all_switches(lab: Lab) -> None:
    lab.controller.crash()
    lab.controller.restart()
    assert lab.listened == [PORTS[0], PORTS[1]]
    assert lab.called == {("rail0", PORTS[1]), ("rail1", PORTS[1])}
    assert lab.children[1].words() == ["ConnectController", "AwaitSwitches"]
    assert [child.sent[0].resume for child in lab.children] == [False, True]
    lab.controller.crash()
    lab.controller.restart()
    assert lab.listened[-1] == PORTS[0]
    assert not lab.controller.is_down


def test_restarted_controller_gets_the_last_silence_first(lab: Lab) -> None:
    lab.controller.on_heartbeats(SILENCE | {"rails": [1]})
    lab.controller.crash()
    lab.controller.on_heartbeats(SILENCE)  # no process is there to receive it
    lab.controller.restart()
    assert lab.children[0].words() == ["ConnectController", "SetSilence"]
    assert lab.children[1].words() == ["ConnectController", "SetSilence", "AwaitSwitches"]
    assert lab.children[1].sent[1].silence == SilentComponents(links=frozenset({Gpu(0, 1)}))


def test_successor_computes_scores_if_the_first_did(lab: Lab) -> None:
    lab.controller.start_health(HealthSpec())
    lab.controller.crash()
    lab.controller.restart()
    assert lab.children[1].words() == ["ConnectController", "AwaitSwitches", "StartHealth"]
    assert lab.children[1].sent[2] == lab.children[0].sent[1]
    lab.controller.crash()
    lab.controller.stop_health()
    lab.controller.restart()
    assert lab.children[2].words() == ["ConnectController", "AwaitSwitches"]


def test_controller_that_fails_to_start_stays_away(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: FakeWorker, wanted: set[str]) -> dict[str, dict[str, Any]]:
        raise RailyardError("REASON")

    lab.controller.crash()
    monkeypatch.setattr(FakeWorker, "await_events", fails)
    with pytest.raises(RailyardError, match="REASON"):
        lab.controller.restart()
    assert (lab.children[1].stopped, lab.controller.is_down) == (True, True)
    monkeypatch.undo()
    monkeypatch.setattr(clients, "Worker", lab._child)
    monkeypatch.setattr(clients, "listeners", lab._listen)
    monkeypatch.setattr(clients, "set_controller_port", lambda switch, port: lab.called.add((switch, port)))
    lab.controller.restart()  # where its switches don't listen yet
    assert lab.listened == [PORTS[0], PORTS[1], PORTS[1]]
