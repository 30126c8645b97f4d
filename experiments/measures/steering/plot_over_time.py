"""One steered workload run over time: scores, the paths chosen by them, and the rails' load, one under the other.

On top, what background ran when; its times are shaded in every panel.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from railyard.experiments.measures.steering.analysis import MeasurementInterval, path_shares, rail_of
from railyard.experiments.measures.steering.records import HealthSample
from railyard.results.analysis.aggregate import grouped
from railyard.results.format import percent, workload_label
from railyard.results.plots import style as plots
from railyard.results.plots.svg import mark

# more names than these don't fit beside the panel of areas
_MAX_NAMED: Final = 8
# a screen shows no more points of a line
_MAX_POINTS: Final = 400
_ELEMENTS: Final = {"rail": "rail", "domain": "HB domain", "spine": "spine"}
_LOADED_KEYS: Final = {"rail": "rails", "domain": "domains", "spine": "spine"}  # of an event of the background
_LOOKS: Final[dict[tuple[str, bool], tuple[str, Any]]] = {
    ("rail", False): (plots.BLUE, plots.DASHES[1]),
    ("rail", True): (plots.VERMILION, "-"),
    ("domain", False): (plots.GREY, plots.DASHES[2]),
    ("domain", True): (plots.PINK, plots.DASHES[3]),
    ("spine", False): (plots.GREEN, plots.DASHES[4]),
    ("spine", True): (plots.GREEN, plots.DASHES[4]),
}
"""Colour and dashes of an element's line, by its kind and whether background loads it."""
SCORE_LIMITS: Final = (-3.0, 103.0)
LOAD_LIMITS: Final = (0.0, 1.05)
_LABELS: Final = 8  # of lines in a panel, beyond which lines that end nearly together share one
_LABEL_GAP: Final = 0.1  # between two labels, as a share of a panel's height
_TOGETHER: Final = 0.25  # lines of one look that end within this share of the height have one label
_KINDS: Final = {
    "d": ("#c9cdd1", "#c9cdd1"),
    "r": ("#d3d6d9", "#6c7276"),
    "dr": ("#9fe0c8", "#00583f"),
    "rd": ("#f0cfe1", "#8f3d6c"),
    "drd": ("#f3e68c", "#8a7c00"),
    "spine": (plots.VERMILION, plots.VERMILION),
    "none": (plots.INK, plots.INK),
}
"""Colours from the first rail to the last, by kind of path."""
_HATCHES: Final = {"rd": "////", "drd": "....", "spine": "xxxx"}


class Span(NamedTuple):
    """Interval during which some background was on, in seconds after the foreground's start. `load`: its text."""

    load: str
    begin: float
    end: float


def over_time(interval: MeasurementInterval) -> plots.Plot:
    """Four panels on one axis of seconds since the foreground's start."""
    name = f"{workload_label(interval.interval)} on {interval.fabric} under {interval.policy}"
    spans = tuple(background(interval))
    shares = path_shares(interval, _MAX_POINTS)
    rows = list(dict.fromkeys(span.load for span in spans))
    background_height = 0.24 * max(1, len(rows))
    with plots.drawing(7.0 + background_height) as figure:
        grid = figure.subplots(4, 1, sharex=True, height_ratios=[background_height, 2.4, 2.4, 1.9])
        for span in spans:
            width = span.end - span.begin
            y = rows.index(span.load)
            bar = grid[0].barh(y, width, left=span.begin, height=0.6, color=plots.MUTED, lw=0)
            mark(bar, "", f"{span.load}, from {span.begin:.2f} s to {span.end:.2f} s")
        grid[0].set_yticks(range(len(rows)), rows, fontsize=9)
        grid[0].set_title("background" if rows else "no background", fontsize=9, fontweight="normal")
        grid[0].spines[["left", "bottom"]].set_visible(False)
        grid[0].set_ylim(max(1, len(rows)) - 0.4, -0.6)
        _lines(grid[1], interval, tuple(_ELEMENTS), "score", "h-score", SCORE_LIMITS)
        _areas(grid[2], [_seconds(interval, at) for at in shares.index], shares)
        _lines(grid[3], interval, ("rail",), "load", "load of rails", LOAD_LIMITS)
        for axes, limits in zip(grid[1:], (SCORE_LIMITS, (0, 1), LOAD_LIMITS), strict=True):
            for span in spans:
                axes.axvspan(span.begin, span.end, color=plots.MUTED, alpha=0.13, lw=0, zorder=0)
            axes.set_ylim(limits)
        for axes in grid:
            for at_ns, style in ((interval.started_ns, "-"), (interval.finished_ns, "--")):
                axes.axvline(_seconds(interval, at_ns), color=plots.INK, lw=1.3, ls=style)
            plots.quiet(axes)
        for axes in grid[2:]:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        begin = _seconds(interval, interval.begin_ns)
        end = _seconds(interval, interval.end_ns)
        # a mark at the end would be cut off
        after_end = max(1e-9, end - begin) / 100
        grid[3].tick_params(axis="x", pad=7)
        grid[3].set(xlim=(begin, end + after_end), xlabel="seconds since the foreground's start")
        return plots.finish(figure, f"steering-{name}", _alt(name, interval, spans, shares))


