"""Times: of fabrics beside the formulas, by policy, of rail-only's path beside the spine's; fidelity evidence."""

from collections.abc import Sequence
from math import log2
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from railyard.results.analysis.aggregate import FAITHFUL_RATIO, Row, Spread
from railyard.results.analysis.findings import Finding
from railyard.results.analysis.limits import LIMITS, Limit
from railyard.results.analysis.spine_condition import Cell
from railyard.results.analysis.steering import BASELINE_POLICY, ORACLE_POLICY, FabricWorkload, PolicyRow
from railyard.results.format import interval_label, percent, ratio, seconds, workload_label
from railyard.results.plots import style
from railyard.results.plots.svg import mark

MAX_BARS: Final = 14  # phases drawn of one workload, longest first; the table has all
_PREDICTED: Final = Line2D([], [], ls="none", marker="|", ms=12, mew=2, color=style.INK, label="predicted")


def completion(rows: Sequence[Row], fabrics: Sequence[str], name: str) -> style.Plot:
    """Bars are medians, dots the repeats, the mark what the formula predicts."""
    chosen = sorted(rows, key=lambda r: -max(s.median for s in r.by_fabric.values()))[:MAX_BARS]
    present = [f for f in fabrics if any(f in r.by_fabric for r in chosen)]
    palette = style.colours(fabrics)
    hatches = style.hatches(fabrics)
    with style.drawing(0.9 + len(chosen) * (0.16 + 0.24 * len(present))) as figure:
        axes = figure.subplots()
        for number, row in enumerate(chosen):
            for place, fabric in enumerate(present):
                if fabric in row.by_fabric:
                    y = number + (place - (len(present) - 1) / 2) * 0.8 / len(present)
                    look = {"color": palette[fabric], "hatch": hatches[fabric]}
                    _bar(
                        axes, y, 0.7 / len(present), look, row.by_fabric[fabric], (fabric, f"{label(row)} on {fabric}")
                    )
        axes.set_yticks(range(len(chosen)), [label(r) for r in chosen])
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(style.seconds_tick)
        axes.set_xlim(right=axes.get_xlim()[1] * 1.12)
        style.quiet(axes, grid="x")
        style.top_legend(figure, [*(_patch(palette[f], hatches[f], f) for f in present), _PREDICTED])
        times = [(label(r), [f"{f} {_median_text(s)}" for f, s in r.by_fabric.items()]) for r in chosen]
        alt_text = "; ".join(f"{what}: {', '.join(by_fabric)}" for what, by_fabric in times)
        return style.finish(figure, f"times-{name}", f"Times of {name}. {alt_text}")


def label(row: Row) -> str:
    """Return the label of a row of times: its phase, or the iteration as a whole."""
    return row.phase or ("iteration" if row.metric == "iteration_time" else row.workload)


def _median_text(found: Spread | PolicyRow) -> str:
    return seconds(found.median) + (f", predicted {seconds(found.predicted)}" if found.predicted else "")


def _patch(colour: str, hatch: str, name: str) -> Patch:
    """Return the legend's sample of a bar."""
    return Patch(facecolor=colour, edgecolor=style.PAPER, linewidth=0, hatch=hatch, label=name)


def _bar(
    axes: Axes, y: float, height: float, look: dict[str, Any], found: Spread, names: tuple[str, str], note: str = ""
) -> None:
    """Draw the median as a bar with its figure, repeats as dots, the prediction as an upright mark.

    `names`: of the series, and of what the bar shows, for its tooltip.
    """
    series, what = names
    colours = {"facecolor": look["color"], "edgecolor": style.PAPER, "hatch": look.get("hatch", "")}
    mark(
        axes.barh(y, found.median, height=height, alpha=0.85, lw=0, **colours), series, f"{what}: {_median_text(found)}"
    )
    if len(found.values) > 1:
        dots = axes.plot(found.values, [y] * len(found.values), "o", ms=3.4, mfc=style.PAPER, mec=style.INK, mew=0.7)
        mark(dots, series, *(f"{what}, repeat {n}: {seconds(value)}" for n, value in enumerate(found.values)))
    if found.predicted:
        ends = [y - height / 2, y + height / 2]
        line = axes.plot([found.predicted] * 2, ends, color=style.INK, lw=2, solid_capstyle="butt")
        mark(line, series, f"{what}: predicted {seconds(found.predicted)}")
    background = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}  # of the lines behind it
    where: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
    axes.annotate(
        seconds(found.median) + note, (max(*found.values, found.predicted or 0.0), y), bbox=background, **where
    )


