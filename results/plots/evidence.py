"""Evidence of fidelity in one figure: every finding of a run beside its limits."""

from collections.abc import Sequence

from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.findings import Finding
from railyard.results.analysis.limits import LIMITS
from railyard.results.format import interval_label
from railyard.results.plots import style
from railyard.results.plots.svg import mark


def evidence(findings: Sequence[Finding]) -> style.Plot | None:
    """Every finding on one scale: 0 is ideal, 1 where it becomes degraded, 2 where it becomes invalid. What may not be
    at all has no scale."""
    by_limit = grouped(findings, "limit")
    limits = [limit for limit in LIMITS if limit.degraded and limit in by_limit]
    if not limits:
        return None
    with style.drawing(0.8 + 0.34 * len(limits)) as figure:
        axes = figure.subplots()
        worst: list[str] = []
        for start, colour in enumerate((style.GREEN, style.YELLOW, style.VERMILION)):
            axes.axvspan(start, start + 1, color=colour, alpha=0.14, lw=0)
        for number, limit in enumerate(limits):
            places: list[float] = []
            tips: list[str] = []
            for finding in by_limit[limit]:
                places.append(_place(finding))
                tips.append(f"{interval_label(finding.interval)}: {limit.show(finding.value)}")
            dots = axes.plot(
                places, [number] * len(places), "o", ms=5, alpha=0.45, mew=0, color=style.INK, clip_on=False
            )
            mark(dots, "", *tips)
            worst_value = limit.show(max(finding.value for finding in by_limit[limit]))
            axes.text(3.04, number, f"worst {worst_value}", va="center")
            worst.append(f"{limit.quantity} at worst {worst_value}")
        axes.set_yticks(range(len(limits)), [limit.quantity for limit in limits])
        axes.set(xlim=(0, 3), ylim=(len(limits) - 0.5, -0.5))
        axes.set_xticks([0.5, 1.5, 2.5], ["ok", "degraded", "invalid"])
        style.quiet(axes)
        # a dot at zero is as wide as this
        axes.tick_params(axis="y", pad=9)
        return style.finish(figure, "evidence", f"Fidelity evidence, all intervals: {'; '.join(worst)}")


def _place(finding: Finding) -> float:
    """Return the place of a finding on the scale: 1 at its limit of degraded, 2 at that of invalid, 2.9 at most."""
    degraded = finding.limit.degraded
    if finding.value <= degraded:
        return finding.value / degraded
    # some limits leave nothing between degraded and invalid
    width = finding.limit.invalid - degraded or 1.0
    return min(2.9, 1 + (finding.value - degraded) / width)
