"""One steered workload run over time: scores, the paths chosen by them, and the rails' load, one under the other.

On top, what background ran when; its times are shaded in every panel.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from railyard.results.analysis.steering import MeasurementInterval, path_shares, rail_of
from railyard.results.plots import style as plots
from railyard.results.plots.svg import mark
from railyard.results.runs.records import HealthSample
from railyard.results.views.format import percent, workload_label

_MAX_NAMED: Final = 8  # lines or areas up to which each is named
_MAX_POINTS: Final = 400  # of a line: a screen has no more
_ELEMENTS: Final = {
    "rail": ("rails", plots.RAIL_SHADES),
    "domain": ("HB domains", plots.DOMAIN_SHADES),
    "spine": ("spines", (plots.GREEN, plots.GREEN)),
}
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
    """Interval during which some background was on, in seconds after the foreground's start."""

    what: str
    begin: float
    end: float


def over_time(interval: MeasurementInterval) -> plots.Plot:
    """Four panels on one axis of seconds since the foreground's start."""
    name = f"{workload_label(interval.interval)} on {interval.fabric} under {interval.policy}"
    spans, shares = tuple(background(interval)), path_shares(interval, _MAX_POINTS)
    rows = list(dict.fromkeys(span.what for span in spans))
    background_height = 0.24 * max(1, len(rows))
    with plots.drawing(7.0 + background_height) as figure:
        grid = figure.subplots(4, 1, sharex=True, height_ratios=[background_height, 2.4, 2.4, 1.9])
        for span in spans:
            width, y = span.end - span.begin, rows.index(span.what)
            bar = grid[0].barh(y, width, left=span.begin, height=0.6, color=plots.MUTED, lw=0)
            mark(bar, "", f"{span.what}, from {span.begin:.2f} s to {span.end:.2f} s")
        grid[0].set_yticks(range(len(rows)), rows, fontsize=9)
        grid[0].set_title("background" if rows else "no background", fontsize=9, fontweight="normal")
        grid[0].spines[["left", "bottom"]].set_visible(False)
        grid[0].set_ylim(max(1, len(rows)) - 0.4, -0.6)
        _lines(grid[1], interval, tuple(_ELEMENTS), "score", "h-score")
        _areas(grid[2], [_seconds(interval, at) for at in shares.index], shares)
        _lines(grid[3], interval, ("rail",), "load", "load of rails")
        for axes, limits in zip(grid[1:], ((-3, 103), (0, 1), (0, 1.05)), strict=True):
            for span in spans:
                axes.axvspan(span.begin, span.end, color=plots.MUTED, alpha=0.13, lw=0, zorder=0)
            axes.set_ylim(limits)
        for axes in grid:
            for at_ns, style in ((interval.started_ns, "-"), (interval.finished_ns, "--")):
                axes.axvline(_seconds(interval, at_ns), color=plots.INK, lw=1.3, ls=style)
            plots.quiet(axes)
        for axes in grid[2:]:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        begin, end = _seconds(interval, interval.begin_ns), _seconds(interval, interval.end_ns)
        after_end = max(1e-9, end - begin) / 100  # so that a mark at the end is whole
        grid[3].tick_params(axis="x", pad=7)
        grid[3].set(xlim=(begin, end + after_end), xlabel="seconds since the foreground's start")
        return plots.finish(figure, f"steering-{name}", _alt(name, interval, spans, shares))


def background(interval: MeasurementInterval) -> Iterator[Span]:
    """Yield a span from each "on" to its "off", or to the end of the interval."""
    active_since: dict[str, float] = {}
    for event in sorted(interval.events, key=lambda e: e.monotonic_ns):
        if event.source == "background":
            detail, at = event.detail, _seconds(interval, event.monotonic_ns)
            parts = []  # `rails 0, 1`, where a run of before has no `text`
            for unit, numbers in (("rail", detail.get("rails") or ()), ("domain", detail.get("domains") or ())):
                if numbers:
                    parts.append(f"{unit if len(numbers) == 1 else unit + 's'} {', '.join(map(str, numbers))}")
            parts += ["spines"] if detail.get("spine") else []
            what = f"{detail.get('text', ' and '.join(parts))}: {percent(float(detail['load']), 0)}"
            if what in active_since:
                yield Span(what, active_since.pop(what), at)
            if event.what == "on":
                active_since[what] = at
    for what, start in active_since.items():
        yield Span(what, start, _seconds(interval, interval.end_ns))


def _seconds(interval: MeasurementInterval, at_ns: int) -> float:
    return (at_ns - interval.started_ns) / 1e9


