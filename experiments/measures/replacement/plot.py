"""Steps of replacements over time, in a figure for each case."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from railyard.experiments.measures.faults.plot import REPEAT_MARKS, STEP_LINE, annotate_time, step_axes
from railyard.results.format import milliseconds
from railyard.results.plots import style
from railyard.results.runs.records import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Timeline = Mapping[str, float]  # time of each step of one replacement, in ms after its fault
STEPS: Final = (
    "detected", "decided", "optical-links-down", "adopted", "optical-links-up", "replaced", "state-moved",
    "job-resumed",
)  # fmt: skip
"""As events.jsonl has them."""
_LAST_STEP: Final = STEPS[-1]
_CAPTION: Final = (
    "All repeats are thin marks; dots joined by a line are the repeat with the median interruption, with its times."
)
_MIN_MS: Final = 1.0  # ms: what is sooner stands there


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
        timeline: Timeline = {step: (times[step] - times["fault"]) / 1e6 for step in STEPS if step in times}
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
    reached = {y: timeline[step] for y, step in enumerate(steps) if step in timeline}
    at = [max(ms, _MIN_MS) for ms in reached.values()]
    axes.plot(at, list(reached), color=style.BLUE, lw=1.1, marker="o", ms=5, alpha=0.8)
    for y, ms in reached.items():
        annotate_time(axes, max(ms, _MIN_MS), y, ms, is_left=ms > longest_ms / 30)


def _case(case: str, columns: Mapping[str, Sequence[Timeline]]) -> style.Plot:
    known = [timeline for timelines in columns.values() for timeline in timelines]
    steps = [step for step in STEPS if any(step in timeline for timeline in known)]
    ticks = {10.0**power: f"{'≤ ' if not power else ''}{10**power:,}" for power in range(6)}
    longest_ms = max(timeline[_LAST_STEP] for timeline in known)
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
