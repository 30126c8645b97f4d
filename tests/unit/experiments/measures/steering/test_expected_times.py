"""Predicted times of steered intervals: scores of a background, when it changes, and the example of the docs."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.agent.steering import Damping, Steering
from railyard.controller.health.oracle import Flow
from railyard.controller.health.policy import HEALTH_POLICIES, Context
from railyard.core.errors import RailyardError
from railyard.experiments.measures.steering.expected_times import (
    Pattern,
    completion_s,
    expected_scores,
    flows_in,
    oracle_paths,
)
from railyard.topologies.addresses import Gpu
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.forwarding import Shares
from railyard.topologies.plan import Plan
from railyard.workloads.background.spec import BackgroundSpec
from railyard.workloads.spec import build, parse_workload
from tests.unit.stand_ins import plan_of

TICK = 1 / 64  # exact in binary, so that edges are where they are meant to be
SIXTY_FOURTH_MS = 15.625


def spec(**keys: Any) -> BackgroundSpec:
    return BackgroundSpec.model_validate(keys)


def pattern(plan: Plan, *specs: dict[str, Any]) -> Pattern:
    return Pattern(plan, tuple(spec(**keys) for keys in specs))


def scores_of(plan: Plan, *specs: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    scores = expected_scores(plan, pattern(plan, *specs).flows(range(len(specs))))
    return scores.rails, scores.domains, scores.spine


@pytest.mark.parametrize(
    ("specs", "rails", "domains"),
    [
        ([], (100, 100, 100), (100, 100)),
        ([{"rails": [1], "load": 0.9}], (100, 10, 100), (100, 100)),
        ([{"domains": [0], "load": 0.25}], (100, 100, 100), (75, 100)),
        ([{"rails": [0, 2], "load": 0.5}, {"rails": [0], "domains": [1], "load": 0.45}], (5, 100, 50), (100, 55)),
    ],
)
def test_score_is_the_share_left_by_the_background(
    specs: list[dict[str, Any]], rails: tuple[int, ...], domains: tuple[int, ...]
) -> None:
    assert scores_of(plan_of(rails=3), *specs) == (rails, domains, 100)


def test_spines_load_rails_and_full_is_never_blocked() -> None:
    plan = plan_of("rail-optimized", domains=3, rails=2, oversubscription=2.0)
    assert scores_of(plan, {"spine": True, "load": 0.8}) == ((60, 60), (100,) * 3, 20)
    assert scores_of(plan_of(), *[{"rails": [0], "load": 0.95}] * 2)[0] == (1, 100)


def test_flows_are_pairs_of_two_domains_with_all_their_bytes() -> None:
    plan = plan_of(domains=3, rails=4)
    keys = {"kind": "transfers", "domains": [0], "ranks": [0, 1], "bytes": "3MB", "stripes": 3, "rounds": 2}
    schedule, *_ = build(parse_workload(keys), plan.spec, plan.rail_bps, plan.hb_bps)
    sizes = {(flow.src, flow.dst): flow.size for flow in flows_in(schedule, plan.gpus)}
    assert sizes.keys() == {(Gpu(0, 0), Gpu(1, 1)), (Gpu(0, 1), Gpu(1, 0))}  # receipts go back, and don't count
    data = [transfer.bytes for _, transfer in schedule.transfers if (transfer.src, transfer.dst) == (0, 5)]
    assert sizes[Gpu(0, 0), Gpu(1, 1)] == sum(data)
    assert len(data) == 3 * 2


@st.composite
def entries(draw: st.DrawFn) -> BackgroundSpec:
    """On from a tick on, for ever, once, or again and again."""
    first, lasts = draw(st.integers(0, 40)), draw(st.none() | st.integers(1, 30))
    every = draw(st.none() | st.integers(1, 30)) if lasts else None
    keys: dict[str, Any] = {"start": "0s" if not first else f"{first * SIXTY_FOURTH_MS}ms"}
    if lasts:
        keys["duration"] = f"{lasts * SIXTY_FOURTH_MS}ms"
        if every:
            keys["period"] = f"{(lasts + every) * SIXTY_FOURTH_MS}ms"
    return spec(rails=[0], load=0.1, **keys)


@given(st.lists(entries(), min_size=1, max_size=4))
def test_changes_are_where_the_waves_begin_and_end(specs: list[BackgroundSpec]) -> None:
    """Looked at tick by tick, nothing goes on or off but at a change that was foreseen."""
    background = Pattern(plan_of(), tuple(specs))
    edges: list[float] = []
    at = background.next_change(0.0)
    while at is not None and at <= 200 * TICK:
        edges.append(at)
        at = background.next_change(at)
    assert edges == sorted(set(edges))
    ticks = [number * TICK for number in range(201)]
    active = [frozenset(i for i, entry in enumerate(specs) if entry.wave.is_on(at_s)) for at_s in ticks]
    assert [background.at(at_s) for at_s in ticks] == active
    changes = {at_s for at_s, (before, after) in zip(ticks[1:], pairwise(active), strict=True) if before != after}
    assert changes <= set(edges) <= set(ticks)


@given(st.integers(0, 3000), st.integers(1, 500), st.integers(1, 500))
def test_entries_on_at_a_change_stay_on_until_the_next(first: int, lasts: int, pause: int) -> None:
    """Milliseconds, as people write them, which no binary fraction is."""
    keys = {"start": f"{first}ms" if first else "0s", "duration": f"{lasts}ms", "period": f"{lasts + pause}ms"}
    background = pattern(plan_of(), {"rails": [0], "load": 0.5, **keys})
    at = 0.0
    for _ in range(20):
        at = background.next_change(at) or 0.0
        assert background.at(at) == background.at(at + 0.0004)


def test_constant_background_is_steady() -> None:
    plan = plan_of()
    steady, late = pattern(plan, {"rails": [0], "load": 0.5}), pattern(plan, {"rails": [0], "load": 0.5, "start": "1s"})
    assert (steady.steady, late.steady) == (True, False)
    assert (late.next_change(0.0), late.next_change(1.0)) == (1.0, None)


PLAN = plan_of(domains=4, rails=8)
HALF_HOT = pattern(PLAN, {"rails": [0, 1, 2, 3], "load": 0.9})
SECOND = round(PLAN.rail_bps / 8 * payload_fraction(PLAN.spec.mtu))
FOUR = [Flow(Gpu(0, g), Gpu(1, (g + 1) % 4), SECOND) for g in range(4)]
"""Each needs a second of an empty rail."""


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [("dr", 10.0), ("rd", 10.0), ("health", 10.0), ("health-drd", 4.0), ("health-best", 1.0), ("oracle", 1.0)],
)
def test_the_docs_table(policy: str, seconds: float) -> None:
    assigned = oracle_paths(PLAN, FOUR, HALF_HOT.flows([0]))
    found = completion_s(HALF_HOT, FOUR, Steering(policy, Context(assigned=assigned if policy == "oracle" else {})))
    assert found == pytest.approx(seconds, rel=1e-3)


def test_several_paths_or_moving_background_have_no_prediction() -> None:
    assert completion_s(HALF_HOT, FOUR, Steering("ecmp")) is None
    assert completion_s(HALF_HOT, FOUR, Steering("health-best-spray")) is None
    wave = pattern(PLAN, {"rails": [0], "load": 0.9, "duration": "1s"})
    assert completion_s(wave, FOUR, Steering("dr")) is None
    assert completion_s(HALF_HOT, [], Steering("dr")) is None


def test_paths_kept_by_damping_are_predicted() -> None:
    half_full = pattern(PLAN, {"rails": [0, 1, 2, 3], "load": 0.5})
    quick, slow = (Steering("health-best", Context(), Damping(margin)) for margin in (10, 120))
    at_once, never = completion_s(half_full, FOUR, quick), completion_s(half_full, FOUR, slow)
    assert at_once is not None
    assert never == pytest.approx(completion_s(half_full, FOUR, Steering("dr")))
    assert never == pytest.approx(2 * at_once, rel=0.01)


def test_a_policy_that_raises_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> Shares:
        raise LookupError("no such rail")

    monkeypatch.setitem(vars(HEALTH_POLICIES["dr"]), "choose", wrong)
    with pytest.raises(RailyardError, match=r"^policy dr failed: LookupError: no such rail$"):
        completion_s(HALF_HOT, FOUR, Steering("dr"))
