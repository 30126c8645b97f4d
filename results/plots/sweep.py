"""Curves over what a sweep varies: 3 or more fabrics (or workloads) of one kind that differ in a single trait.

The whole's time above, and each phase below on an axis of its own, so that milliseconds show beside seconds. A line is
predicted; a point is a measured median, its bar from the least to the most of the repeats.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, product
from math import ceil
from operator import attrgetter
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from railyard.core.units import parse_rate, parse_size
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Spread
from railyard.results.plots import style as plots
from railyard.results.plots.svg import mark

Named = tuple[str, Mapping[str, Any]]  # a fabric or a workload: its label, and its part of the resolved experiment
Looks = Mapping[str, tuple[str, str, Any]]  # a line -> colour, marker and dashes
PlaceAndCell = tuple["Place", tuple[str, str]]  # a point of a line, with its fabric and workload
Timed = Mapping[tuple[str, str, str], Spread]
"""(fabric, workload, phase) -> its times; phase "" is the whole, and a prediction alone has no values."""

# two points are a comparison, which bars show better
MIN_POINTS: Final = 3
_ACROSS: Final = 2  # phases side by side
_SIZE: Final = frozenset({"domains", "rails"})
_TRAITS: Final[Mapping[str, tuple[str, Callable[[Any], float]]]] = {
    "domains": ("HB domains (domains x rails)", float),
    "rails": ("GPUs in an HB domain (domains x rails)", float),
    "rail_rate": ("rate of a rail", parse_rate),
    "hb_rate": ("rate into the HB domain", parse_rate),
    "mtu": ("MTU, bytes", float),
    "spines": ("spine switches", float),
    "oversubscription": ("oversubscription", float),
    "global_batch": ("global batch, sequences", float),
    "bytes": ("bytes of the workload", parse_size),
}


class Place(NamedTuple):
    """Position of a fabric or workload on the axis."""

    name: str
    x: float
    tick: str


Lines = Mapping[str, Sequence[tuple[Place, Spread]]]  # a kind of fabric, or a fabric -> its points in order


class Curve(NamedTuple):
    """Times over `axis`: phase -> its lines. The whole is first."""

    title: str
    axis: str
    phases: Mapping[str, Lines]


def curves(fabrics: Sequence[Named], workloads: Sequence[Named], timed: Timed) -> tuple[Curve, ...]:
    """Every workload over the trait that fabrics sweep, then every workload that is itself swept. Empty: no sweep."""
    all_curves: list[Curve] = []
    over_fabrics: defaultdict[str, dict[str, Sequence[Place]]] = defaultdict(dict)
    for kind, axis, places in _sweeps(fabrics):
        over_fabrics[axis][kind] = places
    for axis, kinds in over_fabrics.items():
        for workload, _ in workloads:
            lines: dict[str, list[PlaceAndCell]] = {}
            for kind, places in kinds.items():
                lines[kind] = [(place, (place.name, workload)) for place in places]
            all_curves.append(_curve(workload, axis, lines, timed))
    for title, axis, places in _sweeps(workloads):
        lines = {}
        for fabric, _ in fabrics:
            lines[fabric] = [(place, (fabric, place.name)) for place in places]
        all_curves.append(_curve(title, axis, lines, timed))
    return tuple(filter(_has_enough_points, all_curves))


def _has_enough_points(curve: Curve) -> bool:
    return max(map(len, _whole(curve).values()), default=0) >= MIN_POINTS


def _whole(curve: Curve) -> Lines:
    """The lines of the whole; of the only phase where a workload is no more than that."""
    return next(iter(curve.phases.values()), {})


def _sweeps(named: Iterable[Named]) -> Iterable[tuple[str, str, Sequence[Place]]]:
    """Yield (title, axis, places in order) of each kind of which 3 or more differ in one trait, each from each."""
    kinds: defaultdict[str, list[Named]] = defaultdict(list)
    for name, traits in named:
        kinds[str(traits.get("kind", ""))].append((name, traits))
    for kind, members in kinds.items():
        trait = _swept_trait([traits for _, traits in members])
        if not trait or len(members) < MIN_POINTS:
            continue
        axis, to_number = _TRAITS[trait]
        by_position: dict[float, Place] = {}
        for name, traits in members:
            x = to_number(traits[trait])
            by_position[x] = Place(name, x, _tick(traits, trait))
        places = list(by_position.values())
        # two at one position, such as 1Gbit and 1000Mbit, are no sweep
        if len(places) == len(members):
            yield str(members[0][1].get("model", kind)), axis, sorted(places, key=lambda place: place.x)


def _swept_trait(members: Sequence[Mapping[str, Any]]) -> str:
    """Return the one trait in which members differ, if it is a number for each; else "". Domains x rails are one."""
    keys = set(chain.from_iterable(members))
    # `name` is a title, and nothing that a sweep varies
    keys.discard("name")
    differing: set[str] = set()
    for key in keys:
        values = {repr(traits.get(key)) for traits in members}
        if len(values) > 1:
            differing.add(key)
    if differing == _SIZE:
        trait = "rails"
    elif len(differing) == 1:
        trait = differing.pop()
    else:
        return ""
    if trait not in _TRAITS or any(traits.get(trait, "auto") == "auto" for traits in members):
        return ""
    return trait


def _tick(traits: Mapping[str, Any], trait: str) -> str:
    value = traits[trait]
    text = str(value)
    if isinstance(value, int | float):
        text = f"{value:g}"
    if trait in _SIZE:
        # where domains and rails both vary, the axis shows rails alone
        text += f"\n({traits['domains']} x {traits['rails']})"
    return text


def _curve(title: str, axis: str, lines: Mapping[str, Sequence[PlaceAndCell]], timed: Timed) -> Curve:
    cells: set[tuple[str, str]] = set()
    for line in lines.values():
        cells.update(cell for _, cell in line)
    phases = dict.fromkeys(phase for fabric, workload, phase in timed if (fabric, workload) in cells)
    shown: dict[str, dict[str, list[tuple[Place, Spread]]]] = {}
    # sorting by truth is stable: it puts the whole, whose phase is "", first
    for phase, (name, line) in product(sorted(phases, key=bool), lines.items()):
        points = [(place, timed[*cell, phase]) for place, cell in line if (*cell, phase) in timed]
        if points:
            shown.setdefault(phase, {})[name] = points
    return Curve(title, axis, shown)


def _spreads_of(curve: Curve) -> list[Spread]:
    """Return the times of all points of all phases."""
    spreads: list[Spread] = []
    for lines in curve.phases.values():
        for points in lines.values():
            spreads += [spread for _, spread in points]
    return spreads


def covers(curves: Iterable[Curve], timed: Timed) -> bool:
    """Return True if the curves show all of these times, so that no other drawing is needed."""
    drawn = sum(len(_spreads_of(curve)) for curve in curves)
    return drawn == len(timed)


def height(curve: Curve) -> float:
    """Inches that it takes."""
    return 3.4 + 2.3 * ceil((len(curve.phases) - 1) / _ACROSS)


def draw(figure: Any, curve: Curve) -> None:
    """The whole over the full width, its phases below; `figure` is a Figure or a SubFigure with nothing in it."""
    first, *phases = curve.phases
    below = ceil(len(phases) / _ACROSS)
    grid = figure.add_gridspec(1 + below, _ACROSS, height_ratios=[1.5] + [1.0] * below)
    looks = looks_of(chain.from_iterable(curve.phases.values()))
    places: dict[float, str] = {}
    for points in _whole(curve).values():
        places.update((place.x, place.tick) for place, _ in points)
    axes = figure.add_subplot(grid[0, :])
    draw_panel(axes, curve.phases[first], looks, places)
    axes.set(title=f"{curve.title}: {first or 'iteration'}", xlabel=curve.axis)
    for number, phase in enumerate(phases):
        row, column = divmod(number, _ACROSS)
        axes = figure.add_subplot(grid[1 + row, column])
        draw_panel(axes, curve.phases[phase], looks, places)
        axes.set(title=phase, xlabel=curve.axis)
    draw_legend(figure, looks, _spreads_of(curve))


def looks_of(names: Iterable[str]) -> Looks:
    """Return colour, marker and dashes of each line."""
    lines = list(dict.fromkeys(names))
    palette = plots.colours(lines)
    markers = plots.markers(lines)
    dashes = plots.dashes(lines)
    return {name: (palette[name], markers[name], dashes[name]) for name in lines}


def draw_legend(figure: Any, looks: Looks, spreads: Sequence[Spread], *more: Line2D) -> None:
    """Draw the key of the lines, and of what is predicted and measured, above the figure; then `more` keys."""
    keys: list[Line2D] = []
    for name, (colour, marker, dash) in looks.items():
        keys.append(Line2D([], [], color=colour, lw=2, marker=marker, ls=dash, label=name))
    if any(spread.predicted is not None for spread in spreads):
        keys.append(Line2D([], [], color=plots.INK, label="line: predicted"))
    if any(map(attrgetter("values"), spreads)):
        keys.append(Line2D([], [], color=plots.INK, marker="o", mfc=plots.PAPER, ls="none", label="mark: measured"))
    figure.legend(handles=[*keys, *more], loc="outside upper right", ncols=4)


def draw_panel(axes: Axes, lines: Lines, looks: Looks, places: Mapping[float, str]) -> None:
    """Draw lines of predictions and points of measurements over `places`, the ticks by their position."""
    for name, points in lines.items():
        colour, marker, dash = looks[name]
        _draw_prediction(axes, name, points, colour, dash)
        for place, spread in points:
            if spread.values:
                _draw_measurement(axes, name, place, spread, colour, marker)
    low = min(places)
    high = max(places)
    # the same ends in every panel, also where a phase isn't everywhere; the ends' labels keep clear of the corner
    if low > 0 and high / low >= 4:
        axes.set_xscale("log", base=2)
        margin = (high / low) ** 0.1
        axes.set_xlim(low / margin, high * margin)
    else:
        axes.set_xlim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes.set_xticks(list(places), list(places.values()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(plots.seconds_tick)
    plots.quiet(axes, grid="y", ylim=(0, 1.12 * axes.get_ylim()[1]))


def _draw_prediction(axes: Axes, name: str, points: Sequence[tuple[Place, Spread]], colour: str, dash: Any) -> None:
    """Draw a line through the predicted times, with a tooltip for each."""
    xs: list[float] = []
    ys: list[float] = []
    tips: list[str] = []
    for place, spread in points:
        if spread.predicted is not None:
            xs.append(place.x)
            ys.append(spread.predicted)
            tips.append(f"{place.name}: predicted {fmt.seconds(spread.predicted)}")
    if xs:
        mark(axes.plot(xs, ys, color=colour, ls=dash, marker=".", lw=1.6), name, *tips)


def _draw_measurement(axes: Axes, name: str, place: Place, spread: Spread, colour: str, marker: str) -> None:
    """Draw the median as a point, over a bar from the least to the most."""
    least = min(spread.values)
    most = max(spread.values)
    mark(axes.plot([place.x] * 2, [least, most], color=colour, marker="_", ms=7, lw=1.2), name)
    dots = axes.plot([place.x], [spread.median], marker, ms=5.5, mfc=plots.PAPER, mec=colour)
    tip = f"{place.name}: {fmt.seconds(spread.median)}"
    if len(spread.values) > 1:
        tip += f", {fmt.seconds(least)} to {fmt.seconds(most)}"
    mark(dots, name, tip)


def plot(curve: Curve, name: str) -> plots.Plot:
    """The curve for the report."""
    with plots.drawing(height(curve)) as figure:
        draw(figure, curve)
        alt_parts: list[str] = []
        for line, points in _whole(curve).items():
            times: list[str] = []
            for place, spread in points:
                times.append(f"{place.name} {fmt.seconds(spread.median)}, predicted {fmt.seconds(spread.predicted)}")
            alt_parts.append(f"{line}: {', '.join(times)}")
        return plots.finish(figure, name, f"{curve.title} over {curve.axis}. {'; '.join(alt_parts)}")
