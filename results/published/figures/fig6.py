"""Switches by layer of both designs (Rail-only Fig. 1 and 6)."""

import matplotlib.figure
from matplotlib.patches import Patch

from railyard.results.plots.style import PAPER, SERIES, quiet
from railyard.results.published.catalogue import Claim, Figure
from railyard.results.published.figures import table2
from railyard.results.theory.clos import Network


def figure() -> Figure:
    """A row for each layer of each network."""
    pairs = [table2.pair(row) for row in table2.printed()]
    networks = [network for both in pairs for network in (both.wide, both.narrow)]
    claims = []
    for wide, narrow in (both for both in pairs if both.wide.radix == 64):
        claim_text = f"{wide.gpus:,} GPUs, radix 64, switches of rail-only to those of rail-optimized"
        note = f"the text's three quarters aren't Table II's {narrow.switches:,} of {wide.switches:,}"
        claims.append(Claim(claim_text, 75, 100 * narrow.switches / wide.switches, "%", within=0.5, note=note))
    return Figure(
        title="Switches by layer of both designs",
        source="Rail-only Fig. 1 and 6",
        columns=("gpus", "radix", "design", "tier", "layer", "switches", "transceivers_below"),
        rows=[
            (net.gpus, net.radix, net.design, tier, name, switches, 2 * net.gpus)
            for net in networks
            for tier, (name, switches) in enumerate(zip(_names(net), net.layers, strict=True), start=1)
        ],
        draw=lambda drawn: _draw(drawn, networks),
        claims=tuple(claims),
        notes=(
            f"HB domains of {table2.DOMAIN}, as in table2. Rail-only's upper tiers connect GPUs of one rail only.",
            "A transceiver is at each end of a link, so each tier has two for every GPU on the links below it.",
        ),
        inches=(10.0, 5.0),
    )


def _names(network: Network) -> list[str]:
    """Rail switches next to the GPUs, spines at the top, and what is between them."""
    return ["rail", *(["aggregation"] if network.tiers == 3 else []), *(["spine"] if network.tiers > 1 else [])]


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
        tiers = "1 tier" if network.tiers == 1 else f"{network.tiers} tiers"
        axes.annotate(
            f"{bar_start:,} in {tiers}", (bar_start, place), xytext=(5, 0), textcoords="offset points", va="center"
        )
        labels.append((place, f"{network.gpus:,} GPUs, radix {network.radix}, {network.design}"))
    axes.set_yticks([place for place, _ in labels], [label for _, label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(handles=[Patch(color=colour, label=name) for name, colour in colours.items()], loc="lower right")
    quiet(axes, "x", xlabel="switches", xlim=(None, 1.2 * most))
