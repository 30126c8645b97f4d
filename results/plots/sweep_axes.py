"""Figures of a sweep's report: measured times over one of its axes, with a panel for each value of a second one.

As in the curves of one run (sweep.py), a line is predicted, and a point is a measured median, with a bar from the least
to the most. A cross marks a point of which a value is degraded or invalid.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from railyard.core.errors import BadInput
from railyard.core.units import parse_rate, parse_size, parse_time
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Spread
from railyard.results.plots import style as plots
from railyard.results.plots.sweep import Place, draw_legend, draw_panel, looks_of

MAX_FIGURES: Final = 24
MAX_PANELS: Final = 12  # of a figure
# stands for an axis where nothing but the seed varies
FABRIC: Final = "fabric"
_ACROSS: Final = 2
_PANEL_IN: Final = 2.6
_CROSSES: Final = {"degraded": plots.ORANGE, "invalid": plots.VERMILION}


@dataclass(frozen=True)
class AxisPoint:
    """Times at one place of the axes. `axes`: value of each; `work`: which figure; `line`: which line in it."""

    axes: Mapping[str, Any]
    work: str
    line: str
    spread: Spread


@dataclass(frozen=True)
class Panel:
    """Points over the axis `x`; `title` says which values the other axes have."""

    title: str
    points: tuple[AxisPoint, ...]


@dataclass(frozen=True)
class AxisFigure:
    """One figure. `ticks`: position and text of each value of the axis `x`, by that value as text."""

    title: str
    x: str
    ticks: Mapping[str, tuple[float, str]]
    panels: tuple[Panel, ...]


def figures_of(points: Sequence[AxisPoint]) -> tuple[AxisFigure, ...]:
    """Return the figures of a sweep: one for each work and for the values of axes beyond the second."""
    if not points:
        return ()
    varying = [axis for axis in _axes_of(points) if len(_values(points, axis)) > 1]
    if not varying:
        points = [AxisPoint({FABRIC: point.line}, point.work, "all", point.spread) for point in points]
    x = _axis_below(points, varying)
    # axes that are zipped with x have as many values as x itself: they are named in its ticks
    together: list[str] = []
    split: list[str] = []
    for axis in varying:
        if axis == x:
            continue
        if _follows(points, axis, x):
            together.append(axis)
        else:
            split.append(axis)
    ticks = _ticks(points, x, together)
    figures = []
    for title, group in _by_title(points, split[1:]).items():
        panels = [Panel("", tuple(group))]
        if split:
            panels = _panels(group, split[0])
        figures.append(AxisFigure(title, x, ticks, tuple(panels)))
    return tuple(figures)


def _axis_below(points: Sequence[AxisPoint], varying: Sequence[str]) -> str:
    """Return the axis that a figure has below: the first of numbers, or else the first."""
    for axis in varying:
        if _positions(_values(points, axis)) is not None:
            return axis
    return next(iter(varying), FABRIC)


def _by_title(points: Sequence[AxisPoint], axes: Sequence[str]) -> dict[str, list[AxisPoint]]:
    """Return the points of each figure by its title: the work, and the values of `axes`."""
    groups: dict[str, list[AxisPoint]] = {}
    for point in points:
        values = [f"{short(axis)} {point.axes[axis]}" for axis in axes]
        groups.setdefault(", ".join([point.work, *values]), []).append(point)
    return groups


def _axes_of(points: Sequence[AxisPoint]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(point.axes for point in points)))


def _values(points: Sequence[AxisPoint], axis: str) -> list[str]:
    return list(dict.fromkeys(str(point.axes[axis]) for point in points))


def _follows(points: Sequence[AxisPoint], axis: str, x: str) -> bool:
    """Return whether each value of `x` comes with a single value of the axis."""
    pairs = {(str(point.axes[x]), str(point.axes[axis])) for point in points}
    return len(pairs) == len(_values(points, x))


def _positions(values: Sequence[str]) -> list[float] | None:
    """Return values as numbers: plain ones, rates, sizes or times; None if they are none of these."""
    for parse in (float, parse_rate, parse_size, parse_time):
        try:
            return [float(parse(value)) for value in values]
        except (ValueError, BadInput):
            continue
    return None


def _ticks(points: Sequence[AxisPoint], x: str, together: Sequence[str]) -> dict[str, tuple[float, str]]:
    """Return the position and the text of each value of the axis `x`. `together`: the axes that are zipped with it."""
    values = _values(points, x)
    positions = _positions(values) or list(map(float, range(len(values))))
    texts: dict[str, str] = {}
    for point in points:
        lines = [str(point.axes[x])]
        for axis in together:
            lines.append(f"{short(axis)} {point.axes[axis]}")
        texts[str(point.axes[x])] = "\n".join(lines)
    return {value: (position, texts[value]) for value, position in zip(values, positions, strict=True)}


def _panels(points: Sequence[AxisPoint], axis: str) -> list[Panel]:
    """Return a panel for each value of an axis."""
    groups = defaultdict[str, list[AxisPoint]](list)
    for point in points:
        groups[str(point.axes[axis])].append(point)
    return [Panel(f"{short(axis)} {value}", tuple(group)) for value, group in groups.items()]


def short(axis: str) -> str:
    """Return the last word of an axis' key: `rail_rate` of `fabrics.*.rail_rate`."""
    return axis.rpartition(".")[2]


