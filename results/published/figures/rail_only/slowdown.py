"""MoE all-to-all, Eq. 3 over Eq. 2, for each platform (Rail-only section IV-B)."""

from collections.abc import Iterator
from itertools import product
from typing import Final

import matplotlib.figure

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.predict import full_step_s
from railyard.topologies.platforms import PLATFORMS, Platform
from railyard.topologies.spec import FabricSpec
from railyard.workloads import spec as workloads
from railyard.workloads.collectives.all_to_all_two_phase import forwarding_share

DOMAINS: Final = (2, 4, 8, 16, 32, 64, 128, 256)  # numbers of HB domains, y
PAPER: Final = (8, 16)  # x and y of Fig. 5: 16 DGX of 8.
CLAIMED_PCT: Final = {"a100": 8.2, "h100": 11.2}
NEGLIGIBLE_PCT: Final = 2.0
"""Our bar for what the text calls negligible of a whole step; it gives no number."""
JOB: Final = {"kind": "moe", "model": "moe-1.3b-128"}


def figure() -> Figure:
    """Every platform, with x = 8 as in the paper, and with all GPUs of its HB domain."""
    x, y = PAPER
    claims: list[Claim] = []
    for name, published in CLAIMED_PCT.items():
        platform = PLATFORMS[name]
        rates = f"{platform.rail_bps / 1e9:g} over {platform.hb_bps / 1e9:g} Gbit/s"
        divided = f"{rates}; the text doesn't say what it divides"
        square = "the text takes y(x-1) for x(y-1), which holds where x = y"
        label = f"{name}: Eq. 3 over Eq. 2 at x={x}, y={y}"
        ours = _slowdown_pct(platform, x, y)
        claims.append(Claim(f"{name}: C_S/C_F", published, 100 / platform.ratio, "%", 0.05, note=divided))
        claims.append(Claim(label, published, ours, "%", 0.05, note=square))
        claims.append(_near_optimal(name, ours))
        claims += _whole_step(platform, published)
    rows: list[tuple[Cell, ...]] = []
    for platform in PLATFORMS.values():
        # both are 8 on a DGX
        for gpus, domains in product(dict.fromkeys((x, platform.domain_gpus)), DOMAINS):
            slowdown_pct = _slowdown_pct(platform, gpus, domains)
            rows.append((platform.name, gpus, domains, slowdown_pct, 100 / platform.ratio))
    return Figure(
        title="What forwarding adds to an all-to-all on rail-only",
        source="Rail-only section IV-B, Eq. 2 and 3",
        columns=("platform", "x", "y", "slowdown_pct", "cs_over_cf_pct"),
        rows=rows,
        draw=_draw,
        claims=tuple(claims),
        notes=(
            "Eq. 3 adds y(x-1)C_S / (x(y-1)C_F) to Eq. 2: C_S/C_F only where x = y. Within x = 8 no y gives both of "
            f"the text's figures: at y = 9 it is {_slowdown_pct(PLATFORMS['a100'], 8, 9):.2f}% for the A100, but "
            f"{_slowdown_pct(PLATFORMS['h100'], 8, 9):.2f}% for the H100.",
        ),
    )


def _slowdown_pct(platform: Platform, x: int, y: int) -> float:
    """Eq. 3 over Eq. 2, less 1. Rates in bit/s, since only their ratio counts."""
    return 100 * forwarding_share(x, y, platform.hb_bps, platform.rail_bps)


def _near_optimal(name: str, slowdown_pct: float) -> Claim:
    """Return the claim that forwarding is near-optimal (III-C): on any route the NICs carry what Eq. 2 counts."""
    x, y = PAPER
    label = f"{name}: forwarding all-to-all over the bound (Eq. 3 over Eq. 2), x={x}, y={y}"
    note = "the papers give no number, so 10% is our bar, as for an AllGather; Eq. 3 has one step after the other"
    return Claim(label, 1, 1 + slowdown_pct / 100, "times", 0.1, note=note, stated="near-optimal means")


def _whole_step(platform: Platform, published: float) -> Iterator[Claim]:
    """Yield what rail-only adds to a step of the published job with all of its computing (Amdahl's law).

    Section IV-B calls that negligible; by the introduction the job's throughput falls by `published`, in percent.
    """
    seconds: list[float] = []
    for kind in ("rail-only", "rail-optimized"):
        # the size of the emulated fabric has no part in it
        fabric = FabricSpec(kind=kind, domains=2, rails=2, platform=platform.name)
        built = workloads.build(workloads.parse_workload(JOB), fabric, platform.rail_bps, platform.hb_bps)
        step_s = full_step_s(built.scale, fabric)
        if step_s is None:
            raise ValueError(f"{JOB['model']} has no published job")
        seconds.append(step_s)
    label = f"{platform.name}: added to a whole step of MoE-1.3B"
    added_pct = 100 * (seconds[0] / seconds[1] - 1)
    yield Claim(label, NEGLIGIBLE_PCT, added_pct, "%", bound="at most", stated="negligible means")
    lost_pct = 100 * (1 - seconds[1] / seconds[0])
    note = "the introduction has the number of the all-to-all, which is only a part of the step"
    yield Claim(f"{platform.name}: throughput that MoE-1.3B loses", published, lost_pct, "%", within=1.0, note=note)


def _draw(drawn: matplotlib.figure.Figure) -> None:
    left_axes, right_axes = drawn.subplots(1, 2, sharey=True)
    for axes, title, all_gpus in (
        (left_axes, "x = 8 GPUs of each domain", False),
        (right_axes, "all GPUs of each domain", True),
    ):
        # names of platforms whose lines are one, by x and C_F/C_S
        alike: dict[tuple[int, float], list[str]] = {}
        for platform in PLATFORMS.values():
            x = platform.domain_gpus if all_gpus else PAPER[0]
            alike.setdefault((x, platform.ratio), []).append(platform.name)
        for colour, ((x, ratio), names) in zip(style.SERIES, alike.items(), strict=False):
            heights = [100 * forwarding_share(x, y, ratio, 1.0) for y in DOMAINS]
            label = f"{', '.join(names)}: x = {x}, C_F/C_S = {ratio:g}"
            axes.plot(DOMAINS, heights, marker="o", markersize=3, color=colour, label=label)
        style.log2_ticks(axes, DOMAINS)
        axes.tick_params(axis="x", labelsize=8)
        axes.minorticks_off()
        axes.legend(fontsize=8)
        style.quiet(axes, "y", title=title, xlabel="HB domains, y")
    for name, published in CLAIMED_PCT.items():
        left_axes.axhline(published, color=style.GREY, linestyle=":", linewidth=1)
        text = f"the text's {published}% ({name})"
        left_axes.annotate(text, (DOMAINS[-1], published), ha="right", va="bottom", fontsize=8)
    left_axes.set(ylabel="added to the all-to-all, %", ylim=(0, None))
