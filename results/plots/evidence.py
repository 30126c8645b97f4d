"""Evidence of fidelity in one figure: every finding of a run beside its limits."""

from collections.abc import Sequence

from railyard.results.analysis.findings import Finding
from railyard.results.analysis.limits import LIMITS, Limit
from railyard.results.format import interval_label
from railyard.results.plots import style
from railyard.results.plots.svg import mark


def evidence(findings: Sequence[Finding]) -> style.Plot | None:
    """Every finding on one scale: 0 is ideal, 1 where it becomes degraded, 2 where it becomes invalid. What may not be
    at all has no scale."""
    limits = [x for x in LIMITS if x.degraded and any(f.limit == x for f in findings)]
    if not limits:
        return None
    with style.drawing(0.8 + 0.34 * len(limits)) as figure:
        axes = figure.subplots()
        worst = []

        def place(value: float, limit: Limit) -> float:
            if value <= limit.degraded:
                return value / limit.degraded
            return min(2.9, 1 + (value - limit.degraded) / (limit.invalid - limit.degraded or 1.0))

        for left, colour in enumerate((style.GREEN, style.YELLOW, style.VERMILION)):
            axes.axvspan(left, left + 1, color=colour, alpha=0.14, lw=0)
        for number, limit in enumerate(limits):
            of_limit = [f for f in findings if f.limit == limit]
            values = [f.value for f in of_limit]
            places = [place(f.value, f.limit) for f in of_limit]
            dots = axes.plot(
                places, [number] * len(places), "o", ms=5, alpha=0.45, mew=0, color=style.INK, clip_on=False
            )
            mark(dots, "", *(f"{interval_label(f.interval)}: {limit.show(f.value)}" for f in of_limit))
            axes.text(3.04, number, f"worst {limit.show(max(values))}", va="center")
            worst.append(f"{limit.quantity} at worst {limit.show(max(values))}")
        axes.set_yticks(range(len(limits)), [x.quantity for x in limits])
        axes.set(xlim=(0, 3), ylim=(len(limits) - 0.5, -0.5))
        axes.set_xticks([0.5, 1.5, 2.5], ["ok", "degraded", "invalid"])
        style.quiet(axes)
        axes.tick_params(axis="y", pad=9)  # a dot at zero is as wide as this
        return style.finish(figure, "evidence", f"Fidelity evidence, all intervals: {'; '.join(worst)}")
