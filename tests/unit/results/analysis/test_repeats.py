"""Medians, 95th percentiles and their intervals, where some repeats never got there."""

from math import inf
from random import Random
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.analysis.repeats import MIN_REPEATS_FOR_MEDIAN, MIN_REPEATS_FOR_P95, figure

times = st.one_of(st.none(), st.floats(0, 1e6))


def late(value: float | None) -> float:
    return inf if value is None else value


@given(st.lists(times, min_size=1))
def test_a_step_that_most_repeats_never_reached_has_no_median(values: list[float | None]) -> None:
    never = sum(v is None for v in values)
    found = figure(values)
    assert found is not None
    middle = found.median
    assert (middle is None) == (2 * never >= len(values))
    assert middle is None or sum(v is not None and v <= middle for v in values) * 2 >= len(values)


@given(st.lists(times, min_size=1, max_size=40), st.randoms())
def test_figures_hold_whatever_came_or_not(values: list[float | None], dice: Random) -> None:
    found = figure(values)
    assert found is not None
    assert found.n == len(values)
    assert late(found.median) == pytest.approx(median(map(late, values)))
    assert found.p95 in values
    assert sum(late(v) <= late(found.p95) for v in values) >= 0.95 * len(values)
    assert sum(late(v) < late(found.p95) for v in values) < 0.95 * len(values)
    assert (found.median_interval is not None) == (len(values) >= MIN_REPEATS_FOR_MEDIAN)
    assert (found.p95_interval is not None) == (len(values) >= MIN_REPEATS_FOR_P95)
    for middle, interval in ((found.median, found.median_interval), (found.p95, found.p95_interval)):
        assert interval is None or late(interval[0]) <= late(middle) <= late(interval[1])
    turned = list(values)
    dice.shuffle(turned)
    assert figure(turned) == found


def test_the_interval_of_a_median_is_the_bootstraps() -> None:
    """Of 1 to 21 a resample's median is at most 7 with a chance of 5.6%, and at most 6 with one of 1.8% (binomial)."""
    found = figure(range(1, 22))
    assert found is not None
    assert (found.median, found.p95) == (11, 20)
    assert found.median_interval is not None
    assert found.p95_interval is not None
    assert (found.median_interval[0], found.median_interval[1]) == (7, 15)
    assert found.p95_interval[1] == 21


def test_about_19_of_20_intervals_hold_the_true_median() -> None:
    dice = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        found = figure(dice.exponential(10.0, 20))
        assert found is not None
        assert found.median_interval is not None
        held += late(found.median_interval[0]) <= 10 * np.log(2) <= late(found.median_interval[1])
    assert 0.90 <= held / 300 <= 0.99


def test_nothing_has_no_figure() -> None:
    assert figure([]) is None
