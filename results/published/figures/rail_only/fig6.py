"""Switches by layer of both designs (Rail-only Fig. 1 and 6)."""

from collections.abc import Iterator, Sequence

import matplotlib.figure
from matplotlib.patches import Patch

from railyard.results.plots.style import PAPER, SERIES, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.published.figures.rail_only import table2
from railyard.results.theory.clos import Comparison, Network


def figure() -> Figure:
    """A row for each layer of each network."""
    networks: list[Network] = []
    rows: list[tuple[Cell, ...]] = []
    claims: list[Claim] = []
    pairs: list[Comparison] = []
    for row in table2.printed():
        both = table2.pair(row)
        pairs.append(both)
        wide = both.wide
        narrow = both.narrow
        for network in (wide, narrow):
            networks.append(network)
            rows += _rows(network)
        if wide.radix == 64:
            claims += _claims(wide, narrow)
    claims.append(_least_at_64(pairs))
    return Figure(
        title="Switches by layer of both designs",
        source="Rail-only Fig. 1 and 6",
        columns=("gpus", "radix", "design", "tier", "layer", "switches", "transceivers_below"),
        rows=rows,
        draw=lambda drawn: _draw(drawn, networks),
        claims=tuple(claims),
        notes=(
            f"HB domains of {table2.DOMAIN}, as in table2. Rail-only's upper tiers connect GPUs of one rail only.",
            "A transceiver is at each end of a link, so each tier has two for every GPU on the links below it.",
        ),
        inches=(10.0, 5.0),
    )


def _claims(wide: Network, narrow: Network) -> tuple[Claim, ...]:
    """V-E: what rail-only saves at radix 64, where it saves least."""
    cluster = f"{wide.gpus:,} GPUs, radix 64"
    switches = f"{cluster}, switches of rail-only to those of rail-optimized"
    ratio_pct = 100 * narrow.switches / wide.switches
    note = f"the text's three quarters aren't Table II's {narrow.switches:,} of {wide.switches:,}"
    return (
        Claim(switches, 75, ratio_pct, "%", within=0.5, note=note),
        Claim(f"{cluster}, rail-optimized", 3, wide.tiers, "tiers"),
        Claim(f"{cluster}, each rail of rail-only", 2, narrow.tiers, "tiers"),
    )


def _least_at_64(pairs: Sequence[Comparison]) -> Claim:
    """Return in how many clusters no other radix saves less cost or less power than 64."""
    clusters = {both.wide.gpus for both in pairs}
    count = 0
    for gpus in clusters:
        of_cluster = [both for both in pairs if both.wide.gpus == gpus]
        (at_64,) = [both for both in of_cluster if both.wide.radix == 64]
        least_cost_pct = min(both.cost_saving_pct for both in of_cluster)
        least_power_pct = min(both.power_saving_pct for both in of_cluster)
        count += at_64.cost_saving_pct <= least_cost_pct and at_64.power_saving_pct <= least_power_pct
    of_clusters = f"of {len(clusters)} clusters"
    return Claim("clusters in which no radix saves less than 64", len(clusters), count, of_clusters)


def _rows(network: Network) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each layer of a network, from the GPUs up."""
    for tier, (name, switches) in enumerate(zip(_names(network), network.layers, strict=True), start=1):
        yield network.gpus, network.radix, network.design, tier, name, switches, 2 * network.gpus


def _names(network: Network) -> list[str]:
    """Rail switches next to the GPUs, spines at the top, and what is between them."""
    names = ["rail"]
    if network.tiers == 3:
        names.append("aggregation")
    if network.tiers > 1:
        names.append("spine")
    return names


def _draw(drawn: matplotlib.figure.Figure, networks: list[Network]) -> None:
    axes = drawn.subplots()
    colours = dict(zip(("rail", "aggregation", "spine"), SERIES, strict=False))
    most = max(network.switches for network in networks)
    labels = []
    for number, network in enumerate(networks):
        # bars of a pair stand together
        place = number + 0.6 * (number // 2)
        bar_start = 0
        for switches, name in zip(network.layers, _names(network), strict=True):
            axes.barh(place, switches, left=bar_start, color=colours[name], edgecolor=PAPER, height=0.85)
            if switches > most / 20:
                middle = bar_start + switches / 2
                axes.annotate(f"{switches:,}", (middle, place), ha="center", va="center", color=PAPER, fontsize=8)
            bar_start += switches
        tiers = f"{network.tiers} tiers"
        if network.tiers == 1:
            tiers = "1 tier"
        axes.annotate(
            f"{bar_start:,} in {tiers}", (bar_start, place), xytext=(5, 0), textcoords="offset points", va="center"
        )
        labels.append((place, f"{network.gpus:,} GPUs, radix {network.radix}, {network.design}"))
    axes.set_yticks([place for place, _ in labels], [label for _, label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(handles=[Patch(color=colour, label=name) for name, colour in colours.items()], loc="lower right")
    quiet(axes, "x", xlabel="switches", xlim=(None, 1.2 * most))
