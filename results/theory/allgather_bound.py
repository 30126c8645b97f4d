"""The least time of an AllGather on a grid of GPUs: Rail-only Eq. 12 (rail-optimized) and Eq. 13 (rail-only).

A grid has x GPUs in each of y HB domains. A matrix A says on which side of a cut each GPU is: a row is an HB domain, a
column a rail, so it has y rows of x cells (the paper says x by y, but takes x from a row). The unit of data is what one
GPU contributes: the numerators count GPUs. All gathered data is x y units, and (y-1)/C_S is Eq. 1's first term.

Bandwidths are whole numbers (9 and 1, or bit/s), units of data a second; times are exact fractions.

With A or its negation as S, and S as likely as its negation, both equations are the largest of
max(|S|, xy - |S|) / ((C_F + C_S) |S| - x R C_F - y C C_S) over every S but none and all (Eq. 12 without the last term).

Reduction. Let S have at least R full rows and C full columns, u = R x + C y - R C cells in all. Of a given R and C the
fraction falls as |S| grows, on either side of xy/2, so the smallest S is the worst: u cells, or one where R = C = 0. So
xy pairs (R, C) stand for 2^(xy) matrices. Tests set it against all of these.

Closed form, for y > 1 and C_F/C_S >= y/(y-1). With u cells the denominator is C_F C (y-R) + C_S R (x-C). Pairs with
R > 0 give at most (y-1)/C_S, reached by R = 1, C = 0: a domain against the rest. Pairs with R = 0, C > 0 give at most
(x-1)/C_F, a rail against the rest. One GPU against the rest gives (xy-1)/(C_F + C_S), which is no less. So both are
max((y-1)/C_S, (xy-1)/(C_F + C_S)), and the paper's (y-1)/C_S holds exactly where C_F/C_S >= y(x-1)/(y-1).
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_CELLS: Final = 20
"""Of a grid all of whose matrices are gone through: a million of them."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest fraction, and a cut that gives it: the matrix of S, `matrix[domain][rank]`."""

    time: Fraction
    matrix: tuple[tuple[bool, ...], ...]


def rail_optimized(x: int, y: int, hb: int, rail: int) -> Bound:
    """Rail-only Eq. 12, exactly, for a grid of any size."""
    return _largest_over_pairs(x, y, hb, rail, rails_are_apart=False)


def rail_only(x: int, y: int, hb: int, rail: int) -> Bound:
    """Rail-only Eq. 13, exactly, for a grid of any size."""
    return _largest_over_pairs(x, y, hb, rail, rails_are_apart=True)


def rail_optimized_of_all(x: int, y: int, hb: int, rail: int) -> Bound:
    """Rail-only Eq. 12, over every matrix of a small grid."""
    return _largest_over_matrices(x, y, hb, rail, rails_are_apart=False)


def rail_only_of_all(x: int, y: int, hb: int, rail: int) -> Bound:
    """Rail-only Eq. 13, over every matrix of a small grid."""
    return _largest_over_matrices(x, y, hb, rail, rails_are_apart=True)


def conjectured(y: int, rail: int) -> Fraction:
    """(y-1)/C_S per unit of data: what the paper postulates for C_F >> C_S and x >= y (appendix I)."""
    return Fraction(y - 1, rail)


def closed_form(x: int, y: int, hb: int, rail: int) -> Fraction:
    """Both bounds, for y > 1 and C_F/C_S >= y/(y-1): a domain, or one GPU, against the rest."""
    if y < 2 or hb * (y - 1) < rail * y:
        raise ValueError(f"{x} x {y}, C_F {hb}, C_S {rail}: the closed form needs y > 1 and C_F/C_S >= y/(y-1)")
    return max(conjectured(y, rail), Fraction(x * y - 1, hb + rail))


def least_ratio(x: int, y: int) -> Fraction:
    """C_F/C_S from which the paper's (y-1)/C_S is right: y(x-1)/(y-1), about x."""
    if y < 2:
        raise ValueError(f"{y} HB domain has no network to be bound by")
    return Fraction(y * (x - 1), y - 1)


def _check(x: int, y: int, hb: int, rail: int) -> None:
    if x < 1 or y < 1 or x * y < 2:
        raise ValueError(f"a grid of {x} x {y} has no cut: it takes two GPUs")
    if hb < 1 or rail < 1:
        raise ValueError(f"C_F {hb} and C_S {rail} must be 1 or more")


def _largest_over_pairs(x: int, y: int, hb: int, rail: int, rails_are_apart: bool) -> Bound:
    """Over all R and C, with as few cells as they take."""
    _check(x, y, hb, rail)
    rows, columns = (grid.ravel() for grid in np.meshgrid(np.arange(y), np.arange(x), indexing="ij"))
    cells = np.maximum(rows * x + columns * y - rows * columns, 1)
    best, time = _largest(x, y, hb, rail, cells, rows, columns * int(rails_are_apart))
    r, c = int(rows[best]), int(columns[best])
    is_single_gpu = r == c == 0
    matrix = tuple(tuple(i < r or j < c or (is_single_gpu and i == j == 0) for j in range(x)) for i in range(y))
    return Bound(time, matrix)


def _largest_over_matrices(x: int, y: int, hb: int, rail: int, rails_are_apart: bool) -> Bound:
    """Over all matrices but zeros and ones, each a number whose bits are its cells, row by row."""
    _check(x, y, hb, rail)
    if x * y > MAX_CELLS:
        raise ValueError(f"a grid of {x} x {y} has too many matrices: {MAX_CELLS} cells at most")
    numbers = np.arange(1, 2 ** (x * y) - 1, dtype=np.int64)
    row_bits = 2**x - 1
    column_bits = sum(1 << (x * row) for row in range(y))
    rows = sum(_contains_line(numbers, row_bits << (x * row)) for row in range(y))
    columns = sum(_contains_line(numbers, column_bits << column) for column in range(x))
    cells = np.bitwise_count(numbers).astype(np.int64)
    best, time = _largest(x, y, hb, rail, cells, np.asarray(rows), np.asarray(columns) * int(rails_are_apart))
    found = int(numbers[best])
    return Bound(time, tuple(tuple(bool(found >> (x * row + column) & 1) for column in range(x)) for row in range(y)))


def _contains_line(numbers: Ints, line: int) -> Ints:
    """1 where a matrix has the whole line (a row or a column, as bits), else 0."""
    is_contained: Ints = ((numbers & line) == line).astype(np.int64)
    return is_contained


def _largest(x: int, y: int, hb: int, rail: int, cells: Ints, rows: Ints, columns: Ints) -> tuple[int, Fraction]:
    """Which cut has the largest fraction (the first of equals), and that."""
    sent = np.maximum(cells, x * y - cells)
    bandwidth = (hb + rail) * cells - x * rows * hb - y * columns * rail
    best = int(np.argmax(sent / bandwidth))
    return best, Fraction(int(sent[best]), int(bandwidth[best]))
