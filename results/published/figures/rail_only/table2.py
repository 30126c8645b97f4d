"""Switches, transceivers and savings (Rail-only Table II)."""

from typing import Any, Final

import matplotlib.figure
import pandas as pd

from railyard.core.installation import data_file
from railyard.results.plots.style import BLUE, ORANGE, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.clos import Comparison, Network, rail_only, rail_optimized

PRINTED: Final = data_file("results/published/figures/rail_only/table2.csv")
DOMAIN: Final = 256
"""K. The paper doesn't state it; of the sizes that divide the clusters, no other gives all six rows."""
COLUMNS: Final = (
    "gpus", "radix", "design", "switches", "transceivers", "cost_usd", "power_w", "usd_saved_pct", "w_saved_pct",
    "k_that_fits",
)  # fmt: skip


def figure() -> Figure:
    """All six rows, for HB domains of 256."""
    rows = list[tuple[Cell, ...]]()
    claims = list[Claim]()
    pairs = list[Comparison]()
    fitting: list[set[int]] = []
    for row in printed():
        both = pair(row)
        wide = both.wide
        narrow = both.narrow
        fits = fitting_domains(row)
        pairs.append(both)
        fitting.append(set(fits))
        saved = (both.cost_saving_pct, both.power_saving_pct, f"{fits[0]}-{fits[-1]}")
        rows.append((*_counts(wide), None, None, None))
        rows.append((*_counts(narrow), *saved))
        at = f"{row.gpus:,} GPUs, radix {row.radix}"
        halves = ""
        if both.power_saving_pct % 1 == 0.5:
            halves = "printed without its half"
        claims += [
            Claim(f"{at}, rail-optimized", row.switches_rail_optimized, wide.switches, "switches"),
            Claim(f"{at}, rail-only", row.switches_rail_only, narrow.switches, "switches"),
            Claim(f"{at}, rail-optimized", row.transceivers_rail_optimized, wide.transceivers, "transceivers"),
            Claim(f"{at}, rail-only", row.transceivers_rail_only, narrow.transceivers, "transceivers"),
            Claim(f"{at}, cost saved", row.cost_saving_pct, both.cost_saving_pct, "%", within=0.5),
            Claim(f"{at}, power saved", row.power_saving_pct, both.power_saving_pct, "%", within=0.5, note=halves),
        ]
    common = ", ".join(map(str, sorted(set.intersection(*fitting))))
    (shared,) = [both.narrow for both in pairs if (both.narrow.gpus, both.narrow.radix) == (32_768, 256)]
    rail = rail_only(shared.gpus // DOMAIN, 1, shared.radix)
    notes = (
        f"The paper doesn't state K. Powers of two that give all rows: {common}; those of each row are in k_that_fits.",
        f"Rails share switches: at {shared.gpus:,} GPUs and radix {shared.radix} two rails of {rail.gpus} are on each "
        f"of {shared.switches}. On switches of their own they would take {DOMAIN * rail.switches}.",
        "A switch is paid with all its ports: 694 USD and 18 W a port; 199 USD and 9 W a transceiver (400 Gbps).",
    )
    return Figure(
        title="Switches, transceivers and savings",
        source="Rail-only Table II",
        columns=COLUMNS,
        rows=rows,
        draw=lambda drawn: _draw(drawn, pairs),
        claims=tuple(claims),
        notes=notes,
        inches=(11.0, 4.5),
    )


def _counts(network: Network) -> tuple[Cell, ...]:
    """Return the first cells of a network's row: its size and design, its parts, cost and power."""
    parts = (network.switches, network.transceivers)
    return network.gpus, network.radix, network.design, *parts, network.cost_usd(), network.power_w()


def printed() -> list[Any]:
    """Return the rows of Table II as printed, with the columns of its file; savings in whole percent."""
    return list(pd.read_csv(PRINTED, comment="#").itertuples(index=False))


def pair(row: Any, domain: int = DOMAIN) -> Comparison:
    """Both networks for a row's GPUs and radix."""
    return Comparison(rail_optimized(row.gpus, row.radix), rail_only(row.gpus, domain, row.radix))


def fitting_domains(row: Any) -> tuple[int, ...]:
    """The powers of two K that give the row's rail-only switches and transceivers."""
    fitting: list[int] = []
    for exponent in range(row.gpus.bit_length()):
        network = rail_only(row.gpus, 2**exponent, row.radix)
        if (network.switches, network.transceivers) == (row.switches_rail_only, row.transceivers_rail_only):
            fitting.append(2**exponent)
    return tuple(fitting)


def _draw(drawn: matplotlib.figure.Figure, pairs: list[Comparison]) -> None:
    names = [f"{both.wide.gpus:,}\nradix {both.wide.radix}" for both in pairs]
    for axes, power in zip(drawn.subplots(1, 2), (False, True), strict=True):
        for offset, colour, narrow in ((-0.2, BLUE, False), (0.2, ORANGE, True)):
            networks = [both.narrow for both in pairs] if narrow else [both.wide for both in pairs]
            values: list[float] = []
            for network in networks:
                amount = network.power_w() if power else network.cost_usd()
                values.append(amount / 1e6)
            places = [number + offset for number in range(len(pairs))]
            axes.bar(places, values, width=0.38, color=colour, label=networks[0].design)
            if narrow:
                for both, place, value in zip(pairs, places, values, strict=True):
                    saved_pct = both.power_saving_pct if power else both.cost_saving_pct
                    axes.annotate(f"{saved_pct:.3g}%", (place, value), ha="center", va="bottom", fontsize=7)
        axes.set_xticks(range(len(pairs)), names, fontsize=8)
        quiet(axes, "y", xlabel="GPUs", ylabel="peak power, MW" if power else "cost, million USD")
        if not power:
            axes.legend(loc="upper left", title="above a bar: saved", alignment="left")
