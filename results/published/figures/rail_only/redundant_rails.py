"""Cost and power of redundant rail switches beside spines (Rail-only section IV-C)."""

from dataclasses import dataclass
from typing import Final

import matplotlib.figure

from railyard.results.plots.style import BLUE, GREEN, ORANGE, VERMILION, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.published.figures.rail_only import table2
from railyard.results.theory.clos import Network, dual_plane

COLUMNS: Final = (
    "gpus", "radix", "design", "switches", "transceivers", "cost_usd", "power_w", "cost_pct", "power_pct",
)  # fmt: skip
COLOURS: Final = {"rail-optimized": BLUE, "rail-only": ORANGE, "dual-plane": GREEN, "doubled": VERMILION}


@dataclass(frozen=True, slots=True)
class Option:
    """A network of a cluster: what it costs and draws, in percent of rail-optimized too."""

    cluster: str
    design: str
    cells: tuple[Cell, ...]
    cost_pct: float
    power_pct: float


def figure() -> Figure:
    """Every cluster of Table II: with spines, with a switch for each rail, with two of half the rate, and with two."""
    options: list[Option] = []
    for row in table2.printed():
        both = table2.pair(row)
        options.append(_option("rail-optimized", both.wide, both.wide))
        options.append(_option("rail-only", both.narrow, both.wide))
        options.append(_option("dual-plane", dual_plane(row.gpus, table2.DOMAIN, row.radix), both.wide))
        options.append(_option("doubled", both.narrow, both.wide, 2))
    rows = [(*option.cells, option.cost_pct, option.power_pct) for option in options]
    return Figure(
        title="Redundant rail switches beside spines",
        source="Rail-only section IV-C, computed by Eq. 4 and 5",
        columns=COLUMNS,
        rows=rows,
        draw=lambda drawn: _draw(drawn, options),
        claims=(
            *_claims(options, "dual-plane", "two planes of half the rate"),
            *_claims(options, "doubled", "doubled"),
        ),
        notes=(
            "dual-plane: each GPU has a link of half its rate to either of two rail switches, whose ports are split in "
            "two, so that half of the rate is left when a plane dies. doubled: every rail switch and transceiver "
            "twice, at full rate, so that all of it is left.",
            "Spines over split ports would cost less too, but at least as much as rail-only over them: a rail has no "
            "more tiers than the whole.",
            f"HB domains of {table2.DOMAIN}, prices and power as in table2. cost_pct, power_pct: of rail-optimized.",
        ),
        inches=(11.0, 4.5),
    )


def _option(design: str, network: Network, wide: Network, copies: int = 1) -> Option:
    """Return a network, taken `copies` times, beside the one with spines."""
    cost_usd = copies * network.cost_usd()
    power_w = copies * network.power_w()
    parts = (copies * network.switches, copies * network.transceivers)
    cells = (network.gpus, network.radix, design, *parts, cost_usd, power_w)
    cluster = f"{network.gpus:,}\nradix {network.radix}"
    return Option(cluster, design, cells, 100 * cost_usd / wide.cost_usd(), 100 * power_w / wide.power_w())


def _claims(options: list[Option], design: str, label: str) -> tuple[Claim, ...]:
    """Return in how many clusters a design costs and draws less than rail-optimized, which the paper says of all."""
    chosen = [option for option in options if option.design == design]
    dearer = [option for option in chosen if option.cost_pct >= 100]
    note = ""
    if dearer:
        worst_pct = max(option.cost_pct for option in dearer)
        note = f"where rail-only saves less than half, two of everything cost more: up to {worst_pct:.0f}%"
    cheaper = sum(option.cost_pct < 100 for option in chosen)
    weaker = sum(option.power_pct < 100 for option in chosen)
    of_clusters = f"of {len(chosen)} clusters"
    return (
        Claim(f"{label}: of Table II, cost less than with spines", len(chosen), cheaper, of_clusters, note=note),
        Claim(f"{label}: of Table II, draw less than with spines", len(chosen), weaker, of_clusters, note=note),
    )


def _draw(drawn: matplotlib.figure.Figure, options: list[Option]) -> None:
    clusters = list(dict.fromkeys(option.cluster for option in options))
    left_axes, right_axes = drawn.subplots(1, 2)
    for number, (design, colour) in enumerate(COLOURS.items()):
        chosen = [option for option in options if option.design == design]
        places = [place + 0.2 * number - 0.3 for place in range(len(clusters))]
        left_axes.bar(places, [option.cost_pct for option in chosen], width=0.19, color=colour, label=design)
        right_axes.bar(places, [option.power_pct for option in chosen], width=0.19, color=colour)
    for axes, label in ((left_axes, "cost, % of rail-optimized"), (right_axes, "peak power, % of rail-optimized")):
        axes.set_xticks(range(len(clusters)), clusters, fontsize=8)
        quiet(axes, "y", xlabel="GPUs", ylabel=label)
    left_axes.legend(fontsize=8)
