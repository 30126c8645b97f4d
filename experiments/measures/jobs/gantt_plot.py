"""Jobs over time: the phases of each job, by kind of traffic, and below when jobs shared which link."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.records import JOB_RUNS, LINK_SHARING, TOGETHER, LinkSharing
from railyard.results.plots import style
from railyard.results.runs.records import Flow, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINKS: Final = 12
"""Links in a figure: those that jobs shared longest."""
ROW: Final = 0.32
"""Height of a row, inches."""
_CAPTION: Final = (
    "All jobs together, first repeat. Above: when each job sends, by kind of traffic; gaps are computing and waiting."
    " Below: when jobs shared a link, a line in the colour of each job."
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
        flows = [flow for flow in run.flows if flow.interval == interval and flow.end_ns]
        sharings = [row for row in run.rows(LINK_SHARING) if row.interval == interval]
        if flows:
            plots.append(_gantt(interval, jobs, flows, sharings))
    return plots


def sending_spans(flows: Sequence[Flow]) -> dict[tuple[str, str], Spans]:
    """Return when each job sends each kind of traffic, s from the first transfer of all: overlapping ones merged."""
    first_ns = min(flow.start_ns for flow in flows)
    spans = defaultdict[tuple[str, str], Spans](list)
    for flow in sorted(flows, key=lambda flow: flow.start_ns):
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


def longest_shared(sharings: Sequence[LinkSharing]) -> list[str]:
    """Return the links that jobs shared longest, longest first, each with its direction."""
    shared_s = defaultdict[str, float](float)
    for row in sharings:
        shared_s[f"{row.link} {row.direction}"] += row.end_s - row.start_s
    return sorted(shared_s, key=lambda link: (-shared_s[link], link))[:MAX_LINKS]


def _gantt(
    interval: IntervalId, jobs: Sequence[str], flows: Sequence[Flow], sharings: Sequence[LinkSharing]
) -> style.Plot:
    """Draw the phases of all jobs of an interval, and the links that they shared."""
    links = longest_shared(sharings)
    heights = [len(jobs) + 1, max(1, len(links))]
    with style.drawing(ROW * (sum(heights) + 3)) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=heights)
        _draw_phases(upper, jobs, flows)
        _draw_links(lower, jobs, links, sharings)
        lower.set(xlabel="s")
        alt = f"{len(jobs)} jobs on {interval.fabric}: {', '.join(jobs)}. They shared {len(links)} links or more."
        if not links:
            alt = f"{len(jobs)} jobs on {interval.fabric}: {', '.join(jobs)}. They shared no link."
        return style.finish(figure, f"jobs-{interval.fabric}", alt, _CAPTION)


def _draw_phases(axes: "Axes", jobs: Sequence[str], flows: Sequence[Flow]) -> None:
    colours = style.kind_colours(flow.kind for flow in flows)
    for (job, kind), spans in sending_spans(flows).items():
        axes.broken_barh(spans, (jobs.index(job) - 0.4, 0.8), facecolors=colours[kind])
    for kind, colour in colours.items():
        axes.plot([], [], color=colour, lw=6, label=kind)
    axes.set_yticks(range(len(jobs)), jobs)
    axes.set_ylim(len(jobs) - 0.5, -0.5)
    axes.legend(loc="upper right", ncols=len(colours), fontsize=8)


def _draw_links(axes: "Axes", jobs: Sequence[str], links: Sequence[str], sharings: Sequence[LinkSharing]) -> None:
    lane = 0.8 / len(jobs)
    for row in sharings:
        link = f"{row.link} {row.direction}"
        if link not in links:
            continue
        for number, job in enumerate(jobs):
            # a lane for each job, so that it is visible which of them share
            if job in row.jobs.split(", "):
                place = (links.index(link) - 0.4 + number * lane, lane)
                axes.broken_barh([(row.start_s, row.end_s - row.start_s)], place, facecolors=style.SERIES[number % 8])
    for number, job in enumerate(jobs):
        axes.plot([], [], color=style.SERIES[number % 8], lw=6, label=job)
    axes.set_yticks(range(len(links)), links)
    axes.set_ylim(max(1, len(links)) - 0.5, -0.5)
    axes.legend(loc="upper right", ncols=len(jobs), fontsize=8)
