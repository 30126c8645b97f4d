"""Traffic by GPU pair (heatmap) and by kind (shares), from delivered bytes (Rail-only Fig. 2 to 5)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator

from railyard.experiments.measures.workloads.report.traffic import Grid, kind_bytes, matrix, one_repeat
from railyard.results.format import percent, short, size
from railyard.results.plots import style
from railyard.results.plots.svg import mark
from railyard.results.plots.traffic import byte_image, byte_limits
from railyard.results.runs.records import Flow
from railyard.topologies.addresses import Gpu, gpu_of_name

_RAMP: Final = ("#d6e6f4", "#6aaed6", "#2070b4", "#083471")
# light on dark pages too: there, no traffic must not look like the most of it
_EMPTY_COLOUR: Final = "#f6f8fa"
# share of a bar: narrower parts can't hold their percentage
MIN_LABELLED: Final = 0.04
# GPUs: with more, outlines of single cells would cover the cells
_OUTLINED: Final = 128


def heatmap(flows: Sequence[Flow], grid: Grid, name: str, limits: tuple[float, float] | None = None) -> style.Plot:
    """Draw bytes, sender down, receiver across, with outlines of HB domains and of pairs of one rail.

    `limits`: least and most bytes of the colour scale, which heatmaps that are compared share; of these flows if None.
    """
    total = matrix(flows, grid)
    with style.drawing(style.WIDTH / 2 * 0.84, style.WIDTH / 2) as figure:
        axes = figure.subplots()
        axes.set_facecolor(_EMPTY_COLOUR)
        if total.any():
            low, high = limits or byte_limits(total)
            bar = byte_image(axes, total, _RAMP, 0.85, 9, (low, high))
            if high / low >= 100:
                bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0,), numticks=9))
            bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(size(value))))
            bar.outline.set_visible(False)
        else:
            axes.set(xlim=(-0.5, len(total) - 0.5), ylim=(len(total) - 0.5, -0.5), aspect="equal")
        _outline(axes, grid)
        step = max(1, grid.domains // 8)
        labelled_domains = range(0, grid.domains, step)
        places = [domain * grid.rails + (grid.rails - 1) / 2 for domain in labelled_domains]
        names = [f"d{domain}" for domain in labelled_domains]
        axes.set_xticks(places, names, fontsize=9)
        axes.set_yticks(places, names, fontsize=9)
        axes.spines[:].set_visible(False)
        style.quiet(axes, xlabel="receiver, by HB domain", ylabel="sender, by HB domain")
        most = size(float(total.max()))
        alt = (
            f"Heatmap of {name}: bytes delivered between pairs of {grid.gpus} GPUs, at most {most} for a pair, on a "
            f"logarithmic colour scale; {grid.domains} HB domains outlined on the diagonal, rails beside"
        )
        return style.finish(figure, f"heatmap-{name}", alt, pair_shares(flows, grid))


def _outline(axes: Axes, grid: Grid) -> None:
    """Outline HB domains, and the cells of pairs of one rail."""

    def square(x: float, y: float, side: float) -> Path:
        return Path([(x, y), (x + side, y), (x + side, y + side), (x, y + side), (x, y)], closed=True)

    domain_outlines: list[Path] = []
    for domain in range(grid.domains):
        corner = domain * grid.rails - 0.5
        domain_outlines.append(square(corner, corner, grid.rails))
    # pairs of one rail lie on diagonals, K apart
    last = grid.gpus - 1
    rail_outlines: list[Path] = []
    for domains_apart in range(1 - grid.domains, grid.domains):
        offset = domains_apart * grid.rails
        if offset == 0:
            continue
        first_row = max(-offset, 0)
        last_row = last - max(offset, 0)
        if grid.gpus > _OUTLINED:
            # too many cells for a square each: one line for all
            rail_outlines.append(Path([(first_row + offset, first_row), (last_row + offset, last_row)]))
            continue
        for row in range(first_row, last_row + 1):
            rail_outlines.append(square(row + offset - 0.44, row - 0.44, 0.88))
    cell = 250 / grid.gpus  # points across a cell, about
    looks = ((domain_outlines, style.DOMAIN, 1.6), (rail_outlines, style.RAIL_PAIRS, min(1.1, cell / 6 + 0.1)))
    for parts, colour, width in looks:
        if parts:
            path = Path.make_compound_path(*parts)
            axes.add_patch(PathPatch(path, facecolor="none", edgecolor=colour, linewidth=width, clip_on=False))


_LOCALITIES: Final = ("within HB domains", "within rails", "across both")


def pair_shares(flows: Iterable[Flow], grid: Grid) -> str:
    """`HB domains carry 96.1% of the bytes, ...; 81.2% of GPU pairs carry none`, as Fig. 2b has it."""
    sizes: defaultdict[str, int] = defaultdict(int)
    pairs = set()
    for flow in one_repeat(flows):
        src = gpu_of_name(flow.src)
        dst = gpu_of_name(flow.dst)
        sizes[_locality(src, dst, grid)] += flow.delivered
        if flow.delivered:
            pairs.add((src, dst))
    total = sum(sizes.values())
    if not total:
        return "Nothing was delivered."
    shares = [f"{percent(sizes[locality] / total)} {locality}" for locality in _LOCALITIES]
    idle_share = 1 - len(pairs) / (grid.gpus * (grid.gpus - 1))
    return f"{size(total)} delivered: {', '.join(shares)}. {percent(idle_share)} of GPU pairs carry nothing."


def _locality(src: Gpu, dst: Gpu, grid: Grid) -> str:
    """Return whether a pair is within an HB domain, within a rail, or neither."""
    if src.domain == dst.domain:
        return "within HB domains"
    rail_of = grid.nics or range(grid.rails)
    if rail_of[src.rank] == rail_of[dst.rank]:
        return "within rails"
    return "across both"


def volumes(by_workload: Mapping[str, Sequence[Flow]]) -> style.Plot:
    """Shares of the delivered bytes by kind, a bar a workload (Rail-only Fig. 2a and 5a)."""
    totals = {name: kind_bytes(one_repeat(flows)) for name, flows in by_workload.items()}
    kinds = style.kind_colours(chain.from_iterable(totals.values()))
    with style.drawing(0.9 + 0.5 * len(by_workload)) as figure:
        axes = figure.subplots()
        for row, (name, sizes) in enumerate(totals.items()):
            _draw_shares(axes, row, name, sizes, kinds)
        labels = [f"{name}\n{size(sum(sizes.values()))}" for name, sizes in totals.items()]
        axes.set_yticks(range(len(totals)), labels)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        style.quiet(axes)
        style.top_legend(figure, [Patch(color=colour, label=kind) for kind, colour in kinds.items()])
        texts = [f"{name}: {_sizes_text(sizes)}" for name, sizes in totals.items()]
        return style.finish(figure, "volumes", f"Traffic by kind. {'; '.join(texts)}")


def _sizes_text(sizes: Mapping[str, int]) -> str:
    """Return the bytes of each kind in words."""
    parts = [f"{kind} {size(kind_size)}" for kind, kind_size in sizes.items()]
    return ", ".join(parts)


def _draw_shares(axes: Axes, row: int, name: str, sizes: Mapping[str, int], kinds: Mapping[str, str]) -> None:
    """Draw a bar of the shares of all kinds. `sizes`: bytes by kind; `kinds`: the colour of each."""
    total = sum(sizes.values()) or 1
    begin = 0.0
    for kind, colour in kinds.items():
        kind_size = sizes.get(kind, 0)
        share = kind_size / total
        bar = axes.barh(row, share, left=begin, height=0.6, color=colour, edgecolor=style.PAPER, linewidth=1)
        mark(bar, kind, f"{name}, {kind}: {size(kind_size)}, {percent(share)}")
        if share >= MIN_LABELLED:
            where: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}
            axes.text(begin + share / 2, row, percent(share), color=style.ink_on(colour), **where)
        begin += share
