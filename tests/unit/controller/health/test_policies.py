"""Policies by name: what each says in a few fabrics, and what the improved ones promise, by a look at every path."""

from collections import Counter
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.failover.detours import Broken, usable
from railyard.controller.health.policy import (
    HEALTH_POLICIES,
    Context,
    HealthPolicy,
    Scores,
    best_path,
    best_paths,
    idle,
)
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, PathKind, Share, Shares
from railyard.topologies.routing import next_hop
from tests.unit.health_scan import open_paths, pairs, scores, worth
from tests.unit.messages import messages

SRC, DST = Gpu(0, 0), Gpu(1, 1)
BY_SCORES = sorted(name for name in HEALTH_POLICIES if name.startswith("health"))
HOT = Scores((10, 10, 100, 90), (100, 100))  # both ends' rails are


def text(name: str, known: Scores, context: Context | None = None) -> list[tuple[PathKind, int]]:
    shares = HEALTH_POLICIES[name].choose(SRC, DST, known, context or Context())
    assert {share.weight for share in shares} == {1}
    return [(share.path.kind, share.path.rail) for share in shares]


def test_policies_choose_on_idle_fabric_and_two_hot_rails() -> None:
    known = idle(2, 4)
    assert {name: text(name, known) for name in HEALTH_POLICIES if name != "random"} == {
        "dr": [("dr", 1)],
        "rd": [("rd", 0)],
        "ecmp": [("dr", 1), ("rd", 0)],
        **{name: [("dr", 1)] for name in BY_SCORES},
        "oracle": [("dr", 1)],
        "base": [("dr", 1)],
    }
    assert {name: text(name, HOT) for name in BY_SCORES} == {
        "health": [("dr", 1)],
        "health-drd": [("drd", 3)],  # the lowest that will do
        "health-clos": [("drd", 3)],
        "health-spray": [("drd", 3)],  # no rail that helps is within 10 points of m = 10
        "health-best": [("drd", 2)],  # 90 is as good as 100, and this pair's lot is 100
        "health-best-spray": [("drd", 2), ("drd", 3)],
    }


@settings(max_examples=15)
@given(scores(), st.booleans())
def test_every_policy_gives_paths_that_a_route_can_say(known: Scores, spine: bool) -> None:
    context = Context(spine, seed=3)
    for src, dst in pairs(known):
        for name, policy in HEALTH_POLICIES.items():
            shares = policy.choose(src, dst, known, context)
            kinds = {share.path.kind for share in shares}
            assert len({next_hop(share.path, src, dst) for share in shares}) == len(shares)
            assert all(share.weight > 0 for share in shares)
            if src.domain == dst.domain:
                assert kinds <= {"d"}
            elif src.rank == dst.rank:
                assert kinds <= {"r", "drd"}
            else:
                assert kinds <= {"dr", "rd", "drd"} | ({"spine"} if spine else set())
            assert shares or name in BY_SCORES  # a policy that knows no scores knows no blocked domain


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized"])
@pytest.mark.parametrize("delta", [0, 10, 100])
@settings(max_examples=10)
@given(known=scores())
def test_best_policies_stay_within_delta_of_the_best_score(kind: str, delta: int, known: Scores) -> None:
    context = Context(spine=kind != "rail-only", delta=delta)
    for src, dst in pairs(known):
        others = open_paths(src, dst, known, kind)
        best_single = best_path(src, dst, known, context)
        all_of_them = best_paths(src, dst, known, context)
        assert (best_single is None) == (not all_of_them) == (not others)
        if best_single is None:
            continue
        best = max(worth(path, src, dst, known) for path in others)
        good = [path for path in others if worth(path, src, dst, known) * 100 >= best * (100 - delta)]
        if good[0].kind == "drd":
            assert list(all_of_them) == good
        else:
            near = [path for path in good if path.kind in ("d", "r", "dr", "rd")] or good[:1]
            assert all_of_them == (max(near, key=lambda path: worth(path, src, dst, known)),)
        assert best_single in all_of_them


def test_pairs_that_meet_spread_evenly_over_equal_rails() -> None:
    known = Scores((10,) * 7 + (100,) * 5, (100,) * 4)
    meet = {
        "sources of one destination": [(Gpu(0, g), Gpu(1, 6)) for g in range(5)],
        "every rank to the next": [(Gpu(0, g), Gpu(1, g + 1)) for g in range(5)],
        "destinations of one source": [(Gpu(0, 6), Gpu(1, g)) for g in range(5)],
        "far domains": [(Gpu(0, 0), Gpu(d, 1)) for d in range(1, 4)],
    }
    for flows in meet.values():
        rails = [path.rail for path in (best_path(src, dst, known, Context()) for src, dst in flows) if path]
        assert len(set(rails)) == len(flows)


