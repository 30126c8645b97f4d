"""Damping: a change needs a margin, and time since the last one."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.agent.steering import ActivePaths, Damping, Steering, damp
from railyard.controller.health.policy import HEALTH_POLICIES, Context, Scores
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, Share, Shares

SRC, DST = Gpu(0, 0), Gpu(1, 1)
DR, RD, DRD = (Share(Path("dr", 1)),), (Share(Path("rd", 0)),), (Share(Path("drd", 2)),)
MS = 1_000_000
AT_ONCE = Damping(margin=10, dwell_ns=0, noise=0)


def steering(damping: Damping, context: Context | None = None) -> Steering:
    return Steering("health", context or Context(), damping)


def held_after(
    held: ActivePaths | None, wanted: Shares, scores: Scores, now_ns: int = 0, damping: Damping = AT_ONCE
) -> Shares:
    return damp(held, wanted, SRC, DST, scores, now_ns, steering(damping)).shares


@pytest.mark.parametrize(
    ("rails", "taken"),
    [((54, 50, 100), False), ((55, 50, 100), False), ((56, 50, 100), True), ((1, 0, 0), True), ((0, 0, 0), False)],
)
def test_a_path_must_be_better_by_more_than_the_margin(rails: tuple[int, ...], taken: bool) -> None:
    assert held_after(ActivePaths(DR, 0), RD, Scores(rails, (100, 100))) == (RD if taken else DR)


def test_paths_of_two_tiers_are_compared_with_their_spines() -> None:
    """On a Clos dr crosses the spines too: if a domain is half loaded, the direct path is twice as good."""
    known = Scores((100, 100), (50, 100), spine=30)
    direct = (Share(Path("spine", 0)),)
    leaves = {Gpu(domain, rank): f"leaf{domain}" for domain in range(2) for rank in range(2)}
    held = ActivePaths(DR, 0)
    on_clos = steering(AT_ONCE, Context(spine=True, leaves=leaves))
    assert damp(held, direct, SRC, DST, known, 0, on_clos).shares == direct
    # on rail-optimized the direct path alone crosses them: 30, and 50 for dr
    assert damp(held, direct, SRC, DST, known, 0, steering(AT_ONCE, Context(spine=True))).shares == DR


def test_shorter_path_returns_as_soon_as_it_scores_as_well() -> None:
    held = ActivePaths(DRD, 0)
    assert held_after(held, DR, Scores((100, 99, 100), (100, 100))) == DRD
    assert held_after(held, DR, Scores((100, 100, 100), (100, 100))) == DR
    assert held_after(ActivePaths(DR, 0), DRD, Scores((100, 100, 100), (100, 100))) == DR


def test_a_spray_is_judged_by_its_best_and_by_its_worst_path() -> None:
    window = (*RD, *DR, *DRD, Share(Path("drd", 3)))
    known = Scores((45, 50, 60, 55), (100, 100))
    assert held_after(ActivePaths(DR, 0), window, known) == window  # 60 is better than 50
    fewer = window[1:]
    assert held_after(ActivePaths(window, 0), fewer, known) == fewer  # 50 is better than 45, by 11%
    assert held_after(ActivePaths(window, 0), fewer, Scores((46, 50, 60, 55), (100, 100))) == window
    assert held_after(ActivePaths(window, 0), fewer, Scores((0, 50, 60, 55), (100, 100))) == fewer


def test_the_first_choice_is_free_and_no_choice_changes_nothing() -> None:
    known, slow = Scores((10, 0, 100), (100, 100)), steering(Damping(dwell_ns=1000))
    assert damp(None, DR, SRC, DST, known, 7, slow) == ActivePaths(DR, 7)
    assert damp(ActivePaths((), 7), DRD, SRC, DST, known, 8, slow) == ActivePaths(DRD, 8)
    assert damp(ActivePaths(DR, 7), (), SRC, DST, known, 5000, slow) == ActivePaths(DR, 7)
    assert damp(ActivePaths(DR, 7), DR, SRC, DST, known, 5000, slow) == ActivePaths(DR, 7)


def test_dwell_ends_to_the_nanosecond_even_for_a_blocked_path() -> None:
    known = Scores((10, 0, 100), (100, 100))
    slow = Damping(dwell_ns=1000)
    assert held_after(ActivePaths(DR, 7), DRD, known, 1006, slow) == DR
    assert held_after(ActivePaths(DR, 7), DRD, known, 1007, slow) == DRD
    # without a margin the policy's choice is taken, whatever the scores
    known = Scores((10, 100, 100), (100, 100))
    assert held_after(ActivePaths(DR, 0), RD, known, damping=Damping(None, 0)) == RD
    assert held_after(ActivePaths(DR, 0), RD, known, damping=Damping(0, 0)) == DR


@given(
    policy=st.sampled_from(["random", "health-drd", "health-spray", "health-best"]),
    margin=st.sampled_from([None, 0, 10]),
    dwell_ms=st.integers(0, 300),
    seed=st.integers(0, 2**32),
)
def test_changes_stay_under_the_dwell_limit_whatever_scores_do(
    policy: str, margin: int | None, dwell_ms: int, seed: int
) -> None:
    rng, damping, held = random.Random(seed), Damping(margin, dwell_ms * MS), None
    changes, now = [], 0
    for turn in range(60):
        now += rng.randint(0, 100) * MS
        known = Scores(tuple(rng.choice([0, 10, 90, 100]) for _ in range(4)), (rng.randint(0, 100), 100))
        wanted = HEALTH_POLICIES[policy].choose(SRC, DST, known, Context(seed=turn))
        new = damp(held, wanted, SRC, DST, known, now, steering(damping))
        if held is not None and held.shares and new.shares != held.shares:
            changes.append(now)
        held = new
    assert all(later - earlier >= damping.dwell_ns for earlier, later in pairwise(changes))
    assert damping.dwell_ns == 0 or len(changes) <= 1 + now / damping.dwell_ns


def test_dwell_time_grows_with_flaps_and_resets_after_calm() -> None:
    damping, known = Damping(0, 100 * MS, 0), {True: Scores((10, 90), (100, 100)), False: Scores((90, 10), (100, 100))}
    held, changes = damp(None, DR, SRC, DST, known[False], 0, steering(damping)), []
    for now in range(0, 20_000, 10):
        turned = now < 10_000 and now // 150 % 2 == 1
        wanted = HEALTH_POLICIES["health"].choose(SRC, DST, known[turned], Context())
        new = damp(held, wanted, SRC, DST, known[turned], now * MS, steering(damping))
        changes += [now] if new is not held else []
        held = new
    waits = [later - earlier for earlier, later in pairwise(changes)]
    assert min(waits[:2]) < 300 <= min(waits[4:])
    assert len(changes) < 15  # of 66 alternations
    assert held is not None
    other, scores = (RD, known[False]) if held.shares == DR else (DR, known[True])
    calm = damp(held, other, SRC, DST, scores, 30_000 * MS, steering(damping))
    assert calm is not held
    assert calm.dwell_ns(damping) == damping.dwell_ns
