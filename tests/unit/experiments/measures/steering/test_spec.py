"""Sections `routing`, `background` and `grid` of an experiment: refused values, and the agents' settings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.agent.steering import MAX_MARGIN, Damping, margin_on, steering_on
from railyard.controller.health.policy import Context, default_policies
from railyard.experiments.measures.steering.spec import RoutingSpec
from railyard.experiments.spec.parsing import parse
from railyard.topologies.spec import FabricSpec
from tests.unit.loaded_experiments import refusals

EXPERIMENT: dict[str, Any] = {
    "name": "mine",
    "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 4}, {"kind": "rail-only", "domains": 4, "rails": 2}],
    "workloads": [{"kind": "transfers", "duration": "1s"}],
    "routing": {},
}
REFUSED = """
routing: {policies: []}
routing: {policies: [dr, helth]}
routing: {policies: [dr, rd, dr]}
routing: {policies: dr}
routing: {margin: -1}
routing: {margin: 1001}
routing: {margin: none}
routing: {noise: 101}
routing: {dwell: 200}
routing: {dwell: 0s}
routing: {delta: 101}
routing: {settle: 61s}
routing: {settle: 0s}
routing: {margins: 3}
routing: {health: {estimator: utilization}}
routing: {health: {registry: zookeeper}}
routing: {health: {period: 50}}
background: [{rails: [4], load: 0.9}]
background: [{rails: [3], load: 0.9}]
background: [{rails: [0], load: 0.96}]
background: [{rails: [0], load: 0.9}, {rails: [0], load: 0.9}]
background: [{rails: [0], load: 0.9, period: 2s}]
background: [{rails: [0], load: 0.9, start: 61min}]
background: [{load: 0.5}]
background: [{spine: true, load: 0.5}]
background: [{rails: [0], load: 0.9}], routing: null
faults: [{kind: link-down, target: d0g1}]
faults: [{kind: link-down, target: d0g1}], workloads: []
workloads: []
grid: {rails: [0], loads: [0, 0.5]}, routing: null
grid: {rails: [0], loads: [0]}, background: [{rails: [1], load: 0.5}]
grid: {domains: [0, 4], loads: [0]}
grid: {spine: true, loads: [0]}
"""


def test_refused_values(data_regression: DataRegressionFixture) -> None:
    data_regression.check(refusals(EXPERIMENT, REFUSED))


def test_resolved_settings_are_complete_and_read_back() -> None:
    background = {"rails": [0], "load": 0.9, "duration": "300ms", "period": "600ms"}
    spec = parse({**EXPERIMENT, "background": [background]})
    assert spec.resolved()["routing"]["policies"] == list(default_policies())
    assert parse(spec.resolved()) == spec


def test_agents_get_the_written_settings() -> None:
    spec = RoutingSpec.model_validate({"margin": 20, "dwell": "none", "delta": 30, "noise": 3})
    fabric = FabricSpec(kind="rail-optimized", domains=3, rails=4)
    steering = spec.steering("health-drd", fabric, 7, {})
    assert (steering.policy, steering.damping) == ("health-drd", Damping(20, 0, 3))
    assert steering.context == Context(spine=True, seed=7, delta=30)
    # nothing damps the oracle, and the usual margin is the fabric's
    assert spec.steering("oracle", fabric, 7, {}).damping == Damping(None, 0, 0)
    assert RoutingSpec().damping(fabric) == steering_on(fabric, "health-drd").damping == Damping(margin_on(3))


@pytest.mark.parametrize(("domains", "margin"), [(2, MAX_MARGIN), (3, 230), (4, 120), (8, 47), (1024, 10)])
def test_the_margin_of_a_fabric(domains: int, margin: int) -> None:
    assert margin_on(domains) == margin


@given(st.integers(3, 1024))
def test_a_pair_alone_on_its_rail_does_not_run_from_itself(domains: int) -> None:
    """Its own transfer leaves 1 - 2/M of the rail's score; an idle rail must not be better by the margin."""
    own, idle = round(100 * (1 - 2 / domains)), 100
    assert idle * 100 <= own * (100 + margin_on(domains)) * 1.005  # scores are whole points
    assert margin_on(domains) >= margin_on(domains + 1)
