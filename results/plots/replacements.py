"""Takeovers step by step: a figure a case of Rail-only IV-C, a line a step, in ms after the fault (logarithmic)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from railyard.results.plots import style
from railyard.results.plots.recovery_steps import tell
from railyard.results.runs.records import Event
from railyard.results.views.format import milliseconds

Course = Mapping[str, float]
"""When each step of one takeover was, in ms after its fault."""
STEPS: Final = ("detected", "decided", "light-off", "adopted", "light-on", "taken-over", "state-moved", "job-goes-on")
"""As events.jsonl has them."""
_LAST: Final = STEPS[-1]
_CAPTION: Final = (
    "All repeats are thin marks; dots joined by a line are the repeat with the median interruption, whose times stand "
    "at the right."
)
_LINE: Final = 0.25  # inches a step
_LEAST: Final = 1.0  # ms: what is sooner stands there
_TICKS: Final = (1, 10, 100, 1000, 10_000, 100_000)


def takeovers(events: Iterable[Event]) -> list[style.Plot]:
    """In the order in which the cases were first run. None where no events tell of a takeover."""
    courses = _courses(events)
    cases = dict.fromkeys(case for case, _ in courses)
    return [_case(case, {where: found for (its, where), found in courses.items() if its == case}) for case in cases]


def _courses(events: Iterable[Event]) -> dict[tuple[str, str], list[Course]]:
    """By case, and by fabric, way and what failed, which are told in one."""
    at: defaultdict[tuple[str, str, int], dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.source == "takeover":
            told = event.detail
            where = f"{told['fabric']}, {told['way']}, {told['failed']}"
            at[told["case"], where, told["repeat"]][event.what] = event.monotonic_ns
    found: defaultdict[tuple[str, str], list[Course]] = defaultdict(list)
    for (case, where, _), times in at.items():
        found[case, where].append({step: (times[step] - times["fault"]) / 1e6 for step in STEPS if step in times})
    return found


def _case(case: str, columns: Mapping[str, Sequence[Course]]) -> style.Plot:
    known = [course for courses in columns.values() for course in courses]
    steps = [step for step in STEPS if any(step in course for course in known)]
    with style.styled():
        figure = style.new_figure(style.WIDTH, _LINE * (len(steps) + 1) + 0.9)
        grid = figure.subplots(1, len(columns), squeeze=False)
        for number, (where, courses) in enumerate(columns.items()):
            axes = grid[0][number]
            axes.set_title(where)
            _draw(axes, courses, steps, names=number == 0)
            axes.set_xlim(_LEAST * 0.85, max(course[_LAST] for course in known) * 1.5)
        said = "; ".join(f"median repeat of {where}: {_said(_middle(courses))}" for where, courses in columns.items())
        return style.finish(figure, f"takeover-{case}", f"Steps of takeovers, {case}. {said}", _CAPTION)


def _draw(axes: Axes, courses: Sequence[Course], steps: Sequence[str], names: bool) -> None:
    middle = _middle(courses)
    for y, step in enumerate(steps):
        at = [_place(course[step]) for course in courses if step in course]
        axes.plot(at, [y] * len(at), ls="none", marker="|", ms=9, mew=0.8, color=style.BLUE, alpha=0.45)
    came = [(y, middle[step]) for y, step in enumerate(steps) if step in middle]
    at, lines = [_place(ms) for _, ms in came], [y for y, _ in came]
    axes.plot(at, lines, color=style.BLUE, lw=1.1, marker="o", ms=5, alpha=0.8)
    for y, ms in came:
        tell(axes, y, ms, style.BLUE)
    axes.set_xscale("log")
    axes.set_ylim(len(steps) - 0.5, -0.5)
    axes.set_yticks(range(len(steps)), steps if names else [""] * len(steps))
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"≤ {ms:g}" if ms == _LEAST else f"{ms:,.0f}"))
    axes.set_xlabel("ms after the fault")
    style.quiet(axes, grid="x")


def _middle(courses: Sequence[Course]) -> Course:
    """The repeat in the middle by how long the job stood."""
    return sorted(courses, key=lambda course: course[_LAST])[(len(courses) - 1) // 2]


def _said(course: Course) -> str:
    return ", ".join(f"{step} {milliseconds(ms)}" for step, ms in course.items())


def _place(ms: float) -> float:
    return max(ms, _LEAST)
