"""The loop of healthd against fake switches: requests, scores, and registry failures."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from railyard.controller.health import monitor
from railyard.controller.health.monitor import Element, Healthd, HealthLoop
from railyard.controller.health.policy import Scores
from railyard.controller.health.registry.client import Registry, View, connect
from railyard.controller.openflow.app import SwitchEvent
from railyard.topologies.measure.counters import PortStats
from tests.unit.controller.health_settings import parse_health
from tests.unit.stand_ins import plan_of

PLAN = plan_of(domains=2, rails=2)
RAIL_0 = PLAN.switches[0].dpid
PERIOD_S = 0.01
SPEC = {"period": "10ms", "smoothing": "none", "stale": "200ms"}
LATE_S = 60.0
MS = 1_000_000


class Kernel:
    """Stand-in for a PortReader: bridges on which nothing happens."""

    def __init__(self, nodes: list[str]) -> None:
        self.nodes = nodes
        kernels.append(self)

    def read(self) -> dict[str, dict[str, PortStats]]:
        return {}

    def close(self) -> None:
        self.nodes = []


kernels: list[Kernel] = []


class Switches:
    """They answer when they are asked: rail 0 has sent `busy` of its rate since the last time, by the clock."""

    def __init__(self) -> None:
        self.loop: HealthLoop | None = None
        self.busy = 0.0
        self.asked = 0
        self._sent, self._at_ns = 0.0, time.monotonic_ns()

    def ask(self) -> None:
        self.asked += 1
        now = time.monotonic_ns()
        self._sent += self.busy * PLAN.rail_bps / 8 * (now - self._at_ns) / 1e9
        self._at_ns = now
        rest = {"rx_bytes": 0, "rx_packets": 0, "tx_packets": 0, "rx_dropped": 0, "tx_dropped": 0}
        if self.loop:
            counters = {port: {"tx_bytes": round(self._sent)} | rest for port in (1, 2)}
            self.loop.on_event(SwitchEvent("stats", RAIL_0, now, counters=counters))


class Rig:
    """A running loop, its events, and an agent of its registry."""

    def __init__(self, **keys: str) -> None:
        self.switches, self.reported = Switches(), list[tuple[str, dict[str, Any]]]()
        spec = parse_health(SPEC | keys)
        self.loop = HealthLoop(PLAN, spec, self.switches.ask, lambda *event: self.reported.append(event))
        self.switches.loop = self.loop
        self.agent: Registry = connect(self.loop.server.address, 0.2)

    def sees(self, wanted: Callable[[View], bool]) -> View:
        """The agent's view, once it is as wanted."""
        deadline = time.monotonic() + LATE_S
        while not wanted(view := self.agent.get()):
            assert time.monotonic() < deadline, view
            time.sleep(0.002)
        return view


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rig]]:
    monkeypatch.setattr(monitor, "FOLDER", tmp_path)
    monkeypatch.setattr(monitor, "PortReader", Kernel)
    kernels.clear()
    made: list[Rig] = []

    def make(**keys: str) -> Rig:
        made.append(Rig(**keys))
        return made[-1]

    yield make
    for each in made:
        each.agent.close()
        each.loop.stop()


def rails(view: View) -> tuple[int, ...]:
    return view.scores.rails if view.scores else ()


def test_load_becomes_a_score_that_agents_have(rig: Callable[..., Rig]) -> None:
    running = rig()
    assert running.sees(lambda view: view.scores is not None).scores == Scores((100, 100), (100, 100))
    running.switches.busy = 0.8
    running.sees(lambda view: rails(view)[0] < 30 and rails(view)[1] == 100)
    running.switches.busy = 0.0
    running.sees(lambda view: rails(view) == (100, 100))


def test_each_period_reports_loads_scores_and_publishing_time(rig: Callable[..., Rig]) -> None:
    begun_ns, running = time.monotonic_ns(), rig()
    running.switches.busy = 0.8
    running.sees(lambda view: any(detail["rail"][0][1] < 30 for _, detail in list(running.reported)))
    assert {what for what, _ in running.reported} == {"health"}
    reported = [detail for _, detail in running.reported]
    assert [detail["version"] for detail in reported] == sorted(detail["version"] for detail in reported)
    assert [detail["put_ns"] for detail in reported] == sorted({detail["put_ns"] for detail in reported})
    assert begun_ns < reported[0]["put_ns"] < time.monotonic_ns()
    hot = next(detail for detail in reported if detail["rail"][0][1] < 30)
    load, score = hot["rail"][0]
    assert score == pytest.approx(100 * (1 - load), abs=1)
    assert hot["rail"][1] == [0.0, 100]
    assert hot["domain"] == [[0.0, 100], [0.0, 100]]
    assert hot["spine"] == []


