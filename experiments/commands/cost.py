"""`cost`: switches, transceivers, price and power of a cluster's network, with spines and without."""

import json
from itertools import product
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from railyard.core.errors import BadInput, nearest_multiples, unknown_name_hint
from railyard.experiments import options
from railyard.results.format import digits, percent
from railyard.results.theory.clos import (
    AT_400G,
    Comparison,
    Equipment,
    Network,
    dual_plane,
    radix_that_saves,
    rail_only,
    rail_optimized,
)
from railyard.topologies.platforms import PLATFORMS

PURPOSE = "Compute and check, without packets"
MAX_GPUS: Final = 2**20
MAX_RADIX: Final = 4096
PRICED_BPS: Final = 400_000_000_000
"""The rate of a port and of a transceiver that the default prices are of."""
COLUMNS: Final = (
    "GPUs", "K", "radix", "design", "tiers", "switches", "transceivers", "million USD", "kW", "USD saved", "W saved",
    "any prices",
)  # fmt: skip


@options.shows_progress
def command(
    gpus: Annotated[str, typer.Option(metavar="N[,N...]", show_default=False, help="GPUs of the cluster.")],
    platform: Annotated[
        str,
        typer.Option(
            help="The platform, which gives the GPUs of an HB domain; or your own YAML file.",
            autocompletion=options.completion(options.platform_names),
        ),
    ] = "h100",
    domain_gpus: Annotated[
        str, typer.Option(metavar="K[,K...]", show_default="the platform's", help="GPUs in an HB domain.")
    ] = "",
    radix: Annotated[str, typer.Option(metavar="R[,R...]", help="Ports of a switch.")] = "64",
    gpus_per_nic: Annotated[int, typer.Option(min=1, max=64, help="GPUs that share a NIC.")] = 1,
    port_usd: Annotated[float, typer.Option(min=0, max=1e9, help="Price of a switch port.")] = 694,
    transceiver_usd: Annotated[float, typer.Option(min=0, max=1e9, help="Price of a transceiver.")] = 199,
    port_w: Annotated[float, typer.Option(min=0, max=1e9, help="Peak power of a switch port.")] = 18,
    transceiver_w: Annotated[float, typer.Option(min=0, max=1e9, help="Peak power of a transceiver.")] = 9,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> int:
    """Compute price and power of a cluster's network, with spines and without (Rail-only Eq. 4, 5). Needs no root."""
    if platform not in PLATFORMS:
        raise BadInput("platform", platform, f"{unknown_name_hint(platform, PLATFORMS)}, or the path of a .yaml file")
    equipment = Equipment(port_usd, transceiver_usd, port_w, transceiver_w)
    if not port_usd + transceiver_usd or not port_w + transceiver_w:
        raise BadInput("port_usd, port_w", 0, "must be above 0, or the transceiver's, so that a network has a price")
    sizes = counts("domain_gpus", domain_gpus or str(PLATFORMS[platform].domain_gpus), 1, MAX_GPUS)
    clusters = list(product(counts("gpus", gpus, 1, MAX_GPUS), sizes, counts("radix", radix, 4, MAX_RADIX)))
    rows: list[dict[str, Any]] = []
    for cluster in clusters:
        rows += rows_of(*cluster, gpus_per_nic, equipment)
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    console = options.console()
    _print_rows(rows, console)
    for note in [*_saving_notes(clusters, gpus_per_nic), *_notes(platform, clusters, equipment)]:
        console.print(f"note: {note}", style="dim", highlight=False, soft_wrap=True)
    return 0


def counts(field: str, text: str, least: int, most: int) -> list[int]:
    """Return the whole numbers of a text such as `64,128`. BadInput names the field."""
    numbers: list[int] = []
    for word in text.split(","):
        number = options.count_or_zero(word)
        if not least <= number <= most:
            allowed = f"must be whole numbers from {least:,} to {most:,}, with commas between several"
            raise BadInput(field, text, allowed)
        numbers.append(number)
    return numbers


def rows_of(gpus: int, domain_gpus: int, radix: int, gpus_per_nic: int, equipment: Equipment) -> list[dict[str, Any]]:
    """Return a row for each design of a cluster, which has a port for each NIC. BadInput if it can't be built so."""
    if gpus % domain_gpus:
        nearest = nearest_multiples(gpus, domain_gpus)
        raise BadInput("gpus", gpus, f"must be whole HB domains of {domain_gpus:,} GPUs: {nearest}")
    if radix % 2:
        raise BadInput("radix", radix, f"must be an even number of ports: {nearest_multiples(radix, 2)}")
    if domain_gpus % gpus_per_nic:
        nearest = nearest_multiples(domain_gpus, gpus_per_nic)
        raise BadInput("domain_gpus", domain_gpus, f"must be a multiple of the {gpus_per_nic} GPUs of a NIC: {nearest}")
    nics = gpus // gpus_per_nic
    rails = domain_gpus // gpus_per_nic
    # dual-plane splits ports, so it may save a tier that rail-only doesn't
    wide = rail_optimized(nics, radix)
    rows = [_row(wide, equipment)]
    for narrow in (rail_only(nics, rails, radix), dual_plane(nics, rails, radix)):
        saving = Comparison(wide, narrow, equipment)
        least_pct, most_pct = saving.bounds_pct
        rows.append(
            _row(narrow, equipment)
            | {"usd_saved_pct": saving.cost_saving_pct, "w_saved_pct": saving.power_saving_pct}
            | {"least_saved_pct": least_pct, "most_saved_pct": most_pct}
        )
    return [{"gpus": gpus, "domain_gpus": domain_gpus, "radix": radix, **row} for row in rows]


def _row(network: Network, equipment: Equipment) -> dict[str, Any]:
    return {
        "design": network.design,
        "tiers": network.tiers,
        "switches": network.switches,
        "transceivers": network.transceivers,
        "cost_usd": network.cost_usd(equipment),
        "power_w": network.power_w(equipment),
    }


def _print_rows(rows: list[dict[str, Any]], console: Console) -> None:
    table = options.plain_table(*COLUMNS, right={*COLUMNS} - {"design"})
    for row in rows:
        cluster = map("{:,}".format, (row["gpus"], row["domain_gpus"], row["radix"]))
        equipment = map("{:,}".format, (row["tiers"], row["switches"], row["transceivers"]))
        amounts = [digits(row["cost_usd"] / 1e6), digits(row["power_w"] / 1e3)]
        saved = ["", "", ""]
        if "usd_saved_pct" in row:
            range_text = f"{row['least_saved_pct']:.0f} to {row['most_saved_pct']:.0f}%"
            saved = [percent(row["usd_saved_pct"] / 100), percent(row["w_saved_pct"] / 100), range_text]
        table.add_row(*cluster, row["design"], *equipment, *amounts, *saved)
    console.print(table)


def _saving_notes(clusters: list[tuple[int, int, int]], gpus_per_nic: int) -> list[str]:
    """Return for each cluster where rail-only has no fewer tiers, why, and with which switches it would."""
    notes: list[str] = []
    for gpus, domain_gpus, radix in clusters:
        nics = gpus // gpus_per_nic
        rails = domain_gpus // gpus_per_nic
        wide = rail_optimized(nics, radix)
        if rail_only(nics, rails, radix).tiers < wide.tiers:
            continue
        # a rail is as tall as the whole where both need the same number of tiers
        rail = nics // rails
        reason = f"a rail of {rail:,} NICs takes as many tiers of radix {radix:,} as all {nics:,}"
        larger = radix_that_saves(nics, rails, radix)
        remedy = "nor does a larger radix change it"
        if larger:
            remedy = f"switches of {larger:,} ports would save a tier"
        notes.append(f"rail-only saves no tier: {reason}; {remedy}")
    return notes


def _all_to_all_note(platform: str, clusters: list[tuple[int, int, int]]) -> str:
    """Return how much longer an all-to-all over all GPUs takes without spines: Rail-only Eq. 3 over Eq. 2."""
    p = PLATFORMS[platform]
    shares: list[float] = []
    for gpus, domain_gpus, _ in clusters:
        domains = gpus // domain_gpus
        if domains > 1:
            in_domain = (domain_gpus - 1) / domain_gpus / p.hb_bps
            on_rails = (domains - 1) / domains / p.rail_bps
            shares.append(in_domain / on_rails)
    if not shares:
        return "a single HB domain needs no spines"
    return (
        f"without spines an all-to-all over all GPUs takes {percent(max(shares))} longer ({platform}, Eq. 3 over "
        "Eq. 2), what stays in rails takes as long: `lint` says what a job needs"
    )


def _notes(platform: str, clusters: list[tuple[int, int, int]], equipment: Equipment) -> list[str]:
    """Return what was assumed, and what a network without spines gives up."""
    p = PLATFORMS[platform]
    notes = [
        "full bisection; a switch is paid with all its ports, NICs aren't counted; counts that don't divide evenly are "
        "the least that could do",
        "any prices: what is saved whatever ports and transceivers cost or draw, since it is a mean of both savings",
        "dual-plane: rail-only with two switches for each rail, half the rate to each; a port is split in two, which "
        "may save a tier, with spines as well",
        _all_to_all_note(platform, clusters),
    ]
    # of the user's own prices, nothing is known that could be said
    if equipment == AT_400G:
        prices = "prices of 400 Gbit/s, by Rail-only V-E: 694 USD and 18 W a switch port, 199 USD and 9 W a transceiver"
        if p.rail_bps != PRICED_BPS:
            prices += f"; a NIC of {p.name or platform} has {p.rail_bps / 1e9:,.0f} Gbit/s"
        notes.append(prices)
    return notes
