"""The decision against a look at every path: case 3, the Remote Rail Theorem, its Corollary, best fit, spraying."""

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings

from railyard.controller.health.oracle import all_paths
from railyard.controller.health.policy import (
    HEALTH_POLICIES,
    Context,
    Scores,
    choose_path,
    clos_path,
    fabric_score,
    first_routable,
    idle,
    near_path,
    path_score,
    spray_paths,
)
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path
from tests.unit.health_scan import open_paths, pairs, parts, ratio, scores, spine_condition, worth

# a law is checked for all pairs of each fabric, in all of this file some 250,000
SRC, DST = Gpu(0, 0), Gpu(1, 1)


def cross(known: Scores) -> list[tuple[Gpu, Gpu]]:
    return [(src, dst) for src, dst in pairs(known) if src.domain != dst.domain and src.rank != dst.rank]


@settings(max_examples=20, deadline=None)
@given(scores())
def test_a_paths_score_is_the_product_of_its_parts(known: Scores) -> None:
    for src, dst in pairs(known):
        for path in all_paths(src, dst, len(known.rails), "rail-optimized"):
            expected = math.prod(Fraction(part, 100) for part in parts(path, src, dst, known))
            assert Fraction(path_score(path, src, dst, known), 1_000_000) == expected


@given(scores())
def test_case_3_takes_the_better_of_dr_and_rd_and_dr_on_a_tie(known: Scores) -> None:
    for src, dst in cross(known):
        either = [path for path in open_paths(src, dst, known) if path.kind in ("dr", "rd")]
        best = max(either, key=lambda path: worth(path, src, dst, known), default=None)
        assert near_path(src, dst, known) == best


@given(scores(least=1))
def test_case_3_is_decided_by_the_papers_ratios(known: Scores) -> None:
    for src, dst in cross(known):
        kind = "rd" if ratio(src, known) > ratio(dst, known) else "dr"
        near = near_path(src, dst, known)
        assert near is not None
        assert near.kind == kind


@given(scores(least=1))
def test_remote_rail_theorem_both_ways_round(known: Scores) -> None:
    """A rail's h-score is above both ratios if and only if drd by it beats dr and rd; and search finds just those."""
    for src, dst in cross(known):
        near = near_path(src, dst, known)
        assert near is not None
        found = {rail for _, rail in known.sorted_rails[first_routable(near, src, dst, known) :]}
        m = max(ratio(src, known), ratio(dst, known))
        beaten = max(worth(path, src, dst, known) for path in (Path("dr", dst.rank), Path("rd", src.rank)))
        for rail, h in enumerate(known.rails):
            better = worth(Path("drd", rail), src, dst, known) > beaten
            assert (Fraction(h, 100) > m) == better == (rail in found)


@given(scores())
def test_best_fit_is_the_least_path_above_all_near_paths(known: Scores) -> None:
    for src, dst in pairs(known):
        near = near_path(src, dst, known)
        least = worth(near, src, dst, known) if near else 0
        beating = [
            path
            for path in open_paths(src, dst, known)
            if near and path.kind == "drd" and worth(path, src, dst, known) > least
        ]
        fit = min(beating, key=lambda path: (known.rails[path.rail], path.rail), default=near)
        assert choose_path(src, dst, known) == fit


@given(scores())
def test_blocked_domains_leave_no_path_blocked_rails_the_last(known: Scores) -> None:
    for src, dst in pairs(known):
        path, others = choose_path(src, dst, known), open_paths(src, dst, known)
        assert (path is None) == (not others)
        assert path is None or path in others
        if path is not None and any(worth(other, src, dst, known) for other in others):
            assert path_score(path, src, dst, known) > 0


