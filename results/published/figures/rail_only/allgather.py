"""The AllGather bounds, Eq. 12 and 13, and the conjecture that they are equal."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Final

import matplotlib as mpl
import matplotlib.figure

from railyard.results.plots.style import PAPER, SERIES, log2_ticks, quiet
from railyard.results.published.catalogue import Claim, Figure
from railyard.results.theory import equations as bound
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.collectives.all_gather import all_gather_s
from railyard.workloads.collectives.pipelined import CHUNKS, pipelined_s

Grid = tuple[int, int, Fraction]  # x, y, and C_F/C_S
Equation = Callable[[int, int, int, int], bound.Bound]

SMALL: Final = tuple((x, y, Fraction(r)) for x, y in ((2, 2), (4, 2), (3, 3), (4, 4), (5, 3)) for r in (2, 9))
SHOWN: Final = ("a100", "h100", "gb200-nvl72", "gh200")  # platforms, whole HB domains of which take part
DOMAINS: Final = (2, 4, 8, 16, 64)
SIZES: Final = (*range(1, 17), 24, 32, 48, 64, 72, 128, 256)
RATIOS: Final = (2, 3, 4, 6, 9, 12, 18, 36, 100, 1000)
COLUMNS: Final = (
    "platform", "x", "y", "cf_over_cs", "eq12", "eq13", "conjectured", "closed_form", "eq1", "eq1_over_eq13",
    "pipelined_over_eq13", "holds_from", "cut",
)  # fmt: skip


def figure() -> Figure:
    """Small grids by every matrix, the platforms' by full rows and columns."""
    by_matrix = (partial(bound.rail_optimized, every_matrix=True), partial(bound.rail_only, every_matrix=True))
    rows = [_row("–", grid, *by_matrix) for grid in SMALL]
    for name in SHOWN:
        rows += [_row(name, grid, bound.rail_optimized, bound.rail_only) for grid in _of_platform(name)]
    return Figure(
        title="AllGather bounds",
        source="Rail-only Eq. 12, 13",
        columns=COLUMNS,
        rows=rows,
        draw=_draw,
        claims=_claims(),
        notes=(
            "The unit of data is what one GPU contributes; eq12 to eq1 are times in units of data over C_S. So the "
            "paper's (y-1)/C_S is y-1 here, which is Eq. 1's first term.",
            "Eq. 1 runs its two phases one after the other. pipelined_over_eq13: with both at the same time, piece by "
            f"piece, as all-gather-pipelined with {CHUNKS} chunks (workloads/collectives/pipelined.py).",
            "closed_form is max(y-1, (xy-1)/(C_F/C_S + 1)), proved in docs/published.md. Without a platform: "
            "over every matrix; with one: over all numbers of full rows and columns.",
            "holds_from: C_F/C_S from which the conjecture holds. cut: HB domains / rails / GPUs in the set that "
            "decides Eq. 13; the first two count whole ones.",
        ),
        inches=(10.0, 4.6),
    )


def _of_platform(name: str) -> list[Grid]:
    platform = PLATFORMS[name]
    return [(platform.domain_gpus, y, Fraction(platform.hb_bps, platform.rail_bps)) for y in DOMAINS]


def _row(name: str, grid: Grid, eq12: Equation, eq13: Equation) -> tuple[str | int | float, ...]:
    x, y, ratio = grid
    rail_optimized = per_cs(eq12, grid)
    rail_only = per_cs(eq13, grid)
    eq1 = eq1_per_cs(grid)
    closed = bound.closed_form(x, y, ratio.numerator, ratio.denominator) * ratio.denominator
    matrix = eq13(x, y, ratio.numerator, ratio.denominator).matrix
    domains = sum(map(all, matrix))
    rails = sum(map(all, zip(*matrix, strict=True)))
    cut = f"{domains} / {rails} / {sum(map(sum, matrix))}"
    times = (float(rail_optimized), float(rail_only), y - 1, float(closed), eq1)
    over = (eq1 / float(rail_only), pipelined_per_cs(grid) / float(rail_only))
    return name, x, y, float(ratio), *times, *over, float(bound.least_ratio(x, y)), cut


def per_cs(equation: Equation, grid: Grid) -> Fraction:
    """A bound with C_S = 1."""
    x, y, ratio = grid
    return equation(x, y, ratio.numerator, ratio.denominator).time * ratio.denominator


def eq1_per_cs(grid: Grid) -> float:
    """Rail-only Eq. 1 for a unit of data from each of the x y GPUs, with C_S = 1."""
    x, y, ratio = grid
    return all_gather_s(x * y, x, y, float(ratio), 1)


