"""Cost and power of a Clos against scale (Rail-only Eq. 4, 5; Spine-free Fig. 1)."""

from typing import Final

import matplotlib.figure

from railyard.results.plots.style import SERIES, quiet
from railyard.results.published.catalogue import Claim, Figure
from railyard.results.published.figures.rail_only import table2
from railyard.results.theory.clos import AT_400G, Network, rail_only, rail_optimized

RADICES: Final = (64, 128, 256)
SCALES: Final = (2048, 4096, 8192, 16_384, 30_000, 32_768, 65_536)
STEP: Final = 1024  # of the curves; whole HB domains
DOMAIN: Final = table2.DOMAIN
# the scales that the two papers' introductions give numbers for
SMALL = 30_000
LARGE = 65_536


def figure() -> Figure:
    """Both designs at three radices."""
    networks: list[Network] = []
    for radix in RADICES:
        wide, narrow = _networks(radix, SCALES)
        networks += wide + narrow
    return Figure(
        title="What a network costs and draws, against scale",
        source="Spine-free Fig. 1, introductions of both papers",
        columns=("gpus", "radix", "design", "tiers", "switches", "transceivers", "cost_usd", "power_w"),
        rows=[
            (n.gpus, n.radix, n.design, n.tiers, n.switches, n.transceivers, n.cost_usd(), n.power_w())
            for n in networks
        ],
        draw=_draw,
        claims=_claims(),
        notes=(
            f"Rail-only has HB domains of {DOMAIN}: what Table II assumes without saying so (see table2). 30,000 GPUs "
            "are no whole number of those.",
            "The papers don't state the radix of these figures, set here against 64. Networks of as many tiers cost "
            "the same at any radix, but for rounding.",
        ),
        inches=(10.0, 4.6),
    )


def _networks(radix: int, scales: tuple[int, ...]) -> tuple[list[Network], list[Network]]:
    """Return rail-optimized and rail-only networks; the latter of whole HB domains."""
    wide = [rail_optimized(gpus, radix) for gpus in scales]
    return wide, [rail_only(gpus, DOMAIN, radix) for gpus in scales if gpus % DOMAIN == 0]


def _claims() -> tuple[Claim, ...]:
    # what the introductions say, set against three tiers of radix 64
    small = rail_optimized(SMALL, 64)
    large = rail_optimized(LARGE, 64)
    four_tiers = rail_optimized(SMALL, 32)
    next_up = rail_optimized(32_768, 64)
    two_tiers = rail_optimized(LARGE, 512)
    switches_mw = AT_400G.switch_port_w * large.radix * large.switches / 1e6
    no_transceivers = (
        f"as if without transceivers: the switches alone draw {switches_mw:.2f} MW. Two tiers (rail-only, or any to "
        f"any at radix 512) draw {_mw(two_tiers):.2f} MW too, but cost {_million(two_tiers):.0f} million USD. The "
        "savings of Table II are with transceivers"
    )
    more_tiers = (
        f"as if of four tiers, which takes radix 32: {_million(four_tiers):.1f} million USD, but then "
        f"{_mw(four_tiers):.2f} MW. {next_up.gpus:,} GPUs in three tiers: {_million(next_up):.1f} million USD"
    )
    rounded_up = (
        f"{next_up.gpus:,} GPUs draw {_mw(next_up):.2f} MW, {_mw(next_up) / 1.024:.2f} in units of 1,024 kW, in which "
        "the ranges below were also given"
    )
    at_scale = (
        Claim("65,536 GPUs, Spine-free", 300, _million(large), "million USD", within=15),
        Claim("65,536 GPUs, Spine-free", 6, _mw(large), "MW", within=0.3, note=no_transceivers),
        Claim("30,000 GPUs, Rail-only", 200, _million(small), "million USD", within=10, note=more_tiers),
        Claim("30,000 GPUs, Rail-only", 4.6, _mw(small), "MW", within=0.23, note=rounded_up),
    )
    # the smallest and largest savings over Table II, as its section states them
    cost_pct: list[float] = []
    power_pct: list[float] = []
    megawatts: list[float] = []
    all_money: list[float] = []
    money: list[float] = []
    for row in table2.printed():
        both = table2.pair(row)
        cost_pct.append(both.cost_saving_pct)
        power_pct.append(both.power_saving_pct)
        megawatts.append(both.saved_w / 1e6)
        all_money.append(both.saved_usd / 1e6)
        if both.wide.gpus == LARGE:
            money.append(both.saved_usd / 1e6)
    of_all = (
        f"{min(money):.1f} is the least of the clusters of {LARGE:,} GPUs; the 1.7 MW of the same sentence are the "
        "least of all six"
    )
    kilo = "{:.2f} in units of 1,024 kW, as the paper seems to have divided"
    return (
        *at_scale,
        Claim("cost saved, least of Table II", 38, min(cost_pct), "%", within=0.5),
        Claim("cost saved, most", 77, max(cost_pct), "%", within=0.5, note="76% in the introductions"),
        Claim("power saved, least", 37, min(power_pct), "%", within=0.5),
        Claim("power saved, most", 75, max(power_pct), "%", within=0.5),
        Claim("cost saved, least", 117, min(all_money), "million USD", within=0.5, note=of_all),
        Claim("cost saved, most", 234, max(money), "million USD", within=0.5),
        Claim("power saved, least", 1.7, min(megawatts), "MW", within=0.05, note=kilo.format(min(megawatts) / 1.024)),
        Claim("power saved, most", 6.9, max(megawatts), "MW", within=0.05, note=kilo.format(max(megawatts) / 1.024)),
    )


def _million(network: Network) -> float:
    return network.cost_usd() / 1e6


def _mw(network: Network) -> float:
    return network.power_w() / 1e6


def _draw(drawn: matplotlib.figure.Figure) -> None:
    scales = tuple(range(STEP, LARGE + 1, STEP))
    panels = (("cost, million USD", _million), ("peak power, MW", _mw))
    stated = ({LARGE: 300.0, SMALL: 200.0}, {LARGE: 6.0, SMALL: 4.6})
    for axes, (label, value), points in zip(drawn.subplots(1, 2), panels, stated, strict=True):
        # where radices cost the same, the thinner line shows on the wider
        for width, colour, radix in zip((4.5, 2.5, 1.2), SERIES, RADICES, strict=False):
            for style, networks in zip(("-", "--"), _networks(radix, scales), strict=True):
                gpus = [network.gpus for network in networks]
                axes.plot(
                    gpus, list(map(value, networks)), style, color=colour, linewidth=width, label=f"radix {radix}"
                )
        axes.plot(list(points), list(points.values()), "kx", label="stated")
        axes.set_xticks([0, 16_384, 32_768, 49_152, 65_536], ["0", "16,384", "32,768", "49,152", "65,536"])
        quiet(axes, "y", xlabel="GPUs", ylabel=label, ylim=(0, None))
        handles, names = axes.get_legend_handles_labels()
        axes.legend(handles[::2], names[::2], title="dashed: rail-only, K = 256", loc="upper left")
