"""Rail-only's equations of an iteration (Eq. 7 to 10), and the lower bound on the time of an AllGather (Eq. 12, 13).

Eq. 1, 2, 3 and 11 are in `railyard.workloads.collectives`, each beside its algorithm. `hb` is C_F and `rail` C_S, per
GPU and direction. Eq. 7 to 10 are in s, bytes and bytes/s, and take arrays too; they print transmission alone, and what
latency adds is a function of its own. Eq. 12 (rail-optimized) and 13 (rail-only) are of x GPUs in each of y HB domains;
the unit of data is what one GPU contributes, bandwidths are whole numbers, times exact fractions. docs/published.md has
the bound of a cut, the proof that xy cuts suffice, and the closed form.
"""

from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from railyard.workloads.collectives.all_gather import N


def all_gather_latency_s(x: N, y: N, hb_latency_s: float, rail_latency_s: float) -> N:
    """Latency added to Eq. 1: a ring of y has y - 1 steps, one after the other, and each waits for a hop."""
    return (y - 1) * rail_latency_s + (x - 1) * hb_latency_s


def bubble_compute_s(stages: N, virtual_stages: N, compute_s: N) -> N:
    """Rail-only Eq. 7: computing while the pipeline fills and drains; `compute_s` is t(b)."""
    return (stages - 1) * compute_s / virtual_stages


def bubble_network_s(
    boundary_bytes: N, stages_network: N, stages_hb: N, hb_bytes_per_s: float, rail_bytes_per_s: float
) -> N:
    """Rail-only Eq. 8: activations and gradients passed on while the pipeline fills and drains.

    The paper prints p_s and p_f, which nothing defines; meant are p_l (`stages_network`) and p_h (`stages_hb`) of its
    Table III. `boundary_bytes`: a micro-batch's 2 b h s / t.
    """
    over_rails = 2 * (stages_network - 1) * boundary_bytes / rail_bytes_per_s
    in_domains = 2 * stages_network * (stages_hb - 1) * boundary_bytes / hb_bytes_per_s
    return over_rails + in_domains


def bubble_latency_s(stages_network: N, stages_hb: N, hb_latency_s: float, rail_latency_s: float) -> N:
    """Latency added to Eq. 8: a hop for every boundary, filling and draining."""
    return 2 * (stages_network - 1) * rail_latency_s + 2 * stages_network * (stages_hb - 1) * hb_latency_s


def last_stage_compute_s(micro_batches: N, compute_s: N) -> N:
    """Rail-only Eq. 9: the last stage computes on every micro-batch; `compute_s` is t(b)."""
    return micro_batches * compute_s


def last_stage_network_s(micro_batches: N, collectives_s: N, virtual_stages: N, boundary_bytes: N, bytes_per_s: N) -> N:
    """Rail-only Eq. 10: collectives and pipeline traffic of the last stage.

    `collectives_s`: those of one micro-batch at a stage (8 l AGtime / p with tensor parallelism). `bytes_per_s` is C_*:
    C_S where the pipeline spans HB domains, else C_F. `boundary_bytes` is 0 where there is no pipeline.
    """
    collectives = micro_batches * collectives_s
    pipeline = 2 * micro_batches * virtual_stages * boundary_bytes / bytes_per_s
    return collectives + pipeline


# a grid of so many cells has a million matrices, all of which are tried
MAX_CELLS: Final = 20

Ints = npt.NDArray[np.int64]


class Bound(NamedTuple):
    """The largest fraction, and a cut that gives it: the matrix of S, `matrix[domain][rank]`."""

    time: Fraction
    matrix: tuple[tuple[bool, ...], ...]


def rail_optimized(x: int, y: int, hb: int, rail: int, every_matrix: bool = False) -> Bound:
    """Return Rail-only Eq. 12 exactly, for a grid of any size; `every_matrix`: over all matrices of a small grid."""
    return (_largest_over_matrices if every_matrix else _largest_over_pairs)(x, y, hb, rail, rails_are_apart=False)