def background(interval: MeasurementInterval) -> Iterator[Span]:
    """Yield a span from each "on" to its "off", or to the end of the interval."""
    active_since: dict[str, float] = {}
    for event in sorted(interval.events, key=lambda e: e.monotonic_ns):
        if event.source == "background":
            at = _seconds(interval, event.monotonic_ns)
            name = f"{_loaded_text(event.detail)}: {percent(float(event.detail['load']), 0)}"
            if name in active_since:
                yield Span(name, active_since.pop(name), at)
            if event.what == "on":
                active_since[name] = at
    for name, start in active_since.items():
        yield Span(name, start, _seconds(interval, interval.end_ns))


def _loaded_text(detail: Mapping[str, Any]) -> str:
    """Return the elements that background loads: `rails 0, 1 and spines`."""
    # runs of older versions have no text
    if "text" in detail:
        return str(detail["text"])
    parts: list[str] = []
    for unit in ("rail", "domain"):
        numbers = detail.get(f"{unit}s") or ()
        if numbers:
            parts.append(f"{_plural(unit, numbers)} {', '.join(map(str, numbers))}")
    if detail.get("spine"):
        parts.append("spines")
    return " and ".join(parts)


def _plural(noun: str, numbers: Sequence[int]) -> str:
    """Return a noun in the plural if it has several numbers."""
    return noun if len(numbers) == 1 else f"{noun}s"


def _seconds(interval: MeasurementInterval, at_ns: int) -> float:
    return (at_ns - interval.started_ns) / 1e9


