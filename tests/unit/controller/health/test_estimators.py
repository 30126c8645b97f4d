"""Loads and what they say of health: exact cases, and what must hold for every estimator."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.health.estimator import (
    ESTIMATORS,
    Estimator,
    Health,
    HealthSpec,
    Links,
    Load,
    health,
    pooled,
)
from railyard.controller.health.estimators.loss import LOSS_LIMIT
from tests.unit.controller.health_settings import parse_health
from tests.unit.messages import messages

BPS, PERIOD_S = 80_000_000, 0.05  # 500,000 bytes a period
LINK = Load(BPS, PERIOD_S, sent_bytes=0, backlog_limit_bytes=100_000)
DOWN = replace(LINK, up_ports=0)

loads = st.builds(
    Load,
    capacity_bps=st.floats(1e6, 1e9),
    period_s=st.floats(0, 1),
    sent_bytes=st.integers(0, 10**9),
    frames=st.integers(0, 10**6),
    dropped=st.integers(0, 10**6),
    backlog_bytes=st.integers(0, 10**7),
    backlog_limit_bytes=st.integers(0, 10**7),
    up_ports=st.integers(0, 1),
)
every_estimator = pytest.mark.parametrize(
    "estimate", [estimate for _, estimate in ESTIMATORS.items()], ids=ESTIMATORS.names()
)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (LINK, {"utilisation": 100, "backlog": 100, "loss": 100, "blended": 100}),
        (replace(LINK, sent_bytes=450_000), {"utilisation": 10, "backlog": 100, "loss": 100, "blended": 55}),
        (replace(LINK, sent_bytes=510_000), {"utilisation": 0, "blended": 50}),  # idle credit: no more than all
        (replace(LINK, backlog_bytes=25_000), {"utilisation": 100, "backlog": 75, "blended": 87.5}),
        (replace(LINK, backlog_bytes=10**9), {"backlog": 0, "blended": 50}),
        (replace(LINK, frames=996, dropped=4), {"utilisation": 100, "loss": 60, "blended": 60}),
        (replace(LINK, frames=0, dropped=3), {"loss": 0, "blended": 0}),  # everything was dropped
        (Load(BPS, 0.0, 0), {"utilisation": 100, "backlog": 100, "loss": 100}),  # before the second report
    ],
)
def test_each_estimator_looks_at_its_own(load: Load, expected: dict[str, float]) -> None:
    assert {name: ESTIMATORS[name](load) for name in expected} == pytest.approx(expected)


def test_a_share_of_loss_above_the_limit_leaves_nothing() -> None:
    frames = 10_000
    lost = [Load(BPS, PERIOD_S, 0, frames - n, n) for n in (0, 50, round(frames * LOSS_LIMIT), 5000)]
    assert [ESTIMATORS["loss"](load) for load in lost] == pytest.approx([100, 50, 0, 0])


@every_estimator
@given(load=loads, more=st.integers(0, 10**9), field=st.sampled_from(["sent_bytes", "backlog_bytes", "dropped"]))
def test_more_load_is_never_healthier(estimate: Estimator, load: Load, more: int, field: str) -> None:
    worse = replace(load, **{field: getattr(load, field) + more})
    assert 0 <= estimate(worse) <= estimate(load) <= 100


@every_estimator
@given(load=loads, links=st.integers(1, 8))
def test_equal_links_are_as_healthy_as_a_single_link(estimate: Estimator, load: Load, links: int) -> None:
    for over in ("mean", "worst"):
        assert health([load] * links, estimate, over) == pytest.approx(health([load], estimate, over))


@pytest.mark.parametrize(("over", "expected"), [("mean", 75.0), ("worst", 0.0)])
def test_incast_on_one_link_of_four_in_worst_and_in_mean(over: Links, expected: float) -> None:
    incast = [replace(LINK, sent_bytes=500_000), LINK, LINK, LINK]
    assert health(incast, ESTIMATORS["utilisation"], over) == expected


def test_links_are_pooled_by_their_capacity() -> None:
    """A link of four times the rate counts four times; one that is down has no rate."""
    fast = Load(4 * BPS, PERIOD_S, 2_000_000, frames=8, dropped=1, backlog_bytes=7, backlog_limit_bytes=9)
    both = pooled([LINK, fast, replace(fast, up_ports=0)])
    assert both.used == pytest.approx(0.8)
    assert (both.ports, both.up_ports) == (3, 2)
    assert (both.frames, both.dropped, both.backlog_bytes, both.backlog_limit_bytes) == (8, 1, 7, 100_009)


def test_late_report_gives_the_same_rate() -> None:
    late = Load(BPS, 2 * PERIOD_S, 500_000, frames=10)
    both = pooled([late, Load(BPS, PERIOD_S, 250_000, frames=5)])
    assert both.used == pytest.approx(0.5)
    assert both.frames == pytest.approx(20)


@pytest.mark.parametrize("over", ["mean", "worst"])
def test_cut_link_takes_its_share_at_once(over: Links) -> None:
    links = [DOWN, LINK, LINK, LINK]
    idle = Health(100.0).after(health(links, ESTIMATORS["utilisation"], over), 3 / 4, 0.001, 1.0)
    assert idle.score == 75


def test_no_link_up_is_blocked_and_smoothing_restarts() -> None:
    cut = Health(90.0).after(health([DOWN], ESTIMATORS["utilisation"], "mean"), 0.0, 0.0, 1.0)
    assert cut.score == 0
    assert cut.after(40.0, 1.0, 0.001, 1.0).score == 40


@every_estimator
def test_full_is_not_blocked(estimate: Estimator) -> None:
    full = replace(LINK, sent_bytes=10**9, backlog_bytes=10**9, frames=1, dropped=10**6)
    assert Health().after(health([full], estimate, "mean"), 1.0, 0.05, 0.1).score == 1


@given(
    start=st.floats(0, 100), end=st.floats(0, 100), first=st.floats(0, 1), then=st.floats(0, 1), tau=st.floats(0.01, 1)
)
def test_smoothing_depends_on_time_not_on_the_number_of_steps(
    start: float, end: float, first: float, then: float, tau: float
) -> None:
    twice = Health(start).after(end, 1.0, first, tau).after(end, 1.0, then, tau)
    once = Health(start).after(end, 1.0, first + then, tau)
    assert twice.smoothed == pytest.approx(once.smoothed, abs=1e-9)


def test_smoothing_is_exponential_and_may_be_left_out() -> None:
    assert Health().score == 100, "before the first report"
    assert Health(100.0).after(0.0, 1.0, 0.1, 0.1).smoothed == pytest.approx(100 / math.e)
    assert Health(100.0).after(20.0, 1.0, 0.05, 0.0).score == 20


def cubed(load: Load) -> float:
    """The free share of the cubed load."""
    return 200 * (1 - load.used**3) - 50


def test_health_is_kept_within_0_to_100() -> None:
    scores = [health([replace(LINK, sent_bytes=sent)], cubed, "mean") for sent in (0, 250_000, 500_000)]
    assert scores == [100, 100, 0]  # 150, 125 and -50, kept within bounds


def test_settings_survive_writing_and_reading() -> None:
    spec = parse_health({"period": "20ms", "smoothing": "none", "full_queue": "5ms", "registry": "etcd"})
    assert (spec.period, spec.smoothing_s, spec.full_queue, spec.registry) == (0.02, 0.0, 0.005, "etcd")
    assert parse_health(spec.model_dump(mode="json")) == spec


def test_a_registered_estimator_may_be_named_in_a_spec() -> None:
    ESTIMATORS.add("cubed", cubed)
    try:
        assert HealthSpec(estimator="cubed").estimator == "cubed"
    finally:
        ESTIMATORS.remove("cubed")


BAD_SETTINGS = {
    "estimator": {"estimator": "utilization"},
    "links": {"links": "best"},
    "registry": {"registry": "zookeeper"},
    "period": {"period": "50"},
    "smoothing": {"smoothing": "2min"},
    "key": {"periods": "50ms"},
}
BAD_ESTIMATORS: dict[str, Any] = {"no docstring": lambda load: 1.0, "raises": max, "no number": repr}


def test_messages_of_settings_and_estimators(data_regression: DataRegressionFixture) -> None:
    estimators = messages(partial(ESTIMATORS.add, "mine"), BAD_ESTIMATORS)
    data_regression.check({"settings": messages(parse_health, BAD_SETTINGS), "estimators": estimators})