@pytest.mark.parametrize("delta", [0, 1, 7, 50])
@given(scores())
def test_spraying_takes_the_papers_window(delta: int, known: Scores) -> None:
    for src, dst in pairs(known):
        chosen = choose_path(src, dst, known)
        sprayed = spray_paths(src, dst, known, delta)
        if chosen is None or chosen.kind != "drd":
            assert sprayed == ((chosen,) if chosen else ())
            continue
        d1, d2 = Fraction(known.domains[src.domain], 100), Fraction(known.domains[dst.domain], 100)
        if src.rank == dst.rank:
            m = known.rails[src.rank] / (d1 * d2)
        else:
            m = max(known.rails[src.rank] / d1, known.rails[dst.rank] / d2)
        window = [rail for rail, h in enumerate(known.rails) if h and m - delta <= h <= m + delta]
        if chosen.rail in window:
            assert [path.rail for path in sprayed] == window
            assert set(sprayed) <= set(open_paths(src, dst, known))
        else:
            assert sprayed == (chosen,)


@given(scores(least=1))
def test_rail_only_against_rail_optimized(known: Scores) -> None:
    for src, dst in cross(known):
        wins = worth(Path("dr", dst.rank), src, dst, known) > worth(Path("spine", src.rank), src, dst, known)
        assert wins == (spine_condition(src, known) and known.rails[dst.rank] > 0)
        if known.spine:
            assert spine_condition(src, known) == (ratio(src, known) < Fraction(100, known.spine))


@pytest.mark.parametrize(
    ("rails", "domains", "path"),
    [
        ((100, 100, 100), (100, 100), ("dr", 1)),  # idle: a tie
        ((50, 60, 40), (80, 80), ("dr", 1)),  # 48 against 40
        ((60, 50, 40), (80, 80), ("rd", 0)),
        ((8, 8, 50, 20, 9), (80, 80), ("drd", 3)),  # m = 0.1: 9 and 8 are below; 20 fits best
        ((8, 8, 20, 20, 90), (80, 80), ("drd", 2)),  # equals: the lowest
        ((8, 8, 10, 10), (80, 80), ("dr", 1)),  # m itself isn't above m
        ((90, 8, 100), (80, 80), ("rd", 0)),  # Corollary: 90/80 > 1
        ((100, 0, 100), (0, 100), ("rd", 0)),  # the source's domain is blocked
        ((0, 0, 100), (0, 100), ("rd", 0)),  # and so is its rail: nothing else is left
        ((100, 0, 100), (100, 0), ("dr", 1)),  # the destination's domain, with a blocked rail
        ((0, 0, 1), (1, 1), ("drd", 2)),  # both rails blocked, and a bad one that isn't
        ((0, 0, 0), (100, 100), ("dr", 1)),
        ((100, 100, 100), (0, 0), None),
    ],
)
def test_between_domains_and_rails(rails: tuple[int, ...], domains: tuple[int, ...], path: tuple[str, int]) -> None:
    found = choose_path(SRC, DST, Scores(rails, domains))
    assert (found and (found.kind, found.rail)) == path


@pytest.mark.parametrize(
    ("rails", "domains", "path"),
    [
        ((100, 100), (100, 100), ("r", 0)),
        ((64, 100), (80, 80), ("r", 0)),  # 80% of 100% of 80% is 64%, no better
        ((63, 100), (80, 80), ("drd", 1)),
        ((10, 30, 20, 40), (80, 80), ("drd", 2)),  # 12.8% is the least above 10%
        ((0, 0), (100, 100), ("r", 0)),
        ((0, 5), (0, 100), ("r", 0)),  # no way round through a blocked domain
    ],
)
def test_on_one_rail(rails: tuple[int, ...], domains: tuple[int, ...], path: tuple[str, int]) -> None:
    found = choose_path(Gpu(0, 0), Gpu(1, 0), Scores(rails, domains))
    assert found is not None
    assert (found.kind, found.rail) == path


def test_paths_within_a_domain_depend_on_its_score_alone() -> None:
    assert choose_path(Gpu(1, 0), Gpu(1, 2), Scores((0, 0, 0), (0, 1))) == Path("d", 0)
    assert choose_path(Gpu(0, 0), Gpu(0, 2), Scores((100, 100, 100), (0, 1))) is None


def test_a_spray_with_own_rails_goes_by_their_own_paths() -> None:
    known = Scores((50, 52, 55, 48, 90), (100, 100))
    assert spray_paths(SRC, DST, known, 5) == (Path("rd", 0), Path("dr", 1), Path("drd", 2), Path("drd", 3))
    # a window that ends below every routable rail: best fit alone
    assert spray_paths(SRC, DST, Scores((50, 52, 90, 95), (100, 100)), 5) == (Path("drd", 2),)