def test_best_fit_of_the_paper_sends_all_pairs_by_one_rail() -> None:
    known = Scores((10,) * 4 + (100,) * 5, (100,) * 2)
    flows = [(Gpu(0, g), Gpu(1, (g + 1) % 4)) for g in range(4)]
    assert {HEALTH_POLICIES["health-drd"].choose(src, dst, known, Context())[0].path for src, dst in flows} == {
        Path("drd", 4)
    }


def test_noise_causes_no_detour() -> None:
    known = Scores((93, 95, 100, 98), (97, 95))
    assert text("health-drd", known)[0][0] == "dr"
    assert text("health-drd", Scores((93, 95, 100, 98), (100, 100)))[0][0] == "drd"
    assert text("health-best", Scores((93, 95, 100, 98), (100, 100)))[0][0] == "dr"


def test_random_draws_every_rail_alike_and_the_same_again() -> None:
    def draws() -> list[Path]:
        ends = product(range(80), range(4), range(4))
        return [
            HEALTH_POLICIES["random"].choose(Gpu(0, g), Gpu(1, h), idle(2, 4), Context(seed=n))[0].path
            for n, g, h in ends
        ]

    assert draws() == draws()
    drawn = Counter(path.rail for path in draws())
    assert all(abs(drawn[rail] - 320) < 80 for rail in range(4))  # 1,280 draws: 320 each, 5 standard deviations
    assert {path.kind for path in draws()} == {"r", "dr", "rd", "drd"}


def test_spines_carry_ecmp_and_may_be_the_best_path() -> None:
    context = Context(spine=True)
    assert text("ecmp", idle(2, 4), context) == [("spine", 0)]
    hot_domains = Scores((100, 100, 100), (20, 20), spine=90)
    assert text("health-best", hot_domains, context) == [("spine", 0)]
    assert text("health", hot_domains, context) == [("dr", 1)]
    assert text("health-best", Scores((100, 100), (0, 0), spine=1), context) == [("spine", 0)]


def test_best_path_counts_spines_on_two_tiers() -> None:
    """On a Clos dr crosses the spines too, so H(S) cancels out: 0.7 x 0.5 against 1 x 0.5."""
    loaded = Scores((100, 100), (70, 70), spine=50)
    leaves = {Gpu(domain, rank): f"leaf{domain}" for domain in range(2) for rank in range(2)}
    two_tiers = Context(spine=True, leaves=leaves)
    for name in ("health-best", "health-best-spray"):
        assert text(name, loaded, Context(spine=True)) == [("dr", 1)]
        assert text(name, loaded, two_tiers) == [("spine", 0)]


def test_path_within_a_domain_is_hb0_despite_dead_rails() -> None:
    path, dst = Path("d", 0), Gpu(0, 1)
    assert next_hop(path, SRC, dst) == ("hb0", None)
    assert usable(path, SRC, dst, Broken(links=frozenset({SRC, dst}), rails=frozenset({0, 1})), "rail-only")


def test_oracle_returns_its_assignment() -> None:
    shares = (Share(Path("drd", 2), 3), Share(Path("rd", 0)))
    context = Context(assigned={(SRC, DST): shares})
    assert HEALTH_POLICIES["oracle"].choose(SRC, DST, idle(2, 4), context) == shares
    assert HEALTH_POLICIES["oracle"].choose(DST, SRC, idle(2, 4), context) == (Share(Path("dr", 0)),)


def wrong_result(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """A policy that returns a path instead of shares."""
    return Path("dr", 0)  # type: ignore[return-value]


def raises(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """A policy with a defect."""
    raise LookupError("no rail")


def one_argument(src: Gpu) -> Shares:
    """A policy whose signature is wrong."""
    return ()


BAD_POLICIES: dict[str, Any] = {
    "no shares": HealthPolicy(wrong_result),
    "raises": HealthPolicy(raises),
    "signature": HealthPolicy(one_argument),  # type: ignore[arg-type]
    "no docstring": HealthPolicy(lambda *_: ()),
    "no policy": raises,
}


def test_incomplete_policies_are_refused(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(partial(HEALTH_POLICIES.add, "mine"), BAD_POLICIES))
    assert "mine" not in HEALTH_POLICIES
