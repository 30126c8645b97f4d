"""Decisions of one agent: routes follow its policy's choice, and change only with it."""

from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.agent.steering import (
    STEERED_METRIC,
    Damping,
    Source,
    Steering,
    route_for,
)
from railyard.controller.health.policy import HEALTH_POLICIES, Context, Scores, idle
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, Share
from railyard.topologies.plan import make_plan
from railyard.topologies.routing import MAIN, MAX_WEIGHT, Hop, Route, host_prefix
from railyard.topologies.spec import parse_fabric

PLAN = make_plan(parse_fabric({"kind": "rail-only", "domains": 3, "rails": 4}), 10_000_000)
SRC, DST = Gpu(0, 1), Gpu(1, 2)
AT_ONCE = Damping(0, 0)
DR, RD, DRD = Path("dr", 2), Path("rd", 1), Path("drd", 3)


def source(policy: str, damping: Damping = AT_ONCE) -> Source:
    return Source(PLAN, SRC, Steering(policy, Context(seed=3), damping))


def test_the_base_policy_needs_no_routes() -> None:
    change = source("dr").decide(idle(3, 4), 0)
    assert change.put == change.remove == ()
    assert len(change.chosen) == 8  # every GPU of the other domains, told once


def test_policy_puts_a_host_route_for_each_differing_pair() -> None:
    agent = source("rd")
    change = agent.decide(idle(3, 4), 0)
    assert len(change.put) == 6  # all but the two on its own rail
    assert Route(host_prefix(DST), (Hop("rail0", Gpu(1, 1)),), MAIN, STEERED_METRIC) in change.put
    assert not agent.decide(idle(3, 4), 1), "the same scores"
    assert set(agent.release()) == set(change.put)


def test_a_hot_rail_is_left_and_returned_to() -> None:
    agent = source("health")
    assert agent.decide(idle(3, 4), 0).put == ()
    left = agent.decide(Scores((100, 100, 10, 100), (100,) * 3, version=1), 1)
    assert {route.prefix for route in left.put} == {host_prefix(Gpu(d, 2)) for d in (1, 2)}
    assert agent.chosen(DST) == (Share(RD),)
    back = agent.decide(Scores((100, 10, 100, 100), (100,) * 3, version=2), 2)
    assert {route.prefix for route in back.remove} == {route.prefix for route in left.put}
    assert agent.release() == ()


def test_change_forbidden_by_dwell_is_asked_again_later() -> None:
    agent = source("health", Damping(0, 1000))
    agent.decide(idle(3, 4), 0)
    hot = Scores((100, 100, 10, 100), (100,) * 3, version=1)
    early = agent.decide(hot, 400)
    assert not early
    assert early.recheck_ns == 1000
    assert agent.decide(hot, early.recheck_ns).put


def test_flapping_pair_is_rechecked_after_its_longer_dwell() -> None:
    agent, news = source("health", Damping(0, 100, 0)), [(100, 100, 10, 100), (100, 10, 100, 100)]
    agent.decide(idle(3, 4), 0)
    for version, now in enumerate((100, 300, 700), 1):
        assert agent.decide(Scores(news[(version - 1) % 2], (100,) * 3, version=version), now).chosen
    late = agent.decide(Scores(news[1], (100,) * 3, version=4), 900)
    assert late.recheck_ns == 700 + 4 * 100
    assert agent.decide(Scores(news[1], (100,) * 3, version=4), late.recheck_ns).chosen


def test_several_paths_are_one_route_with_several_hops() -> None:
    route = route_for((Share(DR), Share(RD), Share(DRD, 2)), (Share(DR),), SRC, DST)
    hops = (Hop("hb0", Gpu(0, 2), 1), Hop("rail0", Gpu(1, 1), 1), Hop("hb0", Gpu(0, 3), 2))
    assert route == Route(host_prefix(DST), hops, MAIN, STEERED_METRIC)


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=4))
def test_weights_fit_the_kernel_and_keep_their_order(weights: list[int]) -> None:
    shares = tuple(Share(Path("drd", rail), weight) for rail, weight in zip((0, 3, 1, 2), weights, strict=False))
    route = route_for(shares, (Share(DR),), SRC, DST)
    assert route is not None
    given_order = sorted(range(len(weights)), key=lambda i: weights[i])
    found = [route.hops[i].weight for i in given_order]
    assert found == sorted(found)
    assert max(found) <= MAX_WEIGHT


def test_satisfied_pair_stays_under_a_rate_aware_policy() -> None:
    hot, alone = Scores((100, 100, 10, 100), (100,) * 3, version=1), {DST.ip: 0.9 * PLAN.rail_bps}
    for policy, rates, stays in (
        ("health-best", alone, True),
        ("health-best", {DST.ip: 0.5 * PLAN.rail_bps}, False),  # it shares a link
        ("health-best", {DST.ip: None}, True),  # it has just begun
        ("health-best", {}, False),  # it sends nothing: it may go where it likes
        ("health-best", {DST.ip: 0.4 * PLAN.rail_bps, "198.18.0.0": 0.4 * PLAN.rail_bps}, True),  # half each
        ("health", alone, False),  # goes by scores alone
    ):
        agent = source(policy)
        agent.decide(idle(3, 4), 0)
        before = agent.chosen(DST)
        agent.decide(hot, 1, rates.copy)
        assert (agent.chosen(DST) == before) is stays, (policy, rates)


scores = st.builds(Scores, rails=st.tuples(*[st.integers(0, 100)] * 4), domains=st.tuples(*[st.integers(0, 100)] * 3))


@given(st.sampled_from(sorted(HEALTH_POLICIES)), st.lists(scores, min_size=1, max_size=6))
def test_standing_routes_follow_the_choices_held(policy: str, news: list[Scores]) -> None:
    """Put and remove, applied in order, always leave the routes of what the agent says that it chose."""
    agent, table = source(policy), dict[str, object]()
    for now, seen in enumerate(news):
        change = agent.decide(seen, now)
        for route in change.remove:
            del table[route.prefix]
        for route in change.put:
            table[route.prefix] = route
    wanted = {}
    for dst in PLAN.gpus:
        base = (Share(Path("r", 1)),) if dst.rank == SRC.rank else (Share(Path("dr", dst.rank)),)
        expected = route_for(agent.chosen(dst), base, SRC, dst) if dst.domain != SRC.domain else None
        if expected:
            wanted[host_prefix(dst)] = expected
    assert table == wanted
