"""Seeded cases of fail-slow: their bounds, the computing of a slow GPU, and the score of many cases."""

from statistics import fmean

import pytest

from railyard.failure.diagnosis.cases import MEAN_RATIO, MIN_HEALTHY, RATIOS, CaseResult, Score, draw, mean_iteration
from railyard.failure.diagnosis.change_points import CONFIRMED_AFTER
from railyard.failure.diagnosis.definition import Culprit, computing_factors
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec

PLAN = make_plan(FabricSpec(kind="rail-only", domains=2, rails=2), 100_000_000)
ITERATIONS = 24


def test_case_of_a_seed_is_within_its_bounds() -> None:
    cases = [draw("rail", PLAN, ITERATIONS, seed) for seed in range(30)]
    assert cases == [draw("rail", PLAN, ITERATIONS, seed) for seed in range(30)]
    for case in cases:
        assert case.culprit is not None
        assert case.culprit.name in PLAN.link_names("rail")
        assert RATIOS[0] <= case.culprit.ratio <= RATIOS[1]
        assert MIN_HEALTHY <= case.iteration < ITERATIONS - CONFIRMED_AFTER
    assert len({case.culprit for case in cases}) == 30


def test_means_agree_with_drawn_cases() -> None:
    cases = [draw("gpu", PLAN, ITERATIONS, seed) for seed in range(1000)]
    ratios = [case.culprit.ratio for case in cases if case.culprit is not None]
    assert fmean(ratios) == pytest.approx(MEAN_RATIO, rel=0.03)
    assert fmean(case.iteration for case in cases) == pytest.approx(mean_iteration(ITERATIONS), rel=0.03)


def test_only_a_slow_gpu_computes_for_longer() -> None:
    assert computing_factors(Culprit("gpu", "d1g0", 3.0), PLAN) == [1.0, 1.0, 3.0, 1.0]
    assert computing_factors(Culprit("rail", "d1g0", 3.0), PLAN) == [1.0] * 4
    assert computing_factors(None, PLAN) == [1.0] * 4


def test_case_without_a_name_lowers_the_recall_alone() -> None:
    named = CaseResult(is_slow=True, is_right=True, has_named=True)
    silent = CaseResult(is_slow=True, is_right=False, has_named=False)
    total = Score.of([named, silent])
    assert total == Score(slow=2, right=1, wrong=0, quiet=0, false_alarms=0)
    assert (total.recall, total.precision) == (0.5, 1.0)
