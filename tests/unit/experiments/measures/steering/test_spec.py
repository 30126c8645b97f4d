"""Sections `routing` and `background` of an experiment: refused values, their messages, and the agents' settings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.agent.steering import MAX_MARGIN, Damping, margin_on
from railyard.controller.health.policy import Context, default_policies
from railyard.core.errors import BadInput
from railyard.experiments.measures.steering.spec import RoutingSpec
from railyard.experiments.spec.parsing import parse
from railyard.topologies.spec import FabricSpec

FABRIC: dict[str, Any] = {"kind": "rail-only", "domains": 4, "rails": 4}
TRANSFERS: dict[str, Any] = {"kind": "transfers", "duration": "1s"}
HOT: dict[str, Any] = {"rails": [0], "load": 0.9}


def experiment(**changes: Any) -> dict[str, Any]:
    given = {"name": "mine", "fabrics": [FABRIC], "workloads": [TRANSFERS], "routing": {}, **changes}
    return {key: value for key, value in given.items() if value is not None}


def routing(**keys: Any) -> dict[str, Any]:
    return experiment(routing=keys)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (routing(policies=[]), "routing.policies: [] must have 1 or more"),
        (
            routing(policies=["dr", "helth"]),
            "routing.policies.1: 'helth' is not known: did you mean 'health'? allowed are ",
        ),
        (routing(policies=["dr", "rd", "dr"]), "routing.policies: ['dr', 'rd', 'dr'] must name each policy once"),
        (routing(policies="dr"), "routing.policies: 'dr' must be a list"),
        (routing(margin=-1), "routing.margin: -1 must be 0 or more"),
        (routing(margin=1001), "routing.margin: 1001 must be 1000 or less"),
        (routing(margin="none"), "routing.margin: 'none' "),
        (routing(noise=101), "routing.noise: 101 must be 100 or less"),
        (routing(dwell=200), "routing.dwell: 200 is not a time: write a number and one of ns, us, ms, s, min"),
        (routing(delta=101), "routing.delta: 101 must be 100 or less"),
        (routing(settle="61s"), "routing.settle: '61s' must be "),
        (routing(settle="0s"), "routing.settle: '0s' is not a time above zero"),
        (routing(margins=3), "routing.margins: 3 is not a known key: did you mean 'margin'? allowed are "),
        (routing(health={"estimator": "utilization"}), "routing.health.estimator: 'utilization' is not known: did you"),
        (routing(health={"registry": "zookeeper"}), "routing.health.registry: 'zookeeper' is not known: allowed are "),
        (
            experiment(background=[{**HOT, "rails": [4]}]),
            "background.0.rails.0: 4 must be below 4: the fabric has no more",
        ),
        (experiment(background=[{**HOT, "load": 0.96}]), "background.0.load: 0.96 must be 0.95 or less"),
        (experiment(background=[HOT, HOT]), "background.1.load: 0.9 adds up to 1.8 of rail 0 with the spine's or what"),
        (
            experiment(background=[{**HOT, "period": "2s"}]),
            "background.0.period: '2s' is only for what ends: give duration",
        ),
        (experiment(background=[{"load": 0.5}]), "background.0.rails: [] must name a rail, if neither domains nor"),
        (
            experiment(background=[{"spine": True, "load": 0.5}]),
            "background.0.spine: True is not for kind rail-only, which has no spines",
        ),
        (
            experiment(background=[HOT], routing=None),
            "background: 1 is for experiments with routing: add {policies: [dr]}",
        ),
        (
            experiment(faults=[{"kind": "link-down", "target": "d0g1"}]),
            "faults: 1 can't be given together with routing: make two experiments of it",
        ),
        (
            experiment(workloads=[], faults=[{"kind": "link-down", "target": "d0g1"}]),
            "faults: 1 can't be given together with routing",
        ),
        (experiment(workloads=[]), "workloads: [] must have 1 or more"),
    ],
)
def test_errors_name_field_value_and_allowed_values(data: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(data)
    assert str(caught.value).startswith(message)


def test_a_background_must_fit_every_fabric() -> None:
    smaller = {**FABRIC, "rails": 2}
    with pytest.raises(BadInput, match=r"^background\.0\.rails\.0: 3 must be below 2"):
        parse(experiment(fabrics=[FABRIC, smaller], background=[{**HOT, "rails": [3]}]))


def test_resolved_settings_are_complete_and_read_back() -> None:
    spec = parse(experiment(background=[{**HOT, "duration": "300ms", "period": "600ms"}]))
    assert spec.resolved()["routing"]["policies"] == list(default_policies())
    assert parse(spec.resolved()) == spec


def test_agents_get_the_written_settings() -> None:
    spec = RoutingSpec.model_validate({"margin": 20, "dwell": "none", "delta": 30, "noise": 3})
    fabric = FabricSpec(kind="rail-optimized", domains=3, rails=4)
    steering = spec.steering("health-drd", fabric, 7, {})
    assert (steering.policy, steering.damping) == ("health-drd", Damping(20, 0, 3))
    assert steering.context == Context(spine=True, seed=7, delta=30)


def test_nothing_damps_the_oracle() -> None:
    spec = RoutingSpec.model_validate({"margin": 20, "dwell": "1s"})
    fabric = FabricSpec(kind="rail-only", domains=3, rails=4)
    damping = spec.steering("oracle", fabric, 1, {}).damping
    assert (damping.margin, damping.dwell_ns) == (None, 0)


def test_auto_is_the_fabrics_margin_on() -> None:
    fabric = FabricSpec(kind="rail-only", domains=4, rails=4)
    assert RoutingSpec().damping(fabric) == Damping(margin_on(4), 200_000_000)


@pytest.mark.parametrize(("domains", "margin"), [(2, MAX_MARGIN), (3, 230), (4, 120), (8, 47), (1024, 10)])
def test_the_margin_of_a_fabric(domains: int, margin: int) -> None:
    assert margin_on(domains) == margin


@given(st.integers(3, 1024))
def test_a_pair_alone_on_its_rail_does_not_run_from_itself(domains: int) -> None:
    """Its own transfer leaves 1 - 2/M of the rail's score; an idle rail must not be better by the margin."""
    own, idle = round(100 * (1 - 2 / domains)), 100
    assert idle * 100 <= own * (100 + margin_on(domains)) * 1.005  # scores are whole points
    assert margin_on(domains) >= margin_on(domains + 1)
