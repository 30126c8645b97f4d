"""Failures of both networks, and the GPU-time that they take (Rail-only section IV-C)."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes

from railyard.results.plots.style import BLUE, GREEN, GREY, INK, ORANGE, VERMILION, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.reliability import availability as model

CLUSTERS: Final = ((65_536, 256, 64), (65_536, 256, 256), (65_536, 8, 64))
"""GPUs, K, radix: two rows of Table II, and HB domains so small that a rail is as tall as the whole."""
YEARS: Final = 300
SEED: Final = 1
LLAMA3: Final = (16_384, 8, 64)
# The Llama 3 Herd of Models, section 3.3.4, Table 5: network switch or cable
LLAMA3_NETWORK: Final = 35
FEWER_PCT: Final = 99.0
"""Our bar for fewer points of failure, of those of rail-optimized: as many are not fewer."""
COLUMNS: Final = (
    "gpus", "domain_gpus", "radix", "design", "what", "unit",
    "mean", "low", "high", "first_order", "year_p5", "year_p95",
)  # fmt: skip


Case = tuple[model.Wiring, model.Reliability]  # one design of one cluster


def figure() -> Figure:
    """A row for each number, of both designs of every cluster."""
    components = model.read_components()
    # the same seed, so both designs have the same failures at their GPUs where their first tiers are alike
    cases: list[Case] = []
    rows: list[tuple[Cell, ...]] = []
    claims: list[Claim] = []
    for cluster in CLUSTERS:
        wide, narrow = [(wiring, model.simulate(wiring, components, YEARS, SEED)) for wiring in model.both(*cluster)]
        cases += [wide, narrow]
        rows += [*_rows(wide), *_rows(narrow)]
        claims += _claims(wide, narrow)
    net = model.both(*LLAMA3)[0].network
    optics = components.transceiver
    a_year = components.switch.failures_per_year * net.switches + optics.failures_per_year * net.transceivers
    llama3 = Claim(
        "network failures in 54 days at 16,384 GPUs (Llama 3)",
        LLAMA3_NETWORK,
        a_year * 54 / model.DAYS_A_YEAR,
        "failures",
        within=2 * LLAMA3_NETWORK**0.5,
        note="rates of switches and transceivers are assumed, and were chosen to come near this; its network is taken "
        "as three tiers of radix 64 with an optical link a tier for every GPU, which isn't known",
    )
    gpus = CLUSTERS[0][0]
    failures = gpus * (components.gpu.failures_per_year + components.hbm.failures_per_year)
    ppm = 1e6 * (components.gpu.unavailable + components.hbm.unavailable)
    notes = (
        "low to high: 95% confidence interval of the mean; year_p5, year_p95: of single years. first_order: rate x "
        f"repair time, each component out alone. {YEARS} simulated years.",
        "Rates and their sources: theory/reliability/components.yaml; those of switches and transceivers, and all "
        "repair times, are assumed.",
        f"For proportion, in both designs: GPUs and their HBM3 fail {failures:,.0f} times a year at {gpus:,} GPUs, "
        f"which takes {ppm:,.0f} ppm of the GPUs' time.",
        "Rerouted: the other GPUs of the HB domain carry the rail traffic. Above the first tier nothing is cut off. A "
        "job that waits for its slowest GPU isn't counted.",
    )
    return Figure(
        title="Failures of the network",
        source="Rail-only section IV-C, computed",
        columns=COLUMNS,
        rows=rows,
        draw=lambda drawn: _draw(drawn, cases),
        claims=(llama3, *claims),
        notes=notes,
        inches=(12.0, 5.0),
    )


def _rows(case: Case) -> Iterator[tuple[Cell, ...]]:
    wiring, estimates = case
    net = wiring.network
    named: tuple[tuple[str, str, model.Estimate, float], ...] = (
        ("switches", "a year", estimates.switch_failures, 1),
        ("transceivers", "a year", estimates.transceiver_failures, 1),
        ("all, with NICs", "a year", estimates.network_failures, 1),
        ("cut GPUs off", "a year", estimates.access_failures, 1),
        ("GPU-time lost", "ppm", estimates.lost, 1e6),
        ("lost, rerouted", "ppm", estimates.lost_rerouted, 1e6),
    )
    for label, unit, estimate, scale in named:
        numbers = [scale * number for number in estimate]
        yield (net.gpus, wiring.domain_gpus, net.radix, net.design, label, unit, *numbers)


def _claims(wide: Case, narrow: Case) -> Iterator[Claim]:
    """IV-C: identical on switches and links; fewer switches, so fewer points of failure."""
    wide_wiring, wide_estimates = wide
    narrow_wiring, narrow_estimates = narrow
    wiring_text = f"K = {wide_wiring.domain_gpus}, radix {wide_wiring.network.radix}"
    same = 100 * narrow_estimates.lost.first_order / wide_estimates.lost.first_order
    fewer = 100 * narrow_estimates.network_failures.first_order / wide_estimates.network_failures.first_order
    yield Claim(f"{wiring_text}: GPU-time lost, rail-only to rail-optimized", 100, same, "%", within=0.1)
    note = ""
    if narrow_wiring.network.tiers == wide_wiring.network.tiers:
        note = "as many tiers, so as much equipment: nothing is gained"
    label = f"{wiring_text}: network failures, rail-only to rail-optimized"
    yield Claim(label, FEWER_PCT, fewer, "%", bound="at most", note=note, stated="fewer means")


def _draw(drawn: matplotlib.figure.Figure, cases: list[Case]) -> None:
    left_axes, right_axes = drawn.subplots(1, 2, width_ratios=(3, 2))
    # bars of a pair stand together
    places = [number + 0.5 * (number // 2) for number in range(len(cases))]
    _draw_failures(left_axes, cases, places)
    _draw_lost_time(right_axes, [estimates for _, estimates in cases], places)
    labels = ("network failures a year, 65,536 GPUs", "GPU-time lost, ppm (95% interval)")
    for axes, label in zip((left_axes, right_axes), labels, strict=True):
        axes.invert_yaxis()
        quiet(axes, "x", xlabel=label)


def _draw_failures(axes: Axes, cases: list[Case], places: list[float]) -> None:
    """Draw the failures of each case as a bar with a part for each kind of component."""
    means: list[tuple[float, ...]] = []
    labels: list[str] = []
    for wiring, estimates in cases:
        network = wiring.network
        labels.append(f"K = {wiring.domain_gpus}, radix {network.radix}, {network.design}")
        parts = (estimates.switch_failures, estimates.transceiver_failures)
        means.append(tuple(part.mean for part in (*parts, estimates.network_failures, estimates.access_failures)))
    switches, optics, everything, cut_off = np.array(means).T
    nics = everything - switches - optics
    base = np.zeros(len(cases))
    for name, colour, counts in (("switches", BLUE, switches), ("transceivers", ORANGE, optics), ("NICs", GREY, nics)):
        axes.barh(places, counts, left=base, color=colour, label=name, height=0.8)
        base = base + counts
    axes.plot(cut_off, places, "k|", markersize=18, label="cut GPUs off")
    axes.set_yticks(places, labels, fontsize=8)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=4, fontsize=8)


def _draw_lost_time(axes: Axes, estimates: list[model.Reliability], places: list[float]) -> None:
    """Draw the share of GPU-time that each case loses, with rerouting off and on."""
    for name, colour, shift, lost in (
        ("off", VERMILION, -0.2, attrgetter("lost")),
        ("on", GREEN, 0.2, attrgetter("lost_rerouted")),
    ):
        means: list[float] = []
        errors: list[float] = []
        for share in map(lost, estimates):
            means.append(1e6 * share.mean)
            errors.append(1e6 * (share.high - share.mean))
        at = [place + shift for place in places]
        axes.barh(at, means, xerr=errors, color=colour, ecolor=INK, height=0.38, label=f"rerouting {name}")
    axes.set_yticks(places, [""] * len(places))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=2, fontsize=8)
