"""Plots of jobs over time: their phases and the links that they share, and their bursts on the link shared most."""

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from matplotlib.patches import Patch

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.records import JOB_RUNS, LINK_SHARING, TOGETHER, JobBurst, LinkSharing
from railyard.results.analysis.aggregate import grouped
from railyard.results.plots import style
from railyard.results.runs.records import Flow, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINKS: Final = 12
"""Links in a figure: those that jobs shared longest."""
MAX_NAMES: Final = 3
"""Jobs that are named beside a link."""
NAME_WIDTH: Final = 20
"""Characters of the name of a job, so that long names leave room for the figure."""
ROW: Final = 0.32
"""Height of a row, inches."""
_BAR_HEIGHT: Final = 0.8
"""Of a row."""
_CAPTION: Final = (
    "All jobs together, first repeat. Above: when each job sends, by kind of traffic; gaps are computing and waiting."
    f" Below: when jobs shared a link, a line in the colour of each job; the {MAX_LINKS} links shared longest."
)
Spans = list[tuple[float, float]]
"""(start, length) in s, as matplotlib's bars have them."""


def gantt_plots(run: Run) -> list[style.Plot]:
    """Return a figure for each fabric on which jobs ran together."""
    jobs_of_interval = defaultdict[IntervalId, list[str]](list)
    for row in run.rows(JOB_RUNS):
        if row.mode == TOGETHER and row.repeat == 0:
            jobs_of_interval[row.interval].append(row.job)
    plots: list[style.Plot] = []
    for interval, jobs in jobs_of_interval.items():
        flows: list[Flow] = []
        for flow in run.flows:
            # a flow without an end was never delivered
            if flow.interval == interval and flow.end_ns:
                flows.append(flow)
        sharings: list[LinkSharing] = []
        for sharing in run.rows(LINK_SHARING):
            if sharing.interval == interval:
                sharings.append(sharing)
        if flows:
            plots.append(_gantt(interval, jobs, flows, sharings))
    return plots


def sending_spans(flows: Sequence[Flow]) -> dict[tuple[str, str], Spans]:
    """Return when each job sends each kind of traffic, s from the first transfer of all: overlapping ones merged."""
    first_ns = min(map(attrgetter("start_ns"), flows))
    spans = defaultdict[tuple[str, str], Spans](list)
    for flow in sorted(flows, key=attrgetter("start_ns")):
        job = flow.phase.partition(": ")[0]
        start_s = (flow.start_ns - first_ns) / 1e9
        end_s = (flow.end_ns - first_ns) / 1e9
        merged = spans[job, flow.kind]
        if merged and start_s <= sum(merged[-1]):
            begin_s, length_s = merged.pop()
            end_s = max(end_s, begin_s + length_s)
            start_s = begin_s
        merged.append((start_s, end_s - start_s))
    return dict(spans)


def shared_seconds(sharings: Sequence[LinkSharing]) -> dict[str, float]:
    """Return how long jobs shared each link, s, by link and direction: the longest first."""
    shared_s = defaultdict[str, float](float)
    for row in sharings:
        shared_s[f"{row.link} {row.direction}"] += row.end_s - row.start_s
    by_name = sorted(shared_s.items())
    return dict(sorted(by_name, key=itemgetter(1), reverse=True))


def _gantt(
    interval: IntervalId, jobs: Sequence[str], flows: Sequence[Flow], sharings: Sequence[LinkSharing]
) -> style.Plot:
    """Draw the phases of all jobs of an interval, and the links that they shared."""
    shared = list(shared_seconds(sharings))
    links = shared[:MAX_LINKS]
    heights = [len(jobs) + 1, max(1, len(links))]
    with style.drawing(ROW * (sum(heights) + 3)) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=heights)
        kinds = style.kind_colours(map(attrgetter("kind"), flows))
        _draw_phases(upper, jobs, flows, kinds)
        _draw_links(lower, jobs, links, sharings)
        lower.set(xlabel="s")
        patches: list[Patch] = []
        for kind, colour in kinds.items():
            patches.append(Patch(color=colour, label=kind))
        style.top_legend(figure, patches)
        number_shared = f"{len(shared)} links" if shared else "no link"
        alt = f"{len(jobs)} jobs on {interval.fabric}: {', '.join(jobs)}. They shared {number_shared}."
        return style.finish(figure, f"jobs-{interval.fabric}", alt, _CAPTION)