def test_restarted_registry_is_filled_again(rig: Callable[..., Rig]) -> None:
    running = rig()
    running.sees(lambda view: rails(view) == (100, 100))
    running.loop.server.stop()
    running.switches.busy = 0.8
    last = running.sees(lambda view: view.stale)
    assert rails(last)[1] == 100  # kept
    periods = len(running.reported)
    running.loop.server.start()
    # Reported after it is put, so an agent may see it first.
    running.sees(lambda view: not view.stale and rails(view)[0] < 30 and len(running.reported) > periods)


def test_queues_are_read_only_for_estimators_of_queues(rig: Callable[..., Rig]) -> None:
    rig(), rig(estimator="backlog")
    bridges_alone, all_queues = (set(kernel.nodes) for kernel in kernels)
    assert bridges_alone == {"hb0", "hb1"}
    assert all_queues == bridges_alone | {"rail0", "rail1", "d0g0", "d0g1", "d1g0", "d1g1"}


def test_loop_skips_missed_periods_after_a_stall(rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    running, stalled = rig(), threading.Event()
    ask = running.switches.ask

    def stall() -> None:
        if not stalled.is_set():
            time.sleep(30 * PERIOD_S)
            stalled.set()
        ask()

    monkeypatch.setattr(running.loop, "_ask_stats", stall)
    assert stalled.wait(LATE_S)
    before, begun = running.switches.asked, time.monotonic()
    time.sleep(10 * PERIOD_S)
    asked, took_s = running.switches.asked - before, time.monotonic() - begun
    assert 0 < asked <= took_s / PERIOD_S + 2


def test_at_its_end_nothing_is_left(rig: Callable[..., Rig]) -> None:
    running = rig()
    running.sees(lambda view: view.scores is not None)
    running.loop.stop()
    assert kernels[0].nodes == []
    asked = running.switches.asked
    time.sleep(5 * PERIOD_S)
    assert running.switches.asked == asked
    running.sees(lambda view: view.stale)


def stats(at_ms: int, sent: dict[int, int]) -> SwitchEvent:
    rest = {"rx_bytes": 0, "rx_packets": 0, "tx_packets": 0, "rx_dropped": 0, "tx_dropped": 0}
    counters = {port: {"tx_bytes": total} | rest for port, total in sent.items()}
    return SwitchEvent("stats", RAIL_0, at_ms * MS, counters=counters)


def test_loads_are_of_the_last_period_and_of_links_that_are_up() -> None:
    healthd = Healthd(PLAN, parse_health({"smoothing": "10s"}))
    full = PLAN.rail_bps // 8 // 10  # in 100 ms
    assert set(healthd.loads().values()) == {0.0}
    healthd.on_event(stats(0, {1: 0, 2: 0}))
    healthd.on_event(stats(100, {1: 0, 2: 0}))
    healthd.scores(100 * MS)
    healthd.on_event(stats(200, {1: full // 2, 2: full}))
    assert healthd.scores(200 * MS).rails[0] > 95
    assert healthd.loads()[("rail", 0)] == pytest.approx(0.75)
    assert healthd.loads()[("rail", 1)] == 0.0
    healthd.on_event(SwitchEvent("port", RAIL_0, 210 * MS, port=2, up=False))
    assert healthd.loads()[("rail", 0)] == pytest.approx(0.5)
    healthd.on_event(SwitchEvent("switch-down", RAIL_0, 220 * MS))
    assert healthd.loads()[("rail", 0)] == 0.0


@pytest.mark.parametrize(("kind", "spines"), [("rail-only", []), ("rail-optimized", [("spine", 0)])])
def test_every_element_has_a_load(kind: str, spines: list[Element]) -> None:
    elements: list[Element] = [("rail", 0), ("rail", 1), ("domain", 0), ("domain", 1), ("domain", 2)]
    healthd = Healthd(plan_of(kind, domains=3, rails=2), parse_health({}))
    assert set(healthd.loads()) == {*elements, *spines}
