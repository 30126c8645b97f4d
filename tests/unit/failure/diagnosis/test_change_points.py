"""Change points in iteration times: lasting changes are reported where they begin, peaks and noise are not."""

import numpy as np
import pytest

from railyard.failure.diagnosis.change_points import CONFIRMED_AFTER, changes, likeliest_starts


def times(count: int, seed: int = 0, spread: float = 0.01) -> list[float]:
    """Iteration times around 2 s with the heavy tails that measured ones have."""
    drawn: list[float] = (2 * (1 + spread * np.random.default_rng(seed).standard_t(4, count))).tolist()
    return drawn


@pytest.mark.parametrize("ratio", [0.7, 1.15, 1.5, 4.0])
@pytest.mark.parametrize("first", [5, 20])
def test_change_is_reported_at_its_first_iteration(first: int, ratio: float) -> None:
    seconds = times(30)
    seconds[first:] = [ratio * value for value in seconds[first:]]
    (change,) = changes(seconds)
    assert change.iteration == first
    assert change.noticed == first + CONFIRMED_AFTER - 1
    assert change.ratio == pytest.approx(ratio, rel=0.03)


@pytest.mark.parametrize("first", [4.0, 8.0])
def test_long_first_iteration_hides_no_change(first: float) -> None:
    seconds = times(24)
    seconds[0] *= first
    seconds[10:] = [1.5 * value for value in seconds[10:]]
    assert [change.iteration for change in changes(seconds) if change.ratio > 1] == [10]


def test_two_changes_are_reported_in_order() -> None:
    seconds = times(40)
    seconds[10:25] = [1.5 * value for value in seconds[10:25]]
    assert [change.iteration for change in changes(seconds)] == [10, 25]


@pytest.mark.parametrize("length", range(1, CONFIRMED_AFTER))
def test_short_peak_is_no_change(length: int) -> None:
    seconds = times(30)
    seconds[12 : 12 + length] = [3 * value for value in seconds[12 : 12 + length]]
    assert changes(seconds) == []


def test_change_below_the_limit_is_not_reported() -> None:
    seconds = times(15, spread=0.001) + [1.05 * value for value in times(15, seed=1, spread=0.001)]
    assert changes(seconds) == []
    assert [change.iteration for change in changes(seconds, least=0.03)] == [15]


def test_noise_is_no_change_in_99_of_100_series() -> None:
    assert sum(bool(changes(times(40, seed))) for seed in range(100)) <= 1


def test_unit_of_time_is_irrelevant() -> None:
    seconds = times(10) + [1.3 * value for value in times(10, seed=1)]
    assert likeliest_starts([1000 * value for value in seconds]) == likeliest_starts(seconds)


def test_no_iterations_have_no_changes() -> None:
    assert changes([]) == []
    assert changes([1.0]) == []