def _lines(axes: Axes, interval: MeasurementInterval, elements: Sequence[str], what: str, title: str) -> None:
    """Draw a line for each element, and name each, or the colours' ends where there are too many."""
    found: defaultdict[tuple[str, int], list[HealthSample]] = defaultdict(list)
    for sample in interval.health:
        if sample.element in elements:
            found[sample.element, sample.index].append(sample)
    shown = sorted(found, key=lambda key: (elements.index(key[0]), key[1]))
    count = {element: 1 + max(index for e, index in shown if e == element) for element, _ in shown}
    keys = []
    for element, index in shown:
        every = found[element, index]
        samples = every[:: 1 + len(every) // _MAX_POINTS]
        times = [_seconds(interval, s.monotonic_ns) for s in samples]
        colour = plots.shade(_ELEMENTS[element][1], index, count[element])
        label = "spines" if element == "spine" else f"{element} {index}"
        dash = plots.DASHES[index % len(plots.DASHES)] if len(shown) <= _MAX_NAMED else "-"
        line = axes.plot(times, [getattr(s, what) for s in samples], color=colour, lw=1.4, ls=dash)
        mark(line, label, f"{title} of {label}")
        keys.append(Line2D([], [], color=colour, lw=2, ls=dash, label=label))
    if len(shown) > _MAX_NAMED:
        keys = []
        for element in count:
            name, ends = _ELEMENTS[element]
            lines = sum(e == element for e, _ in shown)
            text = f"{name}, 0 to {lines - 1}:\nlight to dark" if lines > 1 else name
            keys.append(Line2D([], [], color=plots.shade(ends, 1, 3), lw=4, label=text))
    axes.set_ylabel(title)
    axes.grid(axis="y")
    _legend(axes, keys)


def _areas(axes: Axes, times: Sequence[float], shares: pd.DataFrame) -> None:
    """Draw the shares of the foreground's pairs, one on the other."""
    names = [str(name) for name in shares]
    rails = 1 + max(map(rail_of, names), default=0)
    colours = {n: plots.shade(_KINDS.get(n.partition(" ")[0], _KINDS["none"]), rail_of(n), rails) for n in names}
    below = np.zeros(len(times))
    hatches = {name: _HATCHES.get(name.partition(" ")[0], "") for name in names}
    for name, colour in colours.items():
        look: dict[str, Any] = {"facecolor": colour, "hatch": hatches[name], "edgecolor": plots.PAPER}
        area = axes.fill_between(times, below, below + shares[name], step="post", lw=0, **look)
        mark(area, "", f"{name}: {percent(shares[name].min(), 0)} to {percent(shares[name].max(), 0)} of pairs")
        below = below + shares[name].to_numpy()
    axes.set_ylabel("pairs by path")
    if len(colours) <= _MAX_NAMED:
        _legend(axes, [_patch(colour, hatches[name], name) for name, colour in reversed(colours.items())])
        return
    kinds = dict.fromkeys(name.partition(" ")[0] for name in reversed(colours))
    middle = {kind: plots.shade(_KINDS.get(kind, _KINDS["none"]), 1, 3) for kind in kinds}
    several = {kind: sum(name.startswith(f"{kind} ") for name in colours) > 1 for kind in kinds}
    texts = {kind: f"{kind}, by rail 0 to {rails - 1}:\nlight to dark" if several[kind] else kind for kind in kinds}
    _legend(axes, [_patch(middle[kind], _HATCHES.get(kind, ""), texts[kind]) for kind in kinds])


def _patch(colour: str, hatch: str, name: str) -> Patch:
    return Patch(facecolor=colour, edgecolor=plots.PAPER, linewidth=0, hatch=hatch, label=name)


def _legend(axes: Axes, handles: Sequence[Line2D | Patch]) -> None:
    if handles:
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=9, handlelength=1.2)


def _alt(name: str, interval: MeasurementInterval, spans: Iterable[Span], shares: pd.DataFrame) -> str:
    alt_parts = []
    for element, (plural, _) in _ELEMENTS.items():
        scores = [s.score for s in interval.health if s.element == element]
        alt_parts += [f"scores of {plural} from {min(scores)} to {max(scores)}"] if scores else []
    at_end = [(path, share) for path, share in shares.iloc[-1].items() if share > 0]
    alt_parts += [f"{percent(share, 0)} of pairs by {path} at the end" for path, share in at_end]
    loads = [s.load for s in interval.health if s.element == "rail"]
    alt_parts += [f"rails loaded to {percent(max(loads), 0)} at most"] if loads else []
    background_names = ", ".join(dict.fromkeys(span.what for span in spans)) or "none"
    return f"Scores, choices and load over time of {name}. Background: {background_names}. {'; '.join(alt_parts)}"
