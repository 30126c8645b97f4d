"""Times of workloads in figures: fabrics beside the formulas, and measured over predicted."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from railyard.results.analysis.aggregate import Row, Spread, time_label
from railyard.results.analysis.agreement import FAITHFUL_RATIO
from railyard.results.format import ratio, seconds
from railyard.results.plots import style
from railyard.results.plots.svg import mark

# phases of one workload: more would make the figure longer than a page, and the table has all
MAX_BARS: Final = 14
PREDICTED_MARK: Final = Line2D([], [], ls="none", marker="|", ms=12, mew=2, color=style.INK, label="predicted")


def completion(rows: Sequence[Row], fabrics: Sequence[str], name: str) -> style.Plot:
    """Bars are medians, dots the repeats, the mark what the formula predicts."""
    longest_first = sorted(rows, key=_longest_s, reverse=True)
    chosen = longest_first[:MAX_BARS]
    drawn_fabrics = set(chain.from_iterable(row.by_fabric for row in chosen))
    present = [fabric for fabric in fabrics if fabric in drawn_fabrics]
    palette = style.colours(fabrics)
    hatches = style.hatches(fabrics)
    bar_height = 0.7 / max(1, len(present))
    with style.drawing(0.9 + len(chosen) * (0.16 + 0.24 * len(present))) as figure:
        axes = figure.subplots()
        for number, row in enumerate(chosen):
            for place, fabric in enumerate(present):
                if fabric in row.by_fabric:
                    y = number + (place - (len(present) - 1) / 2) * 0.8 / len(present)
                    look = {"color": palette[fabric], "hatch": hatches[fabric]}
                    names = (fabric, f"{time_label(row)} on {fabric}")
                    draw_times(axes, y, bar_height, look, row.by_fabric[fabric], names)
        axes.set_yticks(range(len(chosen)), list(map(time_label, chosen)))
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(style.seconds_tick)
        axes.set_xlim(right=axes.get_xlim()[1] * 1.12)
        style.quiet(axes, grid="x")
        patches = [_patch(palette[fabric], hatches[fabric], fabric) for fabric in present]
        style.top_legend(figure, [*patches, PREDICTED_MARK])
        alt_text = "; ".join(map(_times_text, chosen))
        return style.finish(figure, f"times-{name}", f"Times of {name}. {alt_text}")


def _longest_s(row: Row) -> float:
    """Return the longest of the medians of all fabrics, s."""
    return max(spread.median for spread in row.by_fabric.values())


def _times_text(row: Row) -> str:
    """Return the times of a row on all fabrics in words."""
    parts: list[str] = []
    for fabric, spread in row.by_fabric.items():
        parts.append(f"{fabric} {time_text(spread.median, spread.predicted)}")
    return f"{time_label(row)}: {', '.join(parts)}"


def time_text(median_s: float, predicted_s: float | None) -> str:
    """Return `4.05 s, predicted 4.01 s`."""
    text = seconds(median_s)
    if predicted_s:
        text += f", predicted {seconds(predicted_s)}"
    return text


def _patch(colour: str, hatch: str, name: str) -> Patch:
    """Return the legend's sample of a bar."""
    return Patch(facecolor=colour, edgecolor=style.PAPER, linewidth=0, hatch=hatch, label=name)


def draw_times(
    axes: Axes, y: float, height: float, look: dict[str, Any], spread: Spread, names: tuple[str, str], note: str = ""
) -> None:
    """Draw the median as a bar with its figure, repeats as dots, the prediction as an upright mark.

    `names`: of the series, and of what the bar shows, for its tooltip. `note`: stands behind the figure.
    """
    series, title = names
    colours = {"facecolor": look["color"], "edgecolor": style.PAPER, "hatch": look.get("hatch", "")}
    bar = axes.barh(y, spread.median, height=height, alpha=0.85, lw=0, **colours)
    mark(bar, series, f"{title}: {time_text(spread.median, spread.predicted)}")
    if len(spread.values) > 1:
        dots = axes.plot(spread.values, [y] * len(spread.values), "o", ms=3.4, mfc=style.PAPER, mec=style.INK, mew=0.7)
        mark(dots, series, *_tips(title, map(seconds, spread.values)))
    if spread.predicted:
        ends = [y - height / 2, y + height / 2]
        line = axes.plot([spread.predicted] * 2, ends, color=style.INK, lw=2, solid_capstyle="butt")
        mark(line, series, f"{title}: predicted {seconds(spread.predicted)}")
    # lines of other rows may pass behind the figure
    background = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}
    where: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
    longest = max(*spread.values, spread.predicted or 0.0)
    axes.annotate(seconds(spread.median) + note, (longest, y), bbox=background, **where)


