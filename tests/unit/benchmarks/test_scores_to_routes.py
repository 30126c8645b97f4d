"""The benchmark of scores to routes: what changes, when a change counts as done, and the report."""

import threading
import time

import pytest
from rich.console import Console

from benchmarks import scores_to_routes
from benchmarks.scores_to_routes import Central, ChangeLog, Series, hot, p95, table_of
from railyard.controller.agent.steering import Damping, Steering
from railyard.controller.health.policy import Context
from railyard.core.errors import RailyardError
from railyard.topologies.routing import host_prefix
from tests.unit.shown import table_rows
from tests.unit.stand_ins import plan_of

PLAN = plan_of(domains=8, rails=8)


def test_every_source_has_to_leave_the_rail_that_goes_hot() -> None:
    central = Central(PLAN, None, Steering("health-drd", Context(), Damping(None, 0)))  # type: ignore[arg-type]
    assert central.decide(hot(PLAN, None, 1)) == {}
    for rail in (3, 5):
        changes = central.decide(hot(PLAN, rail, 2))
        assert changes.keys() == set(PLAN.gpus)
        put = [(gpu, route) for gpu, (_, routes) in changes.items() for route in routes]
        assert len(put) == 64 * 7
        assert {route.prefix for _, route in put} == {host_prefix(gpu) for gpu in PLAN.gpus if gpu.rank == rail}
        back = central.decide(hot(PLAN, None, 3))
        gone = {(gpu, route.prefix) for gpu, (removed, _) in back.items() for route in removed}
        assert gone == {(gpu, route.prefix) for gpu, route in put}


def test_a_change_is_done_when_the_last_source_has_its_routes() -> None:
    change_log = ChangeLog()
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(change_log.last_ns(7, 64)))
    waiting.start()
    for ns, version, sources in ((100, 6, 64), (200, 7, 40), (900, 8, 64), (300, 7, 24)):
        assert not found
        change_log.on_event(ns, "changed", {"version": version, "sources": sources})
        change_log.on_event(ns + 5000, "stale", {"gpu": "d0g0"})
    waiting.join(10)
    assert found == [300]


def test_route_that_is_never_installed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores_to_routes, "WAIT_S", 0.05)
    change_log = ChangeLog()
    change_log.on_event(time.monotonic_ns(), "changed", {"version": 1, "sources": 63})
    with pytest.raises(RailyardError, match=r"^of 64 agents "):
        change_log.last_ns(1, 64)


def test_one_in_twenty_is_above_p95() -> None:
    assert p95([float(n) for n in range(101)]) == 95.0
    assert p95([3.0] * 20) == 3.0


def test_the_table_sets_each_beside_the_peer() -> None:
    console = Console(width=140)
    series = [Series("one process", 448, (10.0, 12.0, 11.0)), Series("etcd", 448, (20.0, 31.0, 25.0))]
    with console.capture() as capture:
        console.print(table_of(series, "64 GPUs"))
    rows = table_rows(capture.get())
    assert {"448", "11.0", "11.9", "10.0–12.0"} <= set(rows["one process"])
    assert {"448", "25.0", "30.4", "20.0–31.0", "14.0"} <= set(rows["etcd"])