def rail_only(x: int, y: int, hb: int, rail: int, every_matrix: bool = False) -> Bound:
    """Return Rail-only Eq. 13 exactly, for a grid of any size; `every_matrix`: over all matrices of a small grid."""
    return (_largest_over_matrices if every_matrix else _largest_over_pairs)(x, y, hb, rail, rails_are_apart=True)


def conjectured(y: int, rail: int) -> Fraction:
    """Return (y-1)/C_S per unit of data, which the paper postulates for C_F >> C_S and x >= y (appendix I)."""
    return Fraction(y - 1, rail)


def closed_form(x: int, y: int, hb: int, rail: int) -> Fraction:
    """Return both bounds, for y > 1 and C_F/C_S >= y/(y-1): a domain, or one GPU, against the rest."""
    if y < 2 or hb * (y - 1) < rail * y:
        raise ValueError(f"{x} x {y}, C_F {hb}, C_S {rail}: the closed form needs y > 1 and C_F/C_S >= y/(y-1)")
    return max(conjectured(y, rail), Fraction(x * y - 1, hb + rail))


def least_ratio(x: int, y: int) -> Fraction:
    """Return the C_F/C_S from which the paper's (y-1)/C_S is right: y(x-1)/(y-1), about x."""
    if y < 2:
        raise ValueError(f"{y} HB domain has no network to be bound by")
    return Fraction(y * (x - 1), y - 1)


def _largest_over_pairs(x: int, y: int, hb: int, rail: int, rails_are_apart: bool) -> Bound:
    """Return the bound over all R and C, with as few cells as they take."""
    if x < 1 or y < 1 or x * y < 2:
        raise ValueError(f"a grid of {x} x {y} has no cut: it takes two GPUs")
    if hb < 1 or rail < 1:
        raise ValueError(f"C_F {hb} and C_S {rail} must be 1 or more")
    rows, columns = (grid.ravel() for grid in np.meshgrid(np.arange(y), np.arange(x), indexing="ij"))
    cells = np.maximum(rows * x + columns * y - rows * columns, 1)
    best, time = _largest(x, y, hb, rail, cells, rows, columns * int(rails_are_apart))
    r = int(rows[best])
    c = int(columns[best])
    dimension = np.zeros((y, x), dtype=bool)
    dimension[:r] = True
    dimension[:, :c] = True
    if r == c == 0:
        # this is the cut around a single GPU
        dimension[0, 0] = True
    return Bound(time, tuple(map(tuple, dimension.tolist())))


def _largest_over_matrices(x: int, y: int, hb: int, rail: int, rails_are_apart: bool) -> Bound:
    """Return the bound over all matrices but zeros and ones, each a number whose bits are its cells, row by row."""
    if x * y > MAX_CELLS:
        raise ValueError(f"a grid of {x} x {y} has too many matrices: {MAX_CELLS} cells at most")
    numbers = np.arange(1, 2 ** (x * y) - 1, dtype=np.int64)
    row_bits = (2**x - 1) << x * np.arange(y)
    column_bits = sum(1 << (x * row) for row in range(y)) << np.arange(x)
    rows = np.sum([(numbers & bits) == bits for bits in row_bits], axis=0)
    columns = np.sum([(numbers & bits) == bits for bits in column_bits], axis=0)
    cells = np.bitwise_count(numbers).astype(np.int64)
    best, time = _largest(x, y, hb, rail, cells, rows, columns * int(rails_are_apart))
    bits = int(numbers[best]) >> np.arange(x * y) & 1
    return Bound(time, tuple(map(tuple, bits.astype(bool).reshape(y, x).tolist())))


def _largest(x: int, y: int, hb: int, rail: int, cells: Ints, rows: Ints, columns: Ints) -> tuple[int, Fraction]:
    """Return the number of the cut with the largest fraction (the first of equals), and the fraction."""
    sent = np.maximum(cells, x * y - cells)
    bandwidth = (hb + rail) * cells - x * rows * hb - y * columns * rail
    best = int(np.argmax(sent / bandwidth))
    return best, Fraction(int(sent[best]), int(bandwidth[best]))
