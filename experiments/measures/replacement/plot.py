"""Steps of replacements over time, in a figure for each case."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from railyard.experiments.measures.faults.plot import REPEAT_MARKS, STEP_LINE, annotate_time, step_axes
from railyard.results.format import milliseconds
from railyard.results.plots import style
from railyard.results.runs.records import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The time of each step of a replacement, in ms after its fault.
Timeline = Mapping[str, float]
STEPS: Final = (
    "detected", "decided", "optical-links-down", "adopted", "optical-links-up", "replaced", "state-moved",
    "job-resumed",
)  # fmt: skip
"""As events.jsonl has them."""
_LAST_STEP: Final = STEPS[-1]
_CAPTION: Final = (
    "All repeats are thin marks; dots joined by a line are the repeat with the median interruption, with its times."
)
# Shorter times, ms, stand there: the axis is logarithmic.
_MIN_MS: Final = 1.0


def replacement_plots(events: Iterable[Event]) -> list[style.Plot]:
    """Return a figure a case of replacement, in the order in which the cases were first run.

    A column is a fabric, method and failed part.
    """
    at: defaultdict[tuple[str, str, int], dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.source == "replacement":
            detail = event.detail
            column = f"{detail['fabric']}, {detail['way']}, {detail['failed']}"
            at[detail["case"], column, detail["repeat"]][event.what] = event.monotonic_ns
    cases: defaultdict[str, defaultdict[str, list[Timeline]]] = defaultdict(lambda: defaultdict(list))
    for (case, column, _), times in at.items():
        timeline: dict[str, float] = {}
        for step in STEPS:
            if step in times:
                timeline[step] = (times[step] - times["fault"]) / 1e6
        cases[case][column].append(timeline)
    return [_case(case, columns) for case, columns in cases.items()]


def _plot_repeats(axes: "Axes", steps: Sequence[str], timelines: Sequence[Timeline]) -> None:
    for y, step in enumerate(steps):
        times_ms = [max(line[step], _MIN_MS) for line in timelines if step in line]
        axes.plot(times_ms, [y] * len(times_ms), color=style.BLUE, **REPEAT_MARKS)


def _middle_repeat(timelines: Sequence[Timeline]) -> Timeline:
    """Return the repeat in the middle by how long the job stood."""
    by_last_step = sorted(timelines, key=lambda timeline: timeline[_LAST_STEP])
    return by_last_step[(len(timelines) - 1) // 2]


def _plot_middle(axes: "Axes", steps: Sequence[str], timeline: Timeline, longest_ms: float) -> None:
    """Plot a repeat as a line, with the time of each step."""
    line_x: list[float] = []
    line_y: list[int] = []
    for y, step in enumerate(steps):
        if step in timeline:
            ms = timeline[step]
            line_x.append(max(ms, _MIN_MS))
            line_y.append(y)
            annotate_time(axes, max(ms, _MIN_MS), y, ms, is_left=ms > longest_ms / 30)
    axes.plot(line_x, line_y, color=style.BLUE, lw=1.1, marker="o", ms=5, alpha=0.8)


def _case(case: str, columns: Mapping[str, Sequence[Timeline]]) -> style.Plot:
    """Draw the replacements of a case, a column for each fabric, method and failed part."""
    all_timelines = list(chain.from_iterable(columns.values()))
    taken_steps = set(chain.from_iterable(all_timelines))
    steps = [step for step in STEPS if step in taken_steps]
    ticks = {10.0**power: f"{10**power:,}" for power in range(6)}
    ticks[_MIN_MS] = f"≤ {_MIN_MS:g}"
    longest_ms = max(timeline[_LAST_STEP] for timeline in all_timelines)
    alt_parts = []
    with style.drawing(STEP_LINE * (len(steps) + 1) + 0.9) as figure:
        grid = figure.subplots(1, len(columns), squeeze=False)
        for number, (column, timelines) in enumerate(columns.items()):
            axes = grid[0][number]
            axes.set_title(column)
            _plot_repeats(axes, steps, timelines)
            middle = _middle_repeat(timelines)
            _plot_middle(axes, steps, middle, longest_ms)
            step_axes(axes, steps, number == 0, ticks)
            axes.set(xlabel="ms after the fault", xlim=(_MIN_MS * 0.85, longest_ms * 1.5))
            times = ", ".join(f"{step} {milliseconds(ms)}" for step, ms in middle.items())
            alt_parts.append(f"median repeat of {column}: {times}")
        alt_text = f"Steps of replacements, {case}. {'; '.join(alt_parts)}"
        return style.finish(figure, f"replacement-{case}", alt_text, _CAPTION)
