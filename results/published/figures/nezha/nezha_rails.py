"""Rails one by one and side by side: gains by ratio, shares by size, processors as the limit (Nezha Fig. 2 to 14)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.nezha import (
    CORES_OF_A_RAIL,
    GLEX_AND_TCP_PCT,
    GLEX_FASTER_FROM,
    KB,
    LARGE,
    LONGER_BESIDE_ANOTHER_PCT,
    LOSS_WITH_26_CORES_PCT,
    MB,
    NIC_RATE,
    ONE_PERCENT_S,
    RATES_AT_32_KB,
    SHARP_GAIN,
    SMALL,
    TAU,
)
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.workloads.allreduce.balancing.costs import Rail, allreduce_cost, ideal_shares, paper_rail
from railyard.workloads.allreduce.engine_kind import predicted_s

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

RATIOS: Final = (1, 2, 3, 4, 5, 6, 8, 10)
SIZES: Final = (LARGE, 2 * MB, 8 * MB, 64 * MB)
NODES: Final = (4, 8)
UNLIKE_PAIRS: Final = (("tcp", "sharp"), ("tcp", "glex"))
# Fig. 13: the rates of its two NICs, bit/s
SLOW_NIC_BPS: Final = 1e9
FAST_NIC_BPS: Final = 100e9
FIG_13_NODES: Final = 4
# the rails' costs were fitted to Table 1, on 4 nodes
FITTED_NODES: Final = 4
FITTED: Final = "the rails' costs were fitted to Table 1 and to this, so this is a fitted row"


def figure() -> Figure:
    """Fig. 2, 3, 4, 8, 11, 13 and 14 by Eq. 1 to 5, with the paper's rails."""
    rows: list[tuple[Cell, ...]] = []
    for ratio in RATIOS:
        rows.append(("Fig. 3", "two rings", None, f"rho {ratio}", "gain_pct", ideal_gain_pct(ratio)))
    for kinds in UNLIKE_PAIRS:
        for nodes in NODES:
            for size in SIZES:
                pair = "+".join(kinds)
                rows.append(("Fig. 11", pair, nodes, f"{size} bytes", "share_pct", _share_pct(kinds, nodes, size)))
    for bps in (SLOW_NIC_BPS, FAST_NIC_BPS):
        for name, seconds in _fig_13_s(bps, 8 * MB).items():
            rows.append(("Fig. 13", name, FIG_13_NODES, f"{bps:.0f} bit/s, 8 MB", "seconds", seconds))
    return Figure(
        title="Rails side by side: gains, shares, and processors",
        source="Nezha Fig. 2, 3, 4, 8, 11, 13 and 14, sections 2.2.2, 2.3, 4.4, 5.2.3, 5.2.4 and 5.3.2, Eq. 1 to 5",
        columns=("figure", "rails", "nodes", "where", "quantity", "value"),
        rows=rows,
        draw=_draw,
        claims=(
            *_rail_claims(),
            *_ratio_claims(),
            *_core_claims(),
            *_share_claims(),
            *_nic_claims(),
            *_byte_claims(),
        ),
        notes=(
            "Fig. 3: two rails that end together carry 1 + 1/rho times what the faster one carries alone.",
            "Fig. 11: the share of the rail that isn't TCP, at which both rails end together.",
            "Fig. 2, 4, 8, 11 and 14 have no numbers in the text but those of the claims.",
        ),
    )


def ideal_gain_pct(ratio: float) -> float:
    """Return by how many percent a second rail raises the throughput of one `ratio` times as fast (Fig. 3)."""
    return 100 / ratio