def pipelined_per_cs(grid: Grid) -> float:
    """The same of a pipelined AllGather, in which a rail carries CHUNKS parts."""
    x, y, ratio = grid
    return pipelined_s(x * y, x, y, float(ratio), 1, max(1, CHUNKS // y))


def search() -> dict[Grid, tuple[Fraction, Fraction]]:
    """Return Eq. 12 and 13 with C_S = 1, for grids of x >= y > 1, as the conjecture has it."""
    bounds: dict[Grid, tuple[Fraction, Fraction]] = {}
    for x, y, ratio in product(SIZES, SIZES, RATIOS):
        if 2 <= y <= x:
            grid = (x, y, Fraction(ratio))
            bounds[grid] = (per_cs(bound.rail_optimized, grid), per_cs(bound.rail_only, grid))
    return bounds


def counterexamples(searched: Mapping[Grid, tuple[Fraction, Fraction]]) -> dict[Grid, Fraction]:
    """Return the grids on which a bound isn't (y-1)/C_S, with Eq. 13's bound."""
    examples: dict[Grid, Fraction] = {}
    for grid, (eq12, eq13) in searched.items():
        _, y, _ = grid
        if {eq12, eq13} != {bound.conjectured(y, 1)}:
            examples[grid] = eq13
    return examples


def _claims() -> tuple[Claim, ...]:
    searched = search()
    examples = counterexamples(searched)
    large_ratios = [grid for grid in examples if grid[2] >= 9]
    example = min(large_ratios, key=lambda grid: (grid[0] * grid[1], grid))
    x, y, ratio = example
    shown = (
        f"searched: C_F/C_S {RATIOS[0]} to {RATIOS[-1]}; {len(large_ratios):,} counterexamples have 9 or more, as real "
        f"platforms have. The smallest of these: x={x}, y={y}, "
        f"C_F/C_S={ratio}, A has one GPU alone, {float(examples[example]):.4g}/C_S against {y - 1}/C_S. A GPU "
        "must take xy-1 units through C_F + C_S, so C_F >> C_S has to mean C_F/C_S >= y(x-1)/(y-1), about x. "
        "x >= y isn't needed"
    )
    broken = sum(ratio >= bound.least_ratio(x, y) for x, y, ratio in examples)
    apart = sum(eq12 != eq13 for eq12, eq13 in searched.values())
    of_grids = f"of {len(searched):,} grids"
    return (
        Claim("grids with x >= y on which a bound isn't (y-1)/C_S", 0, len(examples), of_grids, note=shown),
        Claim("the same where C_F/C_S >= y(x-1)/(y-1)", 0, broken, of_grids),
        Claim("grids with x >= y on which Eq. 12 and 13 differ", 0, apart, of_grids),
        *_near_optimal("a100"),
        *_near_optimal("h100"),
    )


def _near_optimal(platform: str) -> Iterator[Claim]:
    """Yield how far an AllGather among 16 HB domains is above Eq. 13, hierarchical and pipelined."""
    hardware = PLATFORMS[platform]
    grid = (hardware.domain_gpus, 16, Fraction(hardware.hb_bps, hardware.rail_bps))
    bound_s = float(per_cs(bound.rail_only, grid))
    group = f"AllGather over the bound, 16 domains of {grid[0]} {platform.upper()}"
    note = "the papers give no number, so within 10% is our bar; the two phases run one after the other"
    for name, time_s in (("hierarchical", eq1_per_cs(grid)), ("pipelined", pipelined_per_cs(grid))):
        quantity = f"{name} {group}"
        yield Claim(quantity, 1.0, time_s / bound_s, "times", within=0.1, note=note, stated="near-optimal means")
        note = ""


@mpl.rc_context({"text.parse_math": True})
def _draw(drawn: matplotlib.figure.Figure) -> None:
    left_axes, right_axes = drawn.subplots(1, 2)
    ratios = [Fraction(2**i) for i in range(1, 11)]
    for colour, (x, y) in zip(SERIES, ((2, 2), (8, 8), (72, 16), (256, 16)), strict=False):
        over = [float(per_cs(bound.rail_only, (x, y, ratio)) / (y - 1)) for ratio in ratios]
        left_axes.plot(list(map(float, ratios)), over, ".-", color=colour, label=f"{x} × {y}")
        left_axes.axvline(float(bound.least_ratio(x, y)), color=colour, linewidth=0.8, linestyle=":")
    log2_ticks(left_axes, (2, 8, 32, 128, 512))
    left_axes.set_yscale("log", base=2)
    left_axes.set_yticks([1, 4, 16, 64], ["1", "4", "16", "64"])
    left_axes.set(xlabel="$C_F/C_S$", ylabel="Eq. 13 over $(y-1)/C_S$", title="The bound, where the conjecture says 1")
    left_axes.legend(
        title="x × y; dotted: $y(x-1)/(y-1)$", frameon=True, framealpha=1, facecolor=PAPER, edgecolor=PAPER
    )
    for colour, name in zip(SERIES, SHOWN, strict=False):
        grids = _of_platform(name)
        over = [eq1_per_cs(grid) / float(per_cs(bound.rail_only, grid)) for grid in grids]
        x, _, ratio = grids[0]
        right_axes.plot(DOMAINS, over, ".-", color=colour, label=f"{name}: x = {x}, $C_F/C_S$ = {ratio}")
    log2_ticks(right_axes, DOMAINS)
    right_axes.set(xlabel="HB domains, y", ylabel="Eq. 1 over Eq. 13", ylim=(1, 2.5))
    right_axes.set_title("Hierarchical AllGather against the bound")
    right_axes.legend(loc="upper right")
    for axes in (left_axes, right_axes):
        quiet(axes, "y")
