"""A fault over time: the steps of getting over it, then goodput of all flows and of those whose path was hit."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from railyard.results.analysis.recovery_rows import RecoveryRow
from railyard.results.plots import recovery_steps, style
from railyard.results.plots.recovery_steps import COLOUR
from railyard.results.runs.records import GoodputTrace
from railyard.results.views.format import rate, short

_CAPTION: Final = (
    "Above, all repeats are thin marks; dots joined by a line are the repeat with the median first packet, whose times "
    "stand at the right. Below, bits delivered in bins of 20 ms: a thin line a repeat (of more than 8, a band from the "
    "least to the most), the bold one their median. A flow ends with its last byte: late in the run few are left, and "
    "those that stood still wait for TCP's next try after the repair."
)
_MAX_LINES: Final = 8  # repeats: of more, thin lines are a thicket, and megabytes of it
_GOODPUT: Final = 1.6  # inches each


def recovery(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace], fault: str) -> style.Plot:
    """A column a fabric; `rows` and `traces` of this fault, rerouting on and off. Either may be empty, not both."""
    fabrics = list(dict.fromkeys([*(row.repeats[0].fabric for row in rows), *(t.fabric for t in traces)]))
    heights = [recovery_steps.height(rows)] * bool(rows) + [_GOODPUT, _GOODPUT] * bool(traces)
    with style.styled():
        figure = style.new_figure(style.WIDTH, sum(heights) + 1.1)
        grid = figure.subplots(len(heights), len(fabrics), squeeze=False, height_ratios=heights)
        for column, fabric in enumerate(fabrics):
            panels = [grid[line][column] for line in range(len(heights))]
            panels[0].set_title(fabric)
            if rows:
                recovery_steps.draw(
                    panels.pop(0), [r for r in rows if r.repeats[0].fabric == fabric], names=column == 0
                )
            if traces:
                _goodput(panels, [t for t in traces if t.fabric == fabric])
        if traces:
            _share_heights(grid[-2:], ("all flows", "flows that\ncrossed it"))
        known = {row.reroute for row in rows} | {trace.reroute for trace in traces}
        shown = [r for r in COLOUR if r in known]
        handles = [Line2D([], [], color=COLOUR[r], lw=2, label=f"reroute {r}") for r in shown]
        handles.append(Line2D([], [], color=style.VERMILION, lw=1.4, label="fault"))
        handles.append(Line2D([], [], color=style.GREEN, lw=1.4, ls="--", label="repair"))
        figure.legend(handles=handles, loc="outside upper right", ncols=4)
        return style.finish(figure, f"recovery-{fault}", _alt(rows, traces, fabrics, fault), _CAPTION)


def _goodput(panels: Sequence[Axes], matching: Sequence[GoodputTrace]) -> None:
    _panel(panels[0], matching, "bps")
    _panel(panels[1], matching, "affected_bps")
    if not any(any(t.affected_bps) for t in matching):
        _note(panels[1], "no flow crossed it")
    panels[1].sharex(panels[0])
    panels[0].tick_params(labelbottom=False)
    panels[1].set_xlabel("ms after the fault")


def _share_heights(grid: Iterable[Sequence[Axes]], names: Sequence[str]) -> None:
    """Panels beside each other have one scale, from 0, and it is written once."""
    for panels, name in zip(grid, names, strict=True):
        top = max(axes.get_ylim()[1] for axes in panels)
        for axes in panels:
            axes.set_ylim(0, top)
            axes.tick_params(labelleft=axes is panels[0])
        panels[0].set_ylabel(name)


def _panel(axes: Axes, traces: Sequence[GoodputTrace], field: str) -> None:
    for reroute, colour in COLOUR.items():
        matching = [t for t in traces if t.reroute == reroute]
        for trace in matching if 1 < len(matching) <= _MAX_LINES else ():
            axes.plot(trace.t_ms, getattr(trace, field), color=colour, lw=0.6, alpha=0.35, drawstyle="steps-post")
        if len(matching) > _MAX_LINES:
            times, minimum = _by_bin(matching, field, min)
            _, maximum = _by_bin(matching, field, max)
            axes.fill_between(times, minimum, maximum, step="post", color=colour, alpha=0.22, lw=0)
        if matching:
            times, values = _by_bin(matching, field, median)
            axes.plot(times, values, color=colour, lw=1.7, drawstyle="steps-post")
    axes.axvline(0, color=style.VERMILION, lw=1.4)
    for repair in {
        round(median(t.repair_ms for t in traces if t.reroute == r), 1) for r in {t.reroute for t in traces}
    }:
        axes.axvline(repair, color=style.GREEN, lw=1.4, ls="--")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(rate(value)) if value else "0"))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.margins(x=0, y=0.08)
    style.quiet(axes, grid="y")
    axes.tick_params(axis="x", pad=7)


def _note(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=style.MUTED)


def _by_bin(
    traces: Sequence[GoodputTrace], field: str, aggregate: Callable[[list[float]], float]
) -> tuple[tuple[float, ...], list[float]]:
    """Over as many bins as every repeat has."""
    length = min(len(t.t_ms) for t in traces)
    values = [aggregate([getattr(t, field)[i] for t in traces]) for i in range(length)]
    return traces[0].t_ms[:length], values


def _alt(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace], fabrics: Sequence[str], fault: str) -> str:
    alt_text = [recovery_steps.alt_text(row) for row in rows]
    for fabric in fabrics:
        for reroute in COLOUR:
            matching = [t for t in traces if (t.fabric, t.reroute) == (fabric, reroute)]
            low = [
                min((b for t, b in zip(x.t_ms, x.bps, strict=True) if 0 <= t < x.repair_ms), default=0.0)
                for x in matching
            ]
            if low:
                alt_text.append(f"{fabric}, reroute {reroute}: goodput falls to {rate(median(low))} before the repair")
    return f"Steps of recovery, and goodput around {fault}. {'; '.join(alt_text)}"
