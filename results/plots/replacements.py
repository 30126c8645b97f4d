"""Takeovers step by step: a figure a case of Rail-only IV-C, a line a step, in ms after the fault (logarithmic)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from railyard.results.plots import style
from railyard.results.plots.recovery_steps import annotate_time
from railyard.results.runs.records import Event
from railyard.results.views.format import milliseconds

Timeline = Mapping[str, float]
"""Time of each step of one replacement, in ms after its fault."""
STEPS: Final = ("detected", "decided", "light-off", "adopted", "light-on", "taken-over", "state-moved", "job-goes-on")
"""As events.jsonl has them."""
_LAST_STEP: Final = STEPS[-1]
_CAPTION: Final = (
    "All repeats are thin marks; dots joined by a line are the repeat with the median interruption, whose times stand "
    "at the right."
)
_LINE: Final = 0.25  # inches a step
_MIN_MS: Final = 1.0  # ms: what is sooner stands there
_TICKS: Final = (1, 10, 100, 1000, 10_000, 100_000)


def takeovers(events: Iterable[Event]) -> list[style.Plot]:
    """In the order in which the cases were first run. Empty without events of a replacement."""
    timelines = _timelines(events)
    cases = dict.fromkeys(case for case, _ in timelines)
    return [
        _case(case, {column: found for (event_case, column), found in timelines.items() if event_case == case})
        for case in cases
    ]


def _timelines(events: Iterable[Event]) -> dict[tuple[str, str], list[Timeline]]:
    """Group by case, and by fabric, method and failed part, which share a column."""
    at: defaultdict[tuple[str, str, int], dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.source == "takeover":
            detail = event.detail
            column = f"{detail['fabric']}, {detail['way']}, {detail['failed']}"
            at[detail["case"], column, detail["repeat"]][event.what] = event.monotonic_ns
    found: defaultdict[tuple[str, str], list[Timeline]] = defaultdict(list)
    for (case, column, _), times in at.items():
        found[case, column].append({step: (times[step] - times["fault"]) / 1e6 for step in STEPS if step in times})
    return found


def _case(case: str, columns: Mapping[str, Sequence[Timeline]]) -> style.Plot:
    known = [timeline for timelines in columns.values() for timeline in timelines]
    steps = [step for step in STEPS if any(step in timeline for timeline in known)]
    with style.styled():
        figure = style.new_figure(style.WIDTH, _LINE * (len(steps) + 1) + 0.9)
        grid = figure.subplots(1, len(columns), squeeze=False)
        for number, (column, timelines) in enumerate(columns.items()):
            axes = grid[0][number]
            axes.set_title(column)
            _draw(axes, timelines, steps, names=number == 0)
            axes.set_xlim(_MIN_MS * 0.85, max(timeline[_LAST_STEP] for timeline in known) * 1.5)
        alt_text = "; ".join(
            f"median repeat of {column}: {_alt_text(_median_timeline(timelines))}"
            for column, timelines in columns.items()
        )
        return style.finish(figure, f"takeover-{case}", f"Steps of takeovers, {case}. {alt_text}", _CAPTION)


def _draw(axes: Axes, timelines: Sequence[Timeline], steps: Sequence[str], names: bool) -> None:
    median_timeline = _median_timeline(timelines)
    for y, step in enumerate(steps):
        at = [_place(timeline[step]) for timeline in timelines if step in timeline]
        axes.plot(at, [y] * len(at), ls="none", marker="|", ms=9, mew=0.8, color=style.BLUE, alpha=0.45)
    reached = [(y, median_timeline[step]) for y, step in enumerate(steps) if step in median_timeline]
    at, lines = [_place(ms) for _, ms in reached], [y for y, _ in reached]
    axes.plot(at, lines, color=style.BLUE, lw=1.1, marker="o", ms=5, alpha=0.8)
    for y, ms in reached:
        annotate_time(axes, y, ms, style.BLUE)
    axes.set_xscale("log")
    axes.set_ylim(len(steps) - 0.5, -0.5)
    axes.set_yticks(range(len(steps)), steps if names else [""] * len(steps))
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"≤ {ms:g}" if ms == _MIN_MS else f"{ms:,.0f}"))
    axes.set_xlabel("ms after the fault")
    style.quiet(axes, grid="x")


def _median_timeline(timelines: Sequence[Timeline]) -> Timeline:
    """The repeat in the middle by how long the job stood."""
    return sorted(timelines, key=lambda timeline: timeline[_LAST_STEP])[(len(timelines) - 1) // 2]


def _alt_text(timeline: Timeline) -> str:
    return ", ".join(f"{step} {milliseconds(ms)}" for step, ms in timeline.items())


def _place(ms: float) -> float:
    return max(ms, _MIN_MS)