def _tips(title: str, values: Iterable[str]) -> list[str]:
    """Return the tooltips of the repeats of a bar or of a row."""
    return [f"{title}, repeat {number}: {value}" for number, value in enumerate(values)]


def ratios(rows: Sequence[Row], fabrics: Sequence[str]) -> style.Plot | None:
    """Measured over predicted, a dot a repeat; the band is what a faithful run reaches. None: nothing was predicted."""
    chosen = list(filter(_has_ratio, rows))
    if not chosen:
        return None
    palette = style.colours(fabrics)
    markers = style.markers(fabrics)
    names = list(map(_row_name, chosen))
    with style.drawing(1.1 + 0.3 * len(chosen)) as figure:
        axes = figure.subplots()
        axes.axvspan(*FAITHFUL_RATIO, color=style.GREEN, alpha=0.15, lw=0)
        axes.axvline(1, color=style.MUTED, lw=1)
        for number, (name, row) in enumerate(zip(names, chosen, strict=True)):
            for place, (fabric, spread) in enumerate(row.by_fabric.items()):
                y = number + (place - (len(row.by_fabric) - 1) / 2) * 0.3
                look = _RatioLook(fabric, markers[fabric], palette[fabric])
                _draw_ratios(axes, y, spread, f"{name} on {fabric}", look)
        axes.set_yticks(range(len(chosen)), names)
        axes.set(ylim=(len(chosen) - 0.4, -0.6), xlabel="measured / predicted")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.94), max(high, 1.08))
        style.quiet(axes, grid="x")
        handles: list[Line2D] = []
        for fabric in fabrics:
            handles.append(Line2D([], [], marker=markers[fabric], ls="none", color=palette[fabric], label=fabric))
        if any(map(_is_repeated, chosen)):
            handles.append(Line2D([], [], marker="|", ls="none", ms=11, mew=2.2, color=style.INK, label="median"))
        style.top_legend(figure, handles)
        alt_text = "; ".join(map(_ratios_text, chosen))
        return style.finish(figure, "ratios", f"Measured over predicted: {alt_text}")


def _has_ratio(row: Row) -> bool:
    """Return whether any time of a row has a ratio to its prediction that may be shown."""
    return any(spread.displayed_ratio for spread in row.by_fabric.values())


def _is_repeated(row: Row) -> bool:
    """Return whether any time of a row was measured more than once."""
    return any(len(spread.values) > 1 for spread in row.by_fabric.values())


class _RatioLook(NamedTuple):
    """How the ratios of a fabric are drawn."""

    fabric: str
    marker: str
    colour: str


def _draw_ratios(axes: Axes, y: float, spread: Spread, title: str, look: _RatioLook) -> None:
    """Draw the ratio of each repeat, and the median of several; nothing without a prediction."""
    if not (spread.displayed_ratio and spread.predicted):
        return
    values = [value / spread.predicted for value in spread.values]
    dots = axes.plot(values, [y] * len(values), look.marker, ms=5, alpha=0.7, mew=0, color=look.colour)
    mark(dots, look.fabric, *_tips(title, map(ratio, values)))
    if len(values) > 1:
        line = axes.plot([spread.displayed_ratio], [y], "|", ms=11, mew=2.2, color=look.colour)
        mark(line, look.fabric, f"{title}, median: {ratio(spread.displayed_ratio)}")


def _row_name(row: Row) -> str:
    """Return the workload, and the label of the row where that differs."""
    label = time_label(row)
    if label == row.workload:
        return row.workload
    return f"{row.workload} · {label}"


def _ratios_text(row: Row) -> str:
    """Return the ratio of a row on each fabric in words."""
    parts = [f"{fabric} {ratio(spread.displayed_ratio)}" for fabric, spread in row.by_fabric.items()]
    return f"{_row_name(row)} {', '.join(parts)}"