def plot(figure: AxisFigure, name: str) -> plots.Plot:
    """Draw a figure for the report; `name` keeps its ids apart from those of other figures."""
    panels = figure.panels[:MAX_PANELS]
    rows = ceil(len(panels) / _ACROSS)
    across = min(len(panels), _ACROSS)
    points = list(chain.from_iterable(panel.points for panel in panels))
    looks = looks_of(point.line for point in points)
    places = dict(figure.ticks.values())
    spreads = [point.spread for point in points]
    top = 0.0
    for spread in spreads:
        top = max(top, 1.12 * max(spread.values), 1.12 * (spread.predicted or 0.0))
    with plots.drawing(1.0 + _PANEL_IN * rows) as drawing:
        grid = drawing.subplots(rows, across, squeeze=False, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid.flat, panels, strict=False):
            lines = _lines(figure, panel, looks)
            draw_panel(axes, lines, looks, places)
            axes.set(title=panel.title, xlabel=short(figure.x))
            for line in lines.values():
                _mark_verdicts(axes, line)
        for axes in grid.flat[: len(panels)]:
            axes.set_ylim(0, top)
        draw_legend(drawing, looks, spreads, *_keys_of_crosses(spreads))
        more = len(figure.panels) - len(panels)
        caption = ""
        if more:
            caption = f"{more} more values are in the table alone."
        return plots.finish(drawing, name, f"{figure.title} over {short(figure.x)}. {_alt(panels, figure.x)}", caption)


def _lines(figure: AxisFigure, panel: Panel, names: Iterable[str]) -> dict[str, list[tuple[Place, Spread]]]:
    """Return the lines of these names that have points in a panel."""
    lines: dict[str, list[tuple[Place, Spread]]] = {}
    for name in names:
        line = _line(figure, panel, name)
        if line:
            lines[name] = line
    return lines


def _keys_of_crosses(spreads: Sequence[Spread]) -> list[Line2D]:
    """Return a key of the legend for each verdict that a cross marks."""
    verdicts = {spread.verdict for spread in spreads}
    keys: list[Line2D] = []
    for verdict, colour in _CROSSES.items():
        if verdict in verdicts:
            keys.append(Line2D([], [], color=colour, marker="x", ls="none", mew=2, label=f"cross: {verdict}"))
    return keys


def _line(figure: AxisFigure, panel: Panel, line: str) -> list[tuple[Place, Spread]]:
    places = []
    for point in panel.points:
        if point.line == line:
            value = str(point.axes[figure.x])
            name = ", ".join(filter(None, [f"{short(figure.x)} {value}", panel.title, point.spread.verdict]))
            places.append((Place(name, *figure.ticks[value]), point.spread))
    return sorted(places, key=lambda point: point[0].x)


def _mark_verdicts(axes: Axes, points: Sequence[tuple[Place, Spread]]) -> None:
    for place, spread in points:
        if colour := _CROSSES.get(spread.verdict):
            axes.plot([place.x], [spread.median], "x", color=colour, ms=9, mew=2)


def _alt(panels: Sequence[Panel], x: str) -> str:
    """Return what the figure shows in words: each panel's title, and its times."""
    texts: list[str] = []
    for panel in panels:
        parts = [panel.title] if panel.title else []
        for point in panel.points:
            median = fmt.seconds(point.spread.median)
            predicted = fmt.seconds(point.spread.predicted)
            parts.append(f"{point.line} at {point.axes[x]}: {median}, predicted {predicted}")
        texts.append("; ".join(parts))
    return ". ".join(texts)
