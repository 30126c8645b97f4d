"""Precomputed detours equal those that are computed on demand."""

from itertools import combinations

import pytest

from railyard.controller.failover import detours as precomputed
from railyard.controller.failover.detours import Broken, PrecomputedDetours, detours
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric


def plan_of(kind: str) -> Plan:
    return make_plan(parse_fabric({"kind": kind, "domains": 3, "rails": 3}), 100_000_000)


@pytest.fixture(params=["rail-only", "rail-optimized", "single-switch"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return plan_of(request.param)


def precomputed_for(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> PrecomputedDetours:
    monkeypatch.setattr(precomputed, "PAUSE_S", 0)
    found = PrecomputedDetours(plan)
    found.precompute()
    return found


def singles(plan: Plan) -> list[Broken]:
    failures = [Broken(rails=frozenset({0}))]
    for gpu in plan.gpus:
        dead = frozenset({gpu})
        failures += [Broken(links=dead), Broken(hb=dead), Broken(links=dead, hb=dead)]
    return failures


def test_precomputed_detours_equal_those_computed_later(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    known = precomputed_for(plan, monkeypatch)
    for pair in combinations((Gpu(0, 0), Gpu(0, 1), Gpu(1, 1)), 2):
        broken = Broken(links=frozenset(pair))
        assert known(broken) == detours(plan, broken), "two faults at once are computed when they occur"
    expected = [detours(plan, broken) for broken in singles(plan)]
    monkeypatch.setattr(precomputed, "detours", lambda *_: pytest.fail("computed again"))
    assert [known(broken) for broken in singles(plan)] == expected
    assert known(Broken()) == {}


def test_detours_of_a_large_fabric_are_not_precomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precomputed, "detours", lambda *_: pytest.fail("computed"))
    monkeypatch.setattr(precomputed, "MAX_GPUS", 3)
    PrecomputedDetours(plan_of("rail-only")).precompute()