def _rail_claims() -> list[Claim]:
    """Return claims on SHARP, TCP and GLEX one by one (2.2.2; 2.3.1, Fig. 2)."""
    costs = {kind: allreduce_cost(paper_rail(kind), FITTED_NODES) for kind in ("sharp", "tcp", "glex")}
    claims: list[Claim] = []
    note = "half of it on both rails; by Table 1 SHARP moves 0.38 GB/s at 8 MB and 0.37 at 64 MB"
    for kind, stated in RATES_AT_32_KB.items():
        rate = 32 * KB / costs[kind].seconds(32 * KB)
        claims.append(Claim(f"32 KB, {kind} alone", stated / 1e9, rate / 1e9, "GB/s", 0.1 * stated / 1e9, note=note))
    stated_ratio = RATES_AT_32_KB["sharp"] / RATES_AT_32_KB["tcp"]
    ratio = costs["tcp"].seconds(32 * KB) / costs["sharp"].seconds(32 * KB)
    claims.append(Claim("32 KB, sharp over tcp", stated_ratio, ratio, "times", 0.1 * stated_ratio, note=FITTED))
    # the lines of both cross at this size
    saved_setup_s = costs["glex"].setup_s - costs["sharp"].setup_s
    glex_from = saved_setup_s / (costs["sharp"].s_per_byte - costs["glex"].s_per_byte)
    first, last = GLEX_FASTER_FROM
    sizes_kb = (first / KB, last / KB)
    note = f"on 4 nodes; {FITTED}"
    claims.append(_within_range("size from which glex is faster than sharp", sizes_kb, glex_from / KB, "KB", note))
    medium = 2 * SMALL
    gain = costs["tcp"].seconds(medium) / costs["sharp"].seconds(medium)
    note = "over TCP, at 256 KB, between the paper's small and large sizes; the text says neither"
    claims.append(_within_range("256 KB, sharp over tcp", SHARP_GAIN, gain, "times", note))
    return claims


def _within_range(quantity: str, stated: tuple[float, float], ours: float, unit: str, note: str) -> Claim:
    """Return the claim of which the paper states the least and the most."""
    least, most = stated
    middle = f"middle of {least:g} to {most:g}"
    return Claim(quantity, (least + most) / 2, ours, unit, (most - least) / 2, note=note, stated=middle)


def _ratio_claims() -> list[Claim]:
    """Return claims on Fig. 3 and tau."""
    best_ratio = max(RATIOS, key=ideal_gain_pct)
    # A rail that loses the part p while another one carries data gains nothing by it from rho = 1/p on. tau has to hold
    # for the rail that loses most.
    loss_pct = max(pct for (_, nodes), pct in LONGER_BESIDE_ANOTHER_PCT.items() if nodes == 4)
    gains_pct = map(ideal_gain_pct, RATIOS)
    rising = sum(after >= before for before, after in pairwise(gains_pct))
    return [
        Claim("rho with the largest gain", 1, best_ratio, "times"),
        Claim("steps to a larger rho at which the gain does not fall", 0, rising, f"of {len(RATIOS) - 1} steps"),
        Claim(
            "rho from which the losses of Fig. 14 take the whole gain",
            TAU,
            100 / loss_pct,
            "times",
            1.0,
            note="of GLEX, which loses most: 17.5%",
        ),
    ]


def _core_claims() -> list[Claim]:
    """Return the claim on two rails with half of the cores each."""
    peak_sum = 0.0
    limited_sum = 0.0
    for kind in ("glex", "tcp"):
        peak = 1 / allreduce_cost(paper_rail(kind), 8).s_per_byte
        peak_sum += peak
        limited_sum += peak * (1 - LOSS_WITH_26_CORES_PCT[kind] / 100)
    note = (
        "the losses that the same section gives for 26 cores make less than the stated one, if it means 26 cores for "
        "each rail, and not for three rails together"
    )
    return [
        Claim(
            f"GLEX and TCP with {CORES_OF_A_RAIL} cores each, of the sum of their peaks",
            GLEX_AND_TCP_PCT,
            100 * limited_sum / peak_sum,
            "%",
            5.0,
            note=note,
        )
    ]


def _share_claims() -> list[Claim]:
    """Return claims on Fig. 11: MRIB's shares are fixed, Nezha's vary with sizes and nodes."""
    claims: list[Claim] = []
    for kinds in UNLIKE_PAIRS:
        by_size = [_share_pct(kinds, 4, size) for size in SIZES]
        by_nodes = [_share_pct(kinds, nodes, 2 * MB) for nodes in NODES]
        pair = "+".join(kinds)
        # the text states that shares vary, without numbers: a point is the least that a figure shows
        size_spread = max(by_size) - min(by_size)
        node_spread = max(by_nodes) - min(by_nodes)
        claims.append(Claim(f"{pair}: shares vary with the size by", 1, size_spread, "points", bound="at least"))
        claims.append(Claim(f"{pair}: shares vary with the nodes by", 1, node_spread, "points", bound="at least"))
    return claims