def ratios(rows: Sequence[Row], fabrics: Sequence[str]) -> style.Plot | None:
    """Measured over predicted, a dot a repeat; the band is what a faithful run reaches. None: nothing was predicted."""
    chosen = [r for r in rows if any(s.displayed_ratio for s in r.by_fabric.values())]
    if not chosen:
        return None
    palette = style.colours(fabrics)
    markers = style.markers(fabrics)
    names = [f"{r.workload} · {label(r)}" if label(r) != r.workload else r.workload for r in chosen]
    with style.drawing(1.1 + 0.3 * len(chosen)) as figure:
        axes = figure.subplots()
        axes.axvspan(*FAITHFUL_RATIO, color=style.GREEN, alpha=0.15, lw=0)
        axes.axvline(1, color=style.MUTED, lw=1)
        for number, row in enumerate(chosen):
            for place, (fabric, spread) in enumerate(row.by_fabric.items()):
                if spread.displayed_ratio and spread.predicted:
                    y = number + (place - (len(row.by_fabric) - 1) / 2) * 0.3
                    dots = [v / spread.predicted for v in spread.values]
                    drawn = axes.plot(
                        dots, [y] * len(dots), markers[fabric], ms=5, alpha=0.7, mew=0, color=palette[fabric]
                    )
                    what = f"{names[number]} on {fabric}"
                    mark(drawn, fabric, *(f"{what}, repeat {n}: {ratio(dot)}" for n, dot in enumerate(dots)))
                    if len(dots) > 1:
                        drawn = axes.plot([spread.displayed_ratio], [y], "|", ms=11, mew=2.2, color=palette[fabric])
                        mark(drawn, fabric, f"{what}, median: {ratio(spread.displayed_ratio)}")
        axes.set_yticks(range(len(chosen)), names)
        axes.set(ylim=(len(chosen) - 0.4, -0.6), xlabel="measured / predicted")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.94), max(high, 1.08))
        style.quiet(axes, grid="x")
        handles = [Line2D([], [], marker=markers[f], ls="none", color=palette[f], label=f) for f in fabrics]
        if any(len(s.values) > 1 for r in chosen for s in r.by_fabric.values()):
            handles.append(Line2D([], [], marker="|", ls="none", ms=11, mew=2.2, color=style.INK, label="median"))
        style.top_legend(figure, handles)
        each = [", ".join(f"{f} {ratio(s.displayed_ratio)}" for f, s in r.by_fabric.items()) for r in chosen]
        alt_text = "; ".join(f"{name} {of_fabrics}" for name, of_fabrics in zip(names, each, strict=True))
        return style.finish(figure, "ratios", f"Measured over predicted: {alt_text}")


def evidence(findings: Sequence[Finding]) -> style.Plot | None:
    """Every finding on one scale: 0 is ideal, 1 where it becomes degraded, 2 where it becomes invalid. What may not be
    at all has no scale."""
    limits = [x for x in LIMITS if x.degraded and any(f.limit == x for f in findings)]
    if not limits:
        return None
    with style.drawing(0.8 + 0.34 * len(limits)) as figure:
        axes = figure.subplots()
        worst = []

        def place(value: float, limit: Limit) -> float:
            if value <= limit.degraded:
                return value / limit.degraded
            return min(2.9, 1 + (value - limit.degraded) / (limit.invalid - limit.degraded or 1.0))

        for left, colour in enumerate((style.GREEN, style.YELLOW, style.VERMILION)):
            axes.axvspan(left, left + 1, color=colour, alpha=0.14, lw=0)
        for number, limit in enumerate(limits):
            of_limit = [f for f in findings if f.limit == limit]
            values = [f.value for f in of_limit]
            places = [place(f.value, f.limit) for f in of_limit]
            dots = axes.plot(
                places, [number] * len(places), "o", ms=5, alpha=0.45, mew=0, color=style.INK, clip_on=False
            )
            mark(dots, "", *(f"{interval_label(f.interval)}: {limit.show(f.value)}" for f in of_limit))
            axes.text(3.04, number, f"worst {limit.show(max(values))}", va="center")
            worst.append(f"{limit.quantity} at worst {limit.show(max(values))}")
        axes.set_yticks(range(len(limits)), [x.quantity for x in limits])
        axes.set(xlim=(0, 3), ylim=(len(limits) - 0.5, -0.5))
        axes.set_xticks([0.5, 1.5, 2.5], ["ok", "degraded", "invalid"])
        style.quiet(axes)
        axes.tick_params(axis="y", pad=9)  # a dot at zero is as wide as this
        return style.finish(figure, "evidence", f"Fidelity evidence, all intervals: {'; '.join(worst)}")


POLICY_COLOURS: Final = {BASELINE_POLICY: style.GREY, ORACLE_POLICY: style.YELLOW}


