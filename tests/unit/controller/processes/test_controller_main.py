"""The controller's process: its registry is started beside everything else, in turn, and may fail; light that is soon
back is waited for.
"""

import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from railyard.controller.failover.manager import FailoverManager
from railyard.controller.health.estimator import HealthSpec
from railyard.controller.openflow.optical import AffectedPorts
from railyard.controller.processes import controller_main, messages
from railyard.core.errors import RailyardError
from railyard.core.worker import Parent
from railyard.topologies.addresses import OPTICAL_DPID, Gpu, gpu_port, network_port
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.broken_fabrics import plan

COMMANDS: Mapping[str, messages.ToController] = {
    "start-health": messages.StartHealth(spec=HealthSpec()),
    "crash-registry": messages.SetRegistry(up=False),
    "restart-registry": messages.SetRegistry(up=True),
    "stats": messages.ReadCounters(),
}


class Registry:
    """Stands in for a HealthLoop. `may_start`: it takes until then; `why`: it fails, at its start or restart."""

    may_start = threading.Event()
    why = ""
    address = "etcd:127.0.0.1:2379"

    def __init__(self, *_: Any) -> None:
        assert self.may_start.wait(5)
        self.server = self
        self.start()

    def start(self) -> None:
        if self.why:
            raise RailyardError(self.why)

    def stop(self) -> None:
        pass


class Lab:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reported: list[tuple[str, dict[str, Any]]] = []
        self.registry = Registry
        monkeypatch.setattr(Registry, "may_start", threading.Event())
        monkeypatch.setattr(Registry, "why", "")
        app = SimpleNamespace(ask_stats=lambda: self.reported.append(("asked", {})))
        monkeypatch.setattr(controller_main, "OpenFlowServer", lambda *_: SimpleNamespace(app=app, serve=list))
        monkeypatch.setattr(controller_main, "HealthLoop", self.registry)
        parent = SimpleNamespace(emit=lambda what, detail: self.reported.append((what, detail)))
        monkeypatch.setattr(controller_main, "RouteAgent", lambda plan, elsewhere: None)
        fabric = plan("rail-only", "dr", 2, 2)
        connect = messages.ConnectController(plan=fabric, reroute=True, sockets=(), resume=False)
        self.process = controller_main.Controller(cast(Parent, parent), connect)

    def execute(self, *words: str) -> None:
        for word in words:
            self.process.execute(COMMANDS[word])

    def words(self) -> list[str]:
        """Return the reported events, once all requests are done."""
        self.process._registry_executor.shutdown()
        return [what for what, _ in self.reported]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def test_while_a_registry_starts_other_commands_are_obeyed(lab: Lab) -> None:
    lab.execute("start-health", "crash-registry", "restart-registry", "stats")
    assert lab.reported == [("asked", {})]
    lab.registry.may_start.set()
    assert lab.words() == ["asked", "registry", "registry-crashed", "registry-restarted"]
    assert lab.reported[1][1] == {"address": Registry.address, "why": ""}


def test_registry_that_does_not_start_is_reported_with_reason(lab: Lab) -> None:
    lab.registry.may_start.set()
    lab.registry.why = "REASON"
    lab.execute("start-health", "crash-registry")
    assert lab.words() == ["registry-failed", "registry"]
    assert lab.reported[1][1] == {"address": "", "why": "REASON"}


def test_nor_does_one_that_does_not_come_back_end_the_controller(lab: Lab) -> None:
    lab.registry.may_start.set()
    lab.execute("start-health")
    lab.process._registry_executor.submit(lambda: setattr(lab.registry, "why", "REASON"))
    lab.execute("restart-registry", "stats")
    assert sorted(lab.words()) == ["asked", "registry", "registry-failed"]


class Light:
    """Stands in for the brain, and for the app: `switch_on` ends what a move has begun. `why`: it doesn't begin."""

    NUMBER = 7

    def __init__(self, why: str = "") -> None:
        self.why, self.awaited, self.ended, self.state = why, list[dict[Gpu, bool]](), list[int](), self
        self.is_over = threading.Event()
        self.switch_on: Callable[[], None] = lambda: None

    def cross_connect(
        self,
        moves: Mapping[int, Any],
        outage_s: float,
        done: Callable[[], None],
        on_start: Callable[[AffectedPorts], None],
    ) -> None:
        if self.why:
            raise ValueError(self.why)
        ((dpid, ports),) = moves.items()
        on_start({dpid: {**dict.fromkeys(ports.values(), True), gpu_port(Gpu(0, 1)): False, network_port(GONE): False}})
        self.switch_on = done

    def expect_reconnect(self, places: dict[Gpu, bool]) -> int:
        self.awaited.append(places)
        return self.NUMBER

    def on_timeout(self, number: int) -> None:
        self.ended.append(number)
        self.is_over.set()


GONE = Gpu(0, 2)


def crossed(lab: Lab, light: Light, light_off: str) -> None:
    """d0g2's fibre is moved to d0g1's place."""
    spec = {"kind": "rail-only", "domains": 2, "rails": 3, "optical": {"layers": ["rail"], "switching_time": light_off}}
    lab.process._plan, lab.process._manager = make_plan(parse_fabric(spec), 10**8), cast(FailoverManager, light)
    lab.process._server = cast(Any, SimpleNamespace(app=SimpleNamespace(optics=light)))
    ports = {OPTICAL_DPID: {gpu_port(GONE): network_port(Gpu(0, 1))}}
    lab.process.execute(messages.CrossConnect(moves={GONE.name: "d0g1"}, layers=("rail",), ports=ports))


def test_failures_count_again_after_the_settling_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_main, "SETTLE_S", 0.0)
    light = Light()
    crossed(lab, light, "100ms")
    assert light.awaited == [{Gpu(0, 1): True, GONE: False}]
    assert ([what for what, _ in lab.reported], light.ended) == (["optical-links-down"], [])
    light.switch_on()
    assert light.is_over.wait(5)
    assert [what for what, _ in lab.reported] == ["optical-links-down", "optical-links-up"]
    assert light.ended == [Light.NUMBER]


def test_long_optical_outage_is_not_waited_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_main, "SETTLE_S", 0.0)
    light = Light()
    crossed(lab, light, "101ms")
    light.switch_on()
    assert [what for what, _ in lab.reported] == ["optical-links-down", "optical-links-up"]
    assert (light.awaited, light.ended) == ([], [])


def test_nothing_is_waited_for_where_no_fibre_moves(lab: Lab) -> None:
    light = Light(why="REASON")
    crossed(lab, light, "10ms")
    assert [what for what, _ in lab.reported] == ["not-crossed"]
    assert lab.reported[0][1]["why"] == light.why
    assert light.awaited == []