def _lines(
    axes: Axes,
    interval: MeasurementInterval,
    elements: Sequence[str],
    value: str,
    title: str,
    limits: tuple[float, float],
) -> None:
    """Draw a line for each element, those that background loads in a colour of their own, labelled where they end.

    `value`: the field of a sample. `limits`: of the axis.
    """
    samples_by_element: defaultdict[tuple[str, int], list[HealthSample]] = defaultdict(list)
    for sample in interval.health:
        if sample.element in elements:
            samples_by_element[sample.element, sample.index].append(sample)
    loaded = loaded_elements(interval)
    (low, high) = limits
    ends: defaultdict[tuple[str, bool], list[tuple[float, int]]] = defaultdict(list)
    for element, index in sorted(samples_by_element, key=lambda key: (elements.index(key[0]), key[1])):
        every = samples_by_element[element, index]
        samples = every[:: 1 + len(every) // _MAX_POINTS]
        times = [_seconds(interval, s.monotonic_ns) for s in samples]
        values = [float(getattr(s, value)) for s in samples]
        look = element, (element, index) in loaded
        colour, dash = _LOOKS[look]
        line = axes.plot(times, values, color=colour, lw=1.4, ls=dash)
        label = _names(look, [index])
        mark(line, label, f"{title} of {label}")
        ends[look].append(((values[-1] - low) / (high - low), index))
    axes.set_ylabel(title)
    axes.grid(axis="y")
    _label_ends(axes, end_labels(ends))


def loaded_elements(interval: MeasurementInterval) -> set[tuple[str, int]]:
    """Return the elements, such as ("rail", 0), that background loads at any time."""
    loaded = set[tuple[str, int]]()
    for event in interval.events:
        if event.source == "background":
            for element, key in _LOADED_KEYS.items():
                numbers = event.detail.get(key) or ()
                # the key of spines has no numbers: all are loaded alike
                if numbers is True:
                    numbers = (0,)
                loaded.update((element, number) for number in numbers)
    return loaded


class EndLabel(NamedTuple):
    """Label of lines of one look. `end`: where they end, `y`: where the label is, as shares of the panel's height."""

    look: tuple[str, bool]
    text: str
    end: float
    y: float


def end_labels(ends: Mapping[tuple[str, bool], Sequence[tuple[float, int]]]) -> list[EndLabel]:
    """Return labels from bottom to top that don't overlap.

    `ends`: by look, where each line ends, as a share of the panel's height, and its index.
    """
    together = _TOGETHER
    while len(clusters := list(_clusters(ends, together))) > _LABELS and together < 1:
        together *= 2
    labels = list[EndLabel]()
    lowest = -inf
    for end, look, indices in sorted(clusters):
        y = max(end, lowest)
        labels.append(EndLabel(look, _names(look, indices), end, y))
        lowest = y + _LABEL_GAP
    # the pass upwards may have pushed labels above the panel: a pass downwards brings them back
    lowered = list[EndLabel]()
    highest = 1.0
    for label in reversed(labels):
        y = min(label.y, highest)
        lowered.append(label._replace(y=y))
        highest = y - _LABEL_GAP
    return lowered[::-1]


def _clusters(
    ends: Mapping[tuple[str, bool], Sequence[tuple[float, int]]], together: float
) -> Iterator[tuple[float, tuple[str, bool], list[int]]]:
    """Yield where lines of one look end that end within `together` of the next one, the look, and their indices."""
    for look, lines in ends.items():
        cluster_ends = list[float]()
        indices = list[int]()
        for end, index in sorted(lines):
            if cluster_ends and end - cluster_ends[-1] > together:
                yield median(cluster_ends), look, sorted(indices)
                cluster_ends = []
                indices = []
            cluster_ends.append(end)
            indices.append(index)
        yield median(cluster_ends), look, sorted(indices)


def _names(look: tuple[str, bool], indices: Sequence[int]) -> str:
    """Return `hot rails 0 to 3`, `rail 5`."""
    element, is_loaded = look
    name = "spines"
    if element != "spine":
        name = f"{_plural(_ELEMENTS[element], indices)} {', '.join(_ranges(indices))}"
    return f"hot {name}" if is_loaded else name


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """Yield sorted numbers as `0 to 3`, `5`."""
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        if len(run) > 2:
            yield f"{run[0]} to {run[-1]}"
        else:
            yield ", ".join(map(str, run))


def _label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write the labels at the right of a panel, each after a piece of its line that leads to it."""
    for label in labels:
        colour, dash = _LOOKS[label.look]
        x = [1.0, 1.012, 1.03]
        ends = [label.end, label.y, label.y]
        axes.plot(x, ends, color=colour, ls=dash, lw=1.6, transform=axes.transAxes, clip_on=False)
        axes.annotate(label.text, (1.037, label.y), xycoords="axes fraction", va="center", fontsize=9)


def _areas(axes: Axes, times: Sequence[float], shares: pd.DataFrame) -> None:
    """Draw the shares of the foreground's pairs, one on the other."""
    names = list(map(str, shares))
    rails = 1 + max(map(rail_of, names), default=0)
    below = np.zeros(len(times))
    patches: list[Patch] = []
    for name in names:
        kind = _kind_of(name)
        colour = _shade(kind, rail_of(name), rails)
        hatch = _HATCHES.get(kind, "")
        patches.append(_patch(colour, hatch, name))
        look: dict[str, Any] = {"facecolor": colour, "hatch": hatch, "edgecolor": plots.PAPER}
        area = axes.fill_between(times, below, below + shares[name], step="post", lw=0, **look)
        mark(area, "", f"{name}: {percent(shares[name].min(), 0)} to {percent(shares[name].max(), 0)} of pairs")
        below = below + shares[name].to_numpy()
    axes.set_ylabel("pairs by path")
    if len(names) > _MAX_NAMED:
        patches = _patches_of_kinds(names, rails)
    # from top to bottom, as the areas are
    _legend(axes, patches[::-1])


def _patches_of_kinds(names: Sequence[str], rails: int) -> list[Patch]:
    """Return a patch for each kind of path, which stands for the shades of all its rails."""
    counts = Counter(map(_kind_of, names))
    patches: list[Patch] = []
    for kind, count in counts.items():
        text = kind
        if count > 1:
            text = f"{kind}, by rail 0 to {rails - 1}:\nlight to dark"
        patches.append(_patch(_shade(kind, 1, 3), _HATCHES.get(kind, ""), text))
    return patches


def _kind_of(path: str) -> str:
    """Return the kind of a path such as `drd by rail 4`."""
    return path.partition(" ")[0]


def _shade(kind: str, rail: int, rails: int) -> str:
    """Return the colour of a kind of path, darker for higher rails."""
    return plots.shade(_KINDS.get(kind, _KINDS["none"]), rail, rails)


def _patch(colour: str, hatch: str, name: str) -> Patch:
    return Patch(facecolor=colour, edgecolor=plots.PAPER, linewidth=0, hatch=hatch, label=name)


def _legend(axes: Axes, handles: Sequence[Line2D | Patch]) -> None:
    if handles:
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=9, handlelength=1.2)


def _alt(name: str, interval: MeasurementInterval, spans: Iterable[Span], shares: pd.DataFrame) -> str:
    samples_by_element = grouped(interval.health, "element")
    alt_parts: list[str] = []
    for element, name_of_one in _ELEMENTS.items():
        scores = [sample.score for sample in samples_by_element.get(element, ())]
        if scores:
            alt_parts.append(f"scores of {name_of_one}s from {min(scores)} to {max(scores)}")
    for path, share in shares.iloc[-1].items():
        if share > 0:
            alt_parts.append(f"{percent(share, 0)} of pairs by {path} at the end")
    loads = [sample.load for sample in samples_by_element.get("rail", ())]
    if loads:
        alt_parts.append(f"rails loaded to {percent(max(loads), 0)} at most")
    background_names = ", ".join(dict.fromkeys(span.load for span in spans)) or "none"
    return f"Scores, choices and load over time of {name}. Background: {background_names}. {'; '.join(alt_parts)}"