def policies(rows: Sequence[PolicyRow], fabric_workload: FabricWorkload) -> style.Plot:
    """A bar a policy, its length the median; dots are the repeats, the upright mark is predicted."""
    name = f"{workload_label(fabric_workload[1])} on {fabric_workload[0]}"
    with style.drawing(1.0 + 0.36 * len(rows)) as figure:
        axes = figure.subplots()
        axes.set_yticks(range(len(rows)), [row.policy for row in rows])
        handles = list[Patch | Line2D]()
        alt_parts = []
        for y, row in enumerate(rows):
            is_compared = row.over_dr is not None and row.policy != BASELINE_POLICY
            look = {"color": POLICY_COLOURS.get(row.policy, style.SKY)}
            note = f" · {BASELINE_POLICY} / this {row.over_dr:.2f}" if is_compared else ""
            _bar(axes, y, 0.62, look, Spread(row.times, row.predicted), ("", row.policy), note)
            faster = f", {BASELINE_POLICY} takes {row.over_dr:.2f} times as long" if is_compared else ""
            alt_parts.append(f"{row.policy} {_median_text(row)}{faster}")
            if row.policy in POLICY_COLOURS:
                axes.axvline(row.median, color=POLICY_COLOURS[row.policy], lw=1.2, ls=(0, (4, 3)), zorder=0.5)
                axes.get_yticklabels()[y].set_fontweight("bold")
                handles.append(Patch(color=POLICY_COLOURS[row.policy], label=row.policy))
        if any(len(row.times) > 1 for row in rows):
            repeat: dict[str, Any] = {"marker": "o", "ms": 4, "mfc": style.PAPER, "mec": style.INK}
            handles.append(Line2D([], [], ls="none", label="a repeat", **repeat))
        if any(row.predicted for row in rows):
            handles.append(_PREDICTED)
        style.top_legend(figure, handles)
        axes.set(ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlim(0, axes.get_xlim()[1] * 1.16)
        axes.xaxis.set_major_formatter(style.seconds_tick)
        style.quiet(axes, grid="x")
        alt_text = "; ".join(alt_parts)
        return style.finish(figure, f"policies-{name}", f"Times of {name} by policy. {alt_text}")


# the middle colour stays light on a dark page: there neither way is better
_RAMP: Final = LinearSegmentedColormap.from_list("ways", (style.VERMILION, "#f2f3f4", style.GREEN))
_TEXT_COLOUR: Final = "#111111"
_MAX_LOG2_RATIO: Final = 3.0  # factors of two at which the colour is full


def spine_condition(cells: Sequence[Cell], name: str) -> style.Plot:
    """One pair's cells. Green: rail-only's way is sooner there; red: the spine's. A cross: the papers say otherwise."""
    grid = cells[0].scene.grid
    papers = ("" if c.agrees else f", but the papers say {c.predicted}" for c in cells)
    alt_text = "; ".join(f"{c.scene.name}: {c.measured}{other}" for c, other in zip(cells, papers, strict=True))
    alt_text = f"Which way has the lower latency, {name}. {alt_text}"
    spines = grid.loads if grid.spine else (0.0,)
    with style.drawing(0.9 + style.WIDTH / max(3, len(spines))) as figure:
        panels = figure.subplots(1, max(3, len(spines)), squeeze=False, sharey=True)[0]
        for axes in panels[len(spines) :]:
            axes.set_visible(False)
        rails, domains = (grid.loads if is_varied else (0.0,) for is_varied in (grid.rails, grid.domains))
        norm = Normalize(-_MAX_LOG2_RATIO, _MAX_LOG2_RATIO, clip=True)
        for axes, spine in zip(panels, spines, strict=False):
            for cell in (c for c in cells if c.scene.spine == spine):
                x = rails.index(cell.scene.rail)
                y = domains.index(cell.scene.domain)
                factor = cell.latency["spine"] / cell.latency["rail-only"]
                axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=_RAMP(norm(log2(factor))), lw=0))
                text = f"× {max(factor, 1 / factor):.2f}"
                axes.text(x, y, text, ha="center", va="center", color=_TEXT_COLOUR, fontsize=10)
                if not cell.agrees:
                    axes.plot(x + 0.34, y - 0.34, "x", ms=8, mew=2, color=_TEXT_COLOUR)
            axes.set(xlim=(-0.5, len(rails) - 0.5), ylim=(len(domains) - 0.5, -0.5), aspect="equal")
            axes.set_xticks(range(len(rails)), [percent(load, 0) for load in rails])
            axes.set_yticks(range(len(domains)), [percent(load, 0) for load in domains])
            axes.spines[["left", "bottom"]].set_visible(False)
            style.quiet(axes, xlabel="rail of the source", title=f"spines {percent(spine, 0)}" if grid.spine else "")
        panels[0].set_ylabel("HB domain of the source")
        cross: dict[str, Any] = {"ls": "none", "marker": "x", "ms": 8, "mew": 2, "color": style.INK}
        handles = [
            Patch(color=style.GREEN, label="rail-only's way is sooner"),
            Patch(color=style.VERMILION, label="the spine's is"),
            Line2D([], [], **cross, label="the papers' condition disagrees"),
        ]
        style.top_legend(figure, handles)
        caption = "In each cell: the slower way's latency over the other's."
        return style.finish(figure, f"rail-only-{name}", alt_text, caption)