def _share_pct(kinds: Sequence[str], nodes: int, size: int) -> float:
    """Return the share of the second rail, at which both end together."""
    costs = [allreduce_cost(paper_rail(kind), nodes) for kind in kinds]
    return 100 * ideal_shares(costs, size)[1]


def _nic_claims() -> list[Claim]:
    """Return claims on Fig. 13: two channels on one NIC help where the processor is the limit, and only there."""
    slow = _fig_13_s(SLOW_NIC_BPS, 64 * MB)
    fast = _fig_13_s(FAST_NIC_BPS, 64 * MB)
    return [
        Claim("1 Gbit/s: two channels over one", 1, slow["one NIC, two channels"] / slow["one NIC"], "times", 0.005),
        Claim(
            "100 Gbit/s: two channels over one",
            0.9,
            fast["one NIC, two channels"] / fast["one NIC"],
            "times",
            bound="at most",
            note="the text says significantly lower; 10% is our bar",
        ),
        Claim(
            "100 Gbit/s: two channels on one NIC over two NICs",
            1,
            fast["one NIC, two channels"] / fast["two NICs"],
            "times",
            0.1,
            note="the text says slightly higher; 10% is our bar",
        ),
    ]


def _fig_13_s(nic_bps: float, size: int) -> dict[str, float]:
    """Return the seconds of an allreduce on TCP rails with such NICs: one, one with two channels, and two."""
    rails: list[Rail] = []
    for name in ("eth1", "eth2"):
        rails.append(replace(paper_rail("tcp"), name=name, rate=min(nic_bps, RAIL_KINDS["tcp"].rate_bps) / 8))
    return {
        "one NIC": predicted_s("single:eth1", rails, FIG_13_NODES, size),
        "one NIC, two channels": predicted_s("virtual", rails, FIG_13_NODES, size),
        "two NICs": predicted_s("equal", rails, FIG_13_NODES, size),
    }


def _byte_claims() -> list[Claim]:
    """Return claims on what a NIC carries (Fig. 8), and on 1% of the data of AlexNet's allreduces (Fig. 14)."""
    tcp = paper_rail("tcp")
    rate = 1 / tcp.s_per_byte / KB
    stated_rate = NIC_RATE / KB
    rate_note = "by Table 1 a ring's 96 MB in 316 ms are 311,000 KB/s; the text states neither nodes nor size of Fig. 8"
    least_s, most_s = ONE_PERCENT_S
    # Fig. 15: AlexNet's allreduces have up to 4 MB
    share_s = allreduce_cost(tcp, FITTED_NODES).seconds(0.01 * 4 * MB)
    share_note = "of 4 MB, the largest of AlexNet's allreduces"
    nic_share_pct = _share_pct(("tcp", "tcp"), FITTED_NODES, 8 * MB)
    return [
        Claim("two TCP rails: share of a NIC", 50, nic_share_pct, "%", 0.5),
        Claim("two TCP rails: rate of a NIC", stated_rate, rate, "KB/s", 0.1 * stated_rate, note=rate_note),
        _within_range("1% of 4 MB on tcp", (1e3 * least_s, 1e3 * most_s), 1e3 * share_s, "ms", share_note),
    ]


def _draw(drawn: "matplotlib.figure.Figure") -> None:
    left_axes, right_axes = drawn.subplots(1, 2)
    left_axes.plot(RATIOS, [ideal_gain_pct(ratio) for ratio in RATIOS], "o-", color=style.SERIES[0])
    left_axes.axvline(TAU, color=style.SERIES[1], linewidth=1, label=f"tau = {TAU}")
    left_axes.legend()
    style.quiet(left_axes, "y", xlabel="rho: throughput of the faster rail over the slower", ylabel="gain, %")
    _draw_shares(right_axes)


def _draw_shares(axes: "matplotlib.axes.Axes") -> None:
    number = 0
    for kinds in UNLIKE_PAIRS:
        for nodes in NODES:
            shares = [_share_pct(kinds, nodes, size) for size in SIZES]
            label = f"{'+'.join(kinds)}, {nodes} nodes"
            axes.plot(SIZES, shares, "o-", color=style.SERIES[number], label=label)
            number += 1
    axes.legend(fontsize=8)
    style.quiet(axes, "y", xscale="log", xlabel="size, bytes", ylabel="share of the rail that isn't TCP, %")
