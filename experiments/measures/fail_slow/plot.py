"""Iteration times of each case of fail-slow, over those before anything got slow."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

from railyard.core.records import IntervalId
from railyard.experiments.measures.fail_slow.records import IterationTime, SlowCase
from railyard.results.plots import style

COLOURS: Final = {"gpu": style.BLUE, "rail": style.ORANGE, "hb": style.PINK, "none": style.GREY}
LABELS: Final = {"gpu": "GPU slow", "rail": "rail link slow", "hb": "HB link slow", "none": "nothing slow"}
MARKERS: Final = {True: "o", False: "x"}
_CAPTION: Final = (
    "A line for each job: iteration time over the median before the change. A dot marks the first slow iteration as the"
    " detector reports it; a cross, a job in which it was wrong."
)


def iteration_plot(cases: Sequence[SlowCase], times: Sequence[IterationTime]) -> style.Plot:
    """Return the iteration times of all cases in one figure."""
    seconds = defaultdict[IntervalId, list[float]](list)
    for time in times:
        seconds[time.interval].append(time.seconds)
    with style.drawing(3.6) as figure:
        axes = figure.subplots()
        for case in cases:
            job_s = seconds[case.interval]
            healthy_s = median(job_s[: case.iteration])
            ratios = [iteration_s / healthy_s for iteration_s in job_s]
            colour = COLOURS[case.slow_part]
            axes.plot(ratios, color=colour, lw=1.1, alpha=0.8)
            if case.reported >= 0:
                axes.plot(case.reported, ratios[case.reported], MARKERS[case.is_right], color=colour, ms=6)
        # empty lines, so that the legend has each colour once
        parts = dict.fromkeys(case.slow_part for case in cases)
        for part in parts:
            axes.plot([], [], color=COLOURS[part], label=LABELS[part])
        axes.set(xlabel="iteration", ylabel="time over a healthy one")
        axes.grid(axis="y")
        axes.legend()
        right = sum(case.is_right for case in cases)
        alt = f"Iteration times of {len(cases)} jobs. The detector was right in {right} of them."
        return style.finish(figure, "fail-slow", alt, _CAPTION)