@pytest.mark.parametrize("rails", [8, 256, 4096])
def test_a_decision_looks_at_few_rails_and_at_the_right_ones(rails: int) -> None:
    rng = random.Random(rails)
    for _ in range(20):
        known = Scores(tuple(rng.randint(0, 100) for _ in range(rails)), tuple(rng.randint(1, 100) for _ in range(4)))
        rail = rng.randrange(rails)
        dst = Gpu(1, rng.choice([rail, rng.randrange(rails)]))
        m = path_score(near_path(Gpu(0, rail), dst, known) or Path("r", 0), Gpu(0, rail), dst, known)
        domains = known.domains[0] * known.domains[1]
        above = [(h, x) for x, h in enumerate(known.rails) if h * domains > m]
        looked = Looked(known.sorted_rails)
        known.__dict__["sorted_rails"] = looked
        path = choose_path(Gpu(0, rail), dst, known)
        assert path == (Path("drd", min(above)[1]) if above else near_path(Gpu(0, rail), dst, known))
        assert looked.times <= math.log2(rails) + 2


class Looked(Sequence[tuple[int, int]]):
    """A list that counts its reads."""

    def __init__(self, items: Sequence[tuple[int, int]]) -> None:
        self._items, self.times = items, 0

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        self.times += 1
        return self._items[index]


def test_a_path_needs_two_gpus() -> None:
    with pytest.raises(ValueError, match=r"^d0g0 -> d0g0: "):
        choose_path(SRC, SRC, idle(2, 2))


def clos_context(known: Scores) -> Context:
    """A leaf for each domain, so that every path between two domains crosses the spines."""
    gpus = {gpu for pair in pairs(known) for gpu in pair}
    return Context(spine=True, leaves={gpu: f"leaf{gpu.domain}" for gpu in gpus})


@settings(max_examples=20, deadline=None)
@given(scores())
def test_on_a_clos_best_fit_is_among_rails_above_near_paths(known: Scores) -> None:
    context = clos_context(known)
    for src, dst in cross(known):
        worths: dict[Path, int] = {}
        for path in open_paths(src, dst, known, "rail-optimized"):
            worths[path] = fabric_score(path, src, dst, known, context)
        near = max(worth for path, worth in worths.items() if path.kind != "drd")
        better = [worth for path, worth in worths.items() if path.kind == "drd" and worth > near]
        chosen = clos_path(src, dst, known, context)
        assert chosen is not None
        assert worths[chosen] == min(better, default=near)


def test_on_a_clos_the_spine_cancels_out_of_the_condition() -> None:
    known = Scores(rails=(80, 100), domains=(90, 100), spine=50)
    # g(G1) = 0.89: below 1, and below 1 / H(S) = 2
    for context in (clos_context(known), Context(spine=True)):
        assert clos_path(SRC, DST, known, context) == Path("dr", 1)
    # g(G1) = 1.11: above 1, but still below 1 / H(S)
    loaded = Scores(rails=(100, 100), domains=(90, 80), spine=50)
    assert clos_path(SRC, DST, loaded, Context(spine=True)) == Path("dr", 1)
    assert clos_path(SRC, DST, loaded, clos_context(loaded)) == Path("spine", 0)
    assert fabric_score(Path("dr", 1), SRC, DST, loaded, clos_context(loaded)) == 90 * 100 * 100 * 50
    assert fabric_score(Path("spine", 0), SRC, DST, loaded, Context(spine=True)) == 100 * 100 * 100 * 50


def test_base_takes_the_path_of_its_fabric() -> None:
    choose = HEALTH_POLICIES["base"].choose
    known = idle(2, 2)
    assert [share.path for share in choose(SRC, DST, known, Context())] == [Path("dr", 1)]
    assert [share.path for share in choose(SRC, DST, known, Context(spine=True))] == [Path("spine", 0)]
    assert [share.path for share in choose(SRC, Gpu(1, 0), known, Context(spine=True))] == [Path("r", 0)]