def _draw_phases(axes: "Axes", jobs: Sequence[str], flows: Sequence[Flow], kinds: dict[str, str]) -> None:
    """Draw a row for each job, with its colour beside its name. `kinds`: colour of each kind of traffic."""
    for (job, kind), spans in sending_spans(flows).items():
        axes.broken_barh(spans, (jobs.index(job) - 0.4, 0.8), facecolors=kinds[kind])
    at_edge = axes.get_yaxis_transform()
    for number in range(len(jobs)):
        axes.plot(0, number, "s", ms=9, color=_colour(number), transform=at_edge, clip_on=False)
    axes.set_yticks(range(len(jobs)), list(map(_short, jobs)))
    axes.set_ylim(len(jobs) - 0.5, -0.5)


def _draw_links(axes: "Axes", jobs: Sequence[str], links: Sequence[str], sharings: Sequence[LinkSharing]) -> None:
    """Draw a row for each link, in it a lane for each job that shared it, in the order of the jobs."""
    rows_by_link = defaultdict[str, list[LinkSharing]](list)
    for row in sharings:
        rows_by_link[f"{row.link} {row.direction}"].append(row)
    for position, link in enumerate(links):
        users = _users(jobs, rows_by_link[link])
        lane = 0.8 / max(1, len(users))
        for number, job in enumerate(users):
            spans: Spans = []
            for row in rows_by_link[link]:
                if job in row.jobs.split(", "):
                    spans.append((row.start_s, row.end_s - row.start_s))
            place = (position - 0.4 + number * lane, lane)
            axes.broken_barh(spans, place, facecolors=_colour(jobs.index(job)))
        # names at the right, since eight colours can't distinguish twenty jobs
        axes.text(1.01, position, _names(users), transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(links)), links)
    axes.set_ylim(max(1, len(links)) - 0.5, -0.5)


def _users(jobs: Sequence[str], rows: Sequence[LinkSharing]) -> list[str]:
    """Return the jobs that shared a link, in their order."""
    names: set[str] = set()
    for row in rows:
        names.update(row.jobs.split(", "))
    return sorted(names, key=jobs.index)


def _names(jobs: Sequence[str]) -> str:
    """Return the names of the first jobs, and how many more there are."""
    text = ", ".join(map(_short, jobs[:MAX_NAMES]))
    if len(jobs) > MAX_NAMES:
        text += f" and {len(jobs) - MAX_NAMES} more"
    return text


def _short(name: str) -> str:
    """Return the name of a job; of a long one the begin and the end, as names of like jobs may differ in either."""
    if len(name) <= NAME_WIDTH:
        return name
    half = NAME_WIDTH // 2
    return f"{name[:half]}…{name[-half:]}"


def _colour(number: int) -> str:
    """Return the colour of a job, by its number."""
    return style.SERIES[number % len(style.SERIES)]


def bursts_plots(bursts: Sequence[JobBurst]) -> list[style.Plot]:
    """Return a figure for each fabric, of its first repeat: a panel for each mode, a row for each job."""
    plots: list[style.Plot] = []
    # repeats have the same shifts, and further figures would only show noise
    first = [burst for burst in bursts if burst.repeat == 0]
    for fabric, rows in grouped(first, "fabric").items():
        plots.append(_bursts_plot(fabric, rows))
    return plots


def _bursts_plot(fabric: str, bursts: Sequence[JobBurst]) -> style.Plot:
    jobs = list(dict.fromkeys(burst.job for burst in bursts))
    colours = style.colours(jobs)
    modes = grouped(bursts, "mode")
    with style.drawing(0.8 + len(modes) * (0.5 + 0.25 * len(jobs))) as figure:
        panels = figure.subplots(len(modes), 1, squeeze=False, sharex=True)[:, 0]
        for axes, (mode, rows) in zip(panels, modes.items(), strict=True):
            _draw_bursts(axes, jobs, rows, colours)
            axes.set_title(mode, loc="left")
        panels[-1].set_xlabel("seconds after the start")
        link = f"{bursts[0].link} {bursts[0].direction}"
        alt = f"Bursts of {', '.join(jobs)} at {link} on {fabric}, before and after their interleaving"
        caption = f"{fabric}: when each job sends over {link}, the link that jobs share most; first repeat."
        return style.finish(figure, f"bursts-{fabric}", alt, caption)


def _draw_bursts(axes: "Axes", jobs: Sequence[str], bursts: Sequence[JobBurst], colours: dict[str, str]) -> None:
    """Draw the bursts of each job as bars in a row."""
    for row, job in enumerate(jobs):
        spans = [(burst.start_s, burst.end_s - burst.start_s) for burst in bursts if burst.job == job]
        axes.broken_barh(spans, (row - _BAR_HEIGHT / 2, _BAR_HEIGHT), color=colours[job])
    axes.set_yticks(range(len(jobs)), jobs)
    axes.invert_yaxis()
    style.quiet(axes, grid="x")
