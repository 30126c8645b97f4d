"""Goodput before, during and after a fault: all flows above, those whose path was hit below; rerouting on and off."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from results import plots
from results.format import rate, short
from results.records import GoodputTrace

_COLOUR: Final = {"on": plots.BLUE, "off": plots.ORANGE}
_CAPTION: Final = (
    "Bits delivered in bins of 20 ms. A flow ends with its last byte: late in the run few are left, and those that "
    "stood still wait for TCP's next try after the repair."
)


def recovery(traces: Sequence[GoodputTrace], fault: str) -> plots.Plot:
    """A column a fabric. Each repeat is a thin line, the median repeat a bold one."""
    fabrics = list(dict.fromkeys(t.fabric for t in traces))
    with plots.styled():
        figure = plots.new_figure(plots.WIDTH, 4.3)
        grid = figure.subplots(2, len(fabrics), squeeze=False, sharex="col", sharey="row")
        for column, fabric in enumerate(fabrics):
            mine = [t for t in traces if t.fabric == fabric]
            _panel(grid[0][column], mine, "bps")
            _panel(grid[1][column], mine, "affected_bps")
            if not any(any(t.affected_bps) for t in mine):
                _say(grid[1][column], "no flow crossed it")
            grid[0][column].set_title(fabric)
            grid[1][column].set_xlabel("ms after the fault")
        for row in grid:
            row[0].set_ylim(bottom=0)  # once every panel of the row is drawn: the panels share it
        grid[0][0].set_ylabel("all flows")
        grid[1][0].set_ylabel("flows that crossed it")
        shown = [r for r in _COLOUR if any(t.reroute == r for t in traces)]
        handles = [Line2D([], [], color=_COLOUR[r], lw=2, label=f"reroute {r}") for r in shown]
        handles.append(Line2D([], [], color=plots.VERMILION, lw=1.4, label="fault"))
        handles.append(Line2D([], [], color=plots.GREEN, lw=1.4, ls="--", label="repair"))
        figure.legend(handles=handles, loc="outside upper right", ncols=4)
        return plots.finish(figure, f"recovery-{fault}", _alt(traces, fabrics, fault), _CAPTION)


def _panel(axes: Axes, traces: Sequence[GoodputTrace], what: str) -> None:
    for reroute, colour in _COLOUR.items():
        mine = [t for t in traces if t.reroute == reroute]
        for trace in mine if len(mine) > 1 else ():
            axes.plot(trace.t_ms, getattr(trace, what), color=colour, lw=0.6, alpha=0.35, drawstyle="steps-post")
        if mine:
            times, values = _median(mine, what)
            axes.plot(times, values, color=colour, lw=1.7, drawstyle="steps-post")
    axes.axvline(0, color=plots.VERMILION, lw=1.4)
    for repair in {
        round(median(t.repair_ms for t in traces if t.reroute == r), 1) for r in {t.reroute for t in traces}
    }:
        axes.axvline(repair, color=plots.GREEN, lw=1.4, ls="--")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(rate(value)) if value else "0"))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.margins(x=0, y=0.08)
    plots.quiet(axes, grid="y")
    axes.tick_params(axis="x", pad=7)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=plots.MUTED)


def _median(traces: Sequence[GoodputTrace], what: str) -> tuple[tuple[float, ...], list[float]]:
    """Bin by bin, over as many bins as every repeat has."""
    length = min(len(t.t_ms) for t in traces)
    values = [median(getattr(t, what)[i] for t in traces) for i in range(length)]
    return traces[0].t_ms[:length], values


def _alt(traces: Sequence[GoodputTrace], fabrics: Sequence[str], fault: str) -> str:
    said = []
    for fabric in fabrics:
        for reroute in _COLOUR:
            mine = [t for t in traces if (t.fabric, t.reroute) == (fabric, reroute)]
            low = [
                min((b for t, b in zip(x.t_ms, x.bps, strict=True) if 0 <= t < x.repair_ms), default=0.0) for x in mine
            ]
            if low:
                said.append(f"{fabric}, reroute {reroute}: goodput falls to {rate(median(low))} before the repair")
    return f"Goodput around {fault}. {'; '.join(said)}"
