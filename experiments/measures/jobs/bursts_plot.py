"""Bursts of jobs on the link that they share most, before and after their interleaving."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from railyard.experiments.measures.jobs.records import JobBurst
from railyard.results.analysis.aggregate import grouped
from railyard.results.plots import style

_HEIGHT = 0.8  # of a bar, in rows


def bursts_plots(bursts: Sequence[JobBurst]) -> list[style.Plot]:
    """Return a figure for each fabric, of its first repeat: a panel for each mode, a row for each job."""
    plots: list[style.Plot] = []
    # repeats have the same shifts, and further figures would only show noise
    first = [burst for burst in bursts if burst.repeat == 0]
    for fabric, rows in grouped(first, "fabric").items():
        plots.append(_plot(fabric, rows))
    return plots


def _plot(fabric: str, bursts: Sequence[JobBurst]) -> style.Plot:
    jobs = list(dict.fromkeys(burst.job for burst in bursts))
    colours = style.colours(jobs)
    modes = grouped(bursts, "mode")
    with style.drawing(0.8 + len(modes) * (0.5 + 0.25 * len(jobs))) as figure:
        panels = figure.subplots(len(modes), 1, squeeze=False, sharex=True)[:, 0]
        for axes, (mode, rows) in zip(panels, modes.items(), strict=True):
            _draw(axes, jobs, rows, colours)
            axes.set_title(mode, loc="left")
        panels[-1].set_xlabel("seconds after the start")
        link = f"{bursts[0].link} {bursts[0].direction}"
        alt = f"Bursts of {', '.join(jobs)} at {link} on {fabric}, before and after their interleaving"
        caption = f"{fabric}: when each job sends over {link}, the link that jobs share most; first repeat."
        return style.finish(figure, f"bursts-{fabric}", alt, caption)


def _draw(axes: Axes, jobs: Sequence[str], bursts: Sequence[JobBurst], colours: dict[str, str]) -> None:
    """Draw the bursts of each job as bars in a row."""
    for row, job in enumerate(jobs):
        spans = [(burst.start_s, burst.end_s - burst.start_s) for burst in bursts if burst.job == job]
        axes.broken_barh(spans, (row - _HEIGHT / 2, _HEIGHT), color=colours[job])
    axes.set_yticks(range(len(jobs)), jobs)
    axes.invert_yaxis()
    style.quiet(axes, grid="x")
