"""Rail-only Eq. 12 and 13: the equation as printed, every matrix, full rows and columns, closed form."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from railyard.results.theory import equations as bound
from railyard.workloads.collectives.all_gather import all_gather_s

Matrix = tuple[tuple[bool, ...], ...]
sizes = st.integers(1, 300)
rates = st.integers(1, 1000)
small_grids = [(x, y) for x, y in product(range(1, 7), repeat=2) if 2 <= x * y <= 12]


def term(a: Matrix, hb: int, rail: int, rails_are_apart: bool) -> Fraction:
    """Return what is maximised, word for word: A or its negation, sums, and full rows and columns counted."""
    y, x = len(a), len(a[0])
    negation = tuple(tuple(not cell for cell in row) for row in a)

    def bandwidth(m: Matrix) -> int:
        full_rows = sum(all(row) for row in m)
        full_columns = sum(all(column) for column in zip(*m, strict=True)) if rails_are_apart else 0
        return (hb + rail) * sum(map(sum, m)) - x * full_rows * hb - y * full_columns * rail

    return Fraction(max(sum(map(sum, m)) for m in (a, negation)), min(bandwidth(m) for m in (a, negation)))


def as_printed(x: int, y: int, hb: int, rail: int, rails_are_apart: bool) -> Fraction:
    cells = product((False, True), repeat=x * y)
    matrices = (tuple(tuple(c[row * x : (row + 1) * x]) for row in range(y)) for c in cells if any(c) and not all(c))
    return max(term(a, hb, rail, rails_are_apart) for a in matrices)


@pytest.mark.parametrize(("x", "y"), [(1, 2), (2, 1), (2, 2), (3, 2), (2, 3), (4, 2), (3, 3)])
@pytest.mark.parametrize(("hb", "rail"), [(1, 1), (2, 1), (9, 1), (1, 3)])
def test_every_matrix_at_once_is_the_equation_as_printed(x: int, y: int, hb: int, rail: int) -> None:
    assert bound.rail_optimized(x, y, hb, rail, every_matrix=True).time == as_printed(
        x, y, hb, rail, rails_are_apart=False
    )
    assert bound.rail_only(x, y, hb, rail, every_matrix=True).time == as_printed(x, y, hb, rail, rails_are_apart=True)


@given(grid=st.sampled_from(small_grids), hb=rates, rail=rates)
@example(grid=(4, 3), hb=1, rail=40)  # rails the faster: then a rail decides, not a domain
def test_full_rows_and_columns_stand_for_every_matrix(grid: tuple[int, int], hb: int, rail: int) -> None:
    assert bound.rail_optimized(*grid, hb, rail).time == bound.rail_optimized(*grid, hb, rail, every_matrix=True).time
    assert bound.rail_only(*grid, hb, rail).time == bound.rail_only(*grid, hb, rail, every_matrix=True).time


@pytest.mark.parametrize("ratio", [2, 9, 12])
def test_the_largest_grid_that_is_gone_through(ratio: int) -> None:
    assert bound.rail_only(5, 4, ratio, 1).time == bound.rail_only(5, 4, ratio, 1, every_matrix=True).time


@given(grid=st.sampled_from(small_grids), hb=rates, rail=rates)
def test_the_cut_that_is_shown_gives_the_bound(grid: tuple[int, int], hb: int, rail: int) -> None:
    for found, apart in (
        (bound.rail_optimized(*grid, hb, rail), False),
        (bound.rail_only(*grid, hb, rail), True),
        (bound.rail_optimized(*grid, hb, rail, every_matrix=True), False),
        (bound.rail_only(*grid, hb, rail, every_matrix=True), True),
    ):
        assert term(found.matrix, hb, rail, apart) == found.time


@given(x=sizes, y=sizes.filter(lambda y: y > 1), hb=rates, rail=rates)
def test_the_closed_form_is_both_bounds(x: int, y: int, hb: int, rail: int) -> None:
    if hb * (y - 1) < rail * y:
        with pytest.raises(ValueError, match="closed form"):
            bound.closed_form(x, y, hb, rail)
        return
    closed = bound.closed_form(x, y, hb, rail)
    assert bound.rail_optimized(x, y, hb, rail).time == closed
    assert bound.rail_only(x, y, hb, rail).time == closed


@given(x=sizes.filter(lambda x: x > 1), y=sizes.filter(lambda y: y > 1), hb=rates, rail=rates)
def test_the_conjecture_holds_from_its_ratio_on_and_not_below(x: int, y: int, hb: int, rail: int) -> None:
    holds = Fraction(hb, rail) >= bound.least_ratio(x, y)
    assert (bound.rail_optimized(x, y, hb, rail).time == bound.conjectured(y, rail)) == holds
    if holds:
        assert bound.rail_only(x, y, hb, rail).time == bound.conjectured(y, rail)


def test_a_counterexample_of_a_real_platform() -> None:
    """256 GPUs in each of 16 GH200: C_F is 9 C_S, and one GPU alone is what binds."""
    found = bound.rail_only(256, 16, 9, 1)
    assert found.time == Fraction(4095, 10)
    assert sum(map(sum, found.matrix)) == 1
    assert bound.conjectured(16, 1) == 15


@given(x=sizes, y=sizes.filter(lambda y: y > 1), hb=rates, rail=rates)
def test_eq_1_is_never_below_the_bound(x: int, y: int, hb: int, rail: int) -> None:
    hb += 2 * rail
    assert all_gather_s(x * y, x, y, hb, rail) >= float(bound.closed_form(x, y, hb, rail)) * (1 - 1e-12)


@given(x=sizes, y=sizes.filter(lambda y: y > 1), hb=rates, rail=rates)
def test_more_bandwidth_never_takes_longer(x: int, y: int, hb: int, rail: int) -> None:
    for equation in (bound.rail_optimized, bound.rail_only):
        now = equation(x, y, hb, rail).time
        assert equation(x, y, hb + 1, rail).time <= now
        assert equation(x, y, hb, rail + 1).time <= now


def test_more_bandwidth_shortens_its_bound() -> None:
    assert bound.rail_only(256, 16, 10, 1).time < bound.rail_only(256, 16, 9, 1).time
    assert bound.rail_only(8, 8, 18, 2).time < bound.rail_only(8, 8, 18, 1).time


@pytest.mark.parametrize(
    ("x", "y", "hb", "rail"), [(1, 1, 9, 1), (0, 4, 9, 1), (4, -1, 9, 1), (4, 4, 0, 1), (4, 4, 9, 0)]
)
def test_a_grid_without_a_cut_is_refused(x: int, y: int, hb: int, rail: int) -> None:
    with pytest.raises(ValueError, match=r"^(a grid of|C_F) .*$"):
        bound.rail_only(x, y, hb, rail)


def test_too_many_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="20 cells at most"):
        bound.rail_only(7, 3, 9, 1, every_matrix=True)
    with pytest.raises(ValueError, match="no network"):
        bound.least_ratio(8, 1)
