"""Health routing's condition for rail-only over seeded loads: how often it holds, and names the faster path."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import matplotlib.figure
import numpy as np

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.loaded_paths import (
    Answers,
    Healths,
    PathPair,
    Values,
    bandwidth,
    condition,
    latency,
    names_no_worse,
)
from railyard.topologies.platforms import PLATFORMS

SEED: Final = 1
SAMPLES: Final = 20_000
MOST_LOAD: Final = 0.95
DRAWN: Final = "drawn"
SPINE_LOADS: Final = (0.0, 0.5, 0.9, DRAWN)
EMULATED: Final = 2.0
"""Rate of an HB link over a rail's in the experiments that compare the two paths on packets."""
RATIOS: Final = (1.0, EMULATED, PLATFORMS["a100"].ratio)
PLATFORM_RATIO: Final = PLATFORMS["a100"].ratio
MOST_CASES: Final = 50.0
BY_LOAD: Final = "load"
BY_TRAFFIC: Final = "traffic"


class Row(NamedTuple):
    """Percentages of the drawn sets, for a load of the spines and a ratio of rates.

    `drawn_by`: whether loads of HB links are drawn as those of rails, or their traffic in bit/s is.
    """

    spine_load: float | str
    hb_ratio: float
    drawn_by: str
    condition_holds_pct: float
    rail_only_lower_latency_pct: float
    names_lower_latency_pct: float
    names_higher_bandwidth_pct: float


def figure() -> Figure:
    """Loads are uniform from 0 to 95%, independent of one another."""
    rows = list(_rows())
    return Figure(
        title="Health routing's condition over seeded loads",
        source="Health routing, part 2",
        columns=Row._fields,
        rows=[_cells(row) for row in rows],
        draw=lambda drawn: _draw(drawn, rows),
        claims=tuple(_claims(rows)),
        notes=(
            f"{SAMPLES:,} sets of loads (seed {SEED}) of the source's HB domain and rail and of the destination's "
            "rail; of the spines as well, where spine_load is drawn.",
            "drawn_by traffic: HB links carry as many bit/s as the drawn load of a rail is, so their load is smaller "
            "by hb_ratio.",
            "names_lower_latency_pct: the path that the condition names has no higher mean latency than the other, "
            "each link being an M/M/1 queue. names_higher_bandwidth_pct: its slowest link leaves no less.",
        ),
    )


def _cells(row: Row) -> tuple[Cell, ...]:
    return tuple(row)


def drawn_healths(spine_load: float | str, domain_scale: float) -> Healths:
    """Return the health of the elements for each set of loads.

    domain_scale: load of an HB domain over the load that is drawn for it.
    """
    loads: Values = np.random.default_rng(SEED).uniform(0, MOST_LOAD, (4, SAMPLES))
    domain, rail, spine, far_rail = loads
    if not isinstance(spine_load, str):
        spine = np.full(SAMPLES, spine_load)
    return Healths(1 - domain * domain_scale, 1 - rail, 1 - spine, 1 - far_rail)


def _rows() -> Iterator[Row]:
    for spine_load in SPINE_LOADS:
        for hb_ratio in RATIOS:
            yield _row(spine_load, hb_ratio, BY_LOAD)
        yield _row(spine_load, PLATFORM_RATIO, BY_TRAFFIC)


def _row(spine_load: float | str, hb_ratio: float, drawn_by: str) -> Row:
    """Compute a row."""
    domain_scale = 1 / hb_ratio if drawn_by == BY_TRAFFIC else 1.0
    healths = drawn_healths(spine_load, domain_scale)
    holds = condition(healths)
    latencies = latency(healths, hb_ratio)
    rates = bandwidth(healths, hb_ratio)
    # a path that leaves more costs less
    rate_costs = PathPair(-rates.rail_only, -rates.rail_optimized)
    return Row(
        spine_load=spine_load,
        hb_ratio=hb_ratio,
        drawn_by=drawn_by,
        condition_holds_pct=_percentage(holds),
        rail_only_lower_latency_pct=_percentage(latencies.rail_only < latencies.rail_optimized),
        names_lower_latency_pct=_percentage(names_no_worse(holds, latencies)),
        names_higher_bandwidth_pct=_percentage(names_no_worse(holds, rate_costs)),
    )


def _percentage(answers: Answers) -> float:
    return 100 * float(np.mean(answers))


def _spines(spine_load: float | str) -> str:
    """Return the load of the spines in words."""
    return "drawn" if isinstance(spine_load, str) else f"{100 * spine_load:g}%"


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """Yield the claims for HB links as fast as the platform's; loads drawn alike, and by traffic."""
    most = "the article says most cases, which we take as more than half"
    queues = "the article takes a higher score for a lower latency; of mean latencies in queues that is not always so"
    for row in rows:
        if row.hb_ratio != PLATFORM_RATIO:
            continue
        spines = f"{row.drawn_by}, spines {_spines(row.spine_load)}"
        yield Claim(
            f"condition holds, by {spines}", MOST_CASES, row.condition_holds_pct, "%",
            bound="at least", note=most, stated="most cases means",
        )  # fmt: skip
        yield Claim(
            f"rail-only has the lower latency, by {spines}", MOST_CASES, row.rail_only_lower_latency_pct, "%",
            bound="at least", note=most, stated="most cases means",
        )  # fmt: skip
        yield Claim(
            f"condition names the lower latency, by {spines}", 100, row.names_lower_latency_pct, "%", note=queues
        )


def _draw(drawn: matplotlib.figure.Figure, rows: Sequence[Row]) -> None:
    shown = [row for row in rows if row.hb_ratio == PLATFORM_RATIO and row.drawn_by == BY_LOAD]
    axes = drawn.subplots()
    places = np.arange(len(shown))
    quantities = ("condition_holds_pct", "rail_only_lower_latency_pct", "names_lower_latency_pct")
    labels = ("the condition holds", "rail-only has the lower latency", "the condition names the lower latency")
    width = 0.8 / len(quantities)
    for number, (quantity, label) in enumerate(zip(quantities, labels, strict=True)):
        heights = [getattr(row, quantity) for row in shown]
        axes.bar(places + (number - 1) * width, heights, width, color=style.SERIES[number], label=label)
    axes.set_xticks(places, [f"spines {_spines(row.spine_load)}" for row in shown])
    axes.set(ylim=(0, 100))
    axes.legend(loc="lower right")
    style.quiet(axes, "y", title=f"HB links {PLATFORM_RATIO:g} times as fast as rails", ylabel="of sets of loads, %")
