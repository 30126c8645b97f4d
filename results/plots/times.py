"""Times of the fabrics side by side with what the formulas say, and how near the measured came to the predicted."""

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from railyard.results.analysis.aggregate import Row
from railyard.results.plots import style
from railyard.results.runs.fidelity import LIMITS, Finding, Limit
from railyard.results.views.format import ratio, seconds, short

MAX_BARS: Final = 14  # phases drawn of one workload, longest first; the table has all
FAITHFUL_RATIO: Final = (0.97, 1.05)  # measured over predicted: what a faithful run reaches


def completion(rows: Sequence[Row], fabrics: Sequence[str], name: str) -> style.Plot:
    """Bars are medians, dots the repeats, the mark what the formula predicts."""
    chosen = sorted(rows, key=lambda r: -max(s.median for s in r.by_fabric.values()))[:MAX_BARS]
    present = [f for f in fabrics if any(f in r.by_fabric for r in chosen)]
    palette = style.colours(fabrics)
    with style.styled():
        figure = style.new_figure(style.WIDTH, 0.9 + len(chosen) * (0.16 + 0.24 * len(present)))
        axes = figure.subplots()
        for number, row in enumerate(chosen):
            for place, fabric in enumerate(present):
                if fabric in row.by_fabric:
                    y = number + (place - (len(present) - 1) / 2) * 0.8 / len(present)
                    _bar(axes, row, fabric, y, 0.7 / len(present), palette[fabric])
        axes.set_yticks(range(len(chosen)), [label(r) for r in chosen])
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(FuncFormatter(_seconds_tick))
        axes.set_xlim(right=axes.get_xlim()[1] * 1.12)
        style.quiet(axes, grid="x")
        mark = Line2D(
            [], [], color=style.INK, marker="|", markersize=12, markeredgewidth=2, linestyle="none", label="predicted"
        )
        handles = [*(Patch(color=palette[f], label=f) for f in present), mark]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
        alt_text = "; ".join(f"{label(r)}: " + ", ".join(_alt_text(r, f) for f in r.by_fabric) for r in chosen)
        return style.finish(figure, f"times-{name}", f"Times of {name}. {alt_text}")


def label(row: Row) -> str:
    """What a row of times is called: its phase, or the iteration as a whole."""
    return row.phase or ("iteration" if row.metric == "iteration_time" else row.workload)


def _alt_text(row: Row, fabric: str) -> str:
    spread = row.by_fabric[fabric]
    expected = f", predicted {seconds(spread.predicted)}" if spread.predicted else ""
    return f"{fabric} {seconds(spread.median)}{expected}"


def _seconds_tick(value: float, _: int | None) -> str:
    return "0" if value == 0 else short(seconds(value))


def _bar(axes: Axes, row: Row, fabric: str, y: float, height: float, colour: str) -> None:
    spread = row.by_fabric[fabric]
    axes.barh(y, spread.median, height=height, color=colour, alpha=0.85)
    if len(spread.values) > 1:
        axes.plot(spread.values, [y] * len(spread.values), "o", ms=3.2, mfc=style.PAPER, mec=style.INK, mew=0.7)
    if spread.predicted:
        axes.plot(
            [spread.predicted] * 2, [y - height / 2, y + height / 2], color=style.INK, lw=2, solid_capstyle="butt"
        )
    end = max(*spread.values, spread.predicted or 0.0)
    axes.annotate(seconds(spread.median), (end, y), (6, 0), textcoords="offset points", va="center", fontsize=9)


def ratios(rows: Sequence[Row], fabrics: Sequence[str]) -> style.Plot | None:
    """Measured over predicted, a dot a repeat; the band is what a faithful run reaches. None: nothing was predicted."""
    chosen = [r for r in rows if any(s.predicted for s in r.by_fabric.values())]
    if not chosen:
        return None
    palette = style.colours(fabrics)
    with style.styled():
        figure = style.new_figure(style.WIDTH, 1.1 + 0.3 * len(chosen))
        axes = figure.subplots()
        axes.axvspan(*FAITHFUL_RATIO, color=style.GREEN, alpha=0.15, lw=0)
        axes.axvline(1, color=style.MUTED, lw=1)
        for number, row in enumerate(chosen):
            for place, (fabric, spread) in enumerate(row.by_fabric.items()):
                if spread.predicted:
                    y = number + (place - (len(row.by_fabric) - 1) / 2) * 0.3
                    dots = [v / spread.predicted for v in spread.values]
                    axes.plot(dots, [y] * len(dots), "o", ms=5, alpha=0.7, mew=0, color=palette[fabric])
                    if len(dots) > 1:
                        axes.plot([spread.ratio or 0.0], [y], "|", ms=11, mew=2.2, color=palette[fabric])
        axes.set_yticks(range(len(chosen)), [_full_label(r) for r in chosen])
        axes.set(ylim=(len(chosen) - 0.4, -0.6), xlabel="measured / predicted")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.94), max(high, 1.08))
        style.quiet(axes, grid="x")
        handles = [Line2D([], [], marker="o", ls="none", color=palette[f], label=f) for f in fabrics]
        if any(len(s.values) > 1 for r in chosen for s in r.by_fabric.values()):
            handles.append(Line2D([], [], marker="|", ls="none", ms=11, mew=2.2, color=style.INK, label="median"))
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
        alt_text = "; ".join(
            f"{_full_label(r)} " + ", ".join(f"{f} {ratio(s.ratio)}" for f, s in r.by_fabric.items()) for r in chosen
        )
        return style.finish(figure, "ratios", f"Measured over predicted: {alt_text}")


def _full_label(row: Row) -> str:
    return f"{row.workload} · {label(row)}" if label(row) != row.workload else row.workload


def evidence(findings: Sequence[Finding]) -> style.Plot | None:
    """Every finding on one scale: 0 is ideal, 1 where it becomes degraded, 2 where it becomes invalid. What may not be
    at all has no scale."""
    limits = [x for x in LIMITS if x.degraded and any(f.limit is x for f in findings)]
    if not limits:
        return None
    with style.styled():
        figure = style.new_figure(style.WIDTH, 0.8 + 0.34 * len(limits))
        axes = figure.subplots()
        for left, colour in enumerate((style.GREEN, style.ORANGE, style.VERMILION)):
            axes.axvspan(left, left + 1, color=colour, alpha=0.14, lw=0)
        for number, limit in enumerate(limits):
            places = [_place(limit, f.value) for f in findings if f.limit is limit]
            axes.plot(places, [number] * len(places), "o", ms=5, alpha=0.45, mew=0, color=style.INK, clip_on=False)
            values = [f.value for f in findings if f.limit is limit]
            axes.text(3.04, number, f"worst {limit.show(max(values))}", va="center")
        axes.set_yticks(range(len(limits)), [x.quantity for x in limits])
        axes.set(xlim=(0, 3), ylim=(len(limits) - 0.5, -0.5))
        axes.set_xticks([0.5, 1.5, 2.5], ["ok", "degraded", "invalid"])
        style.quiet(axes)
        axes.tick_params(axis="y", pad=9)  # a dot at zero is as wide as this
        worst = "; ".join(
            f"{x.quantity} at worst {x.show(max(f.value for f in findings if f.limit is x))}" for x in limits
        )
        return style.finish(figure, "evidence", f"Fidelity evidence, all intervals: {worst}")


def _place(limit: Limit, value: float) -> float:
    if value <= limit.degraded:
        return value / limit.degraded
    return min(2.9, 1 + (value - limit.degraded) / (limit.invalid - limit.degraded))
