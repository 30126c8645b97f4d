"""Check of damping: in any time t, a pair changes its paths at most 1 + t / dwell times."""

from collections.abc import Iterator

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.experiments.measures.steering.analysis import intervals_of, most_changed_pair
from railyard.experiments.measures.steering.recorded import recorded_dwell_s
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import interval_label
from railyard.results.measured import Check


def checks(analysis: Analysis) -> Iterator[Check]:
    """Yield the check of the pair that came nearest to the limit, if any policy damps its changes."""
    dwell_s = recorded_dwell_s(analysis.run)
    if not dwell_s:
        return
    damped = [interval for interval in analysis.derived(intervals_of) if _is_damped(interval.policy)]
    worst = most_changed_pair(damped, dwell_s)
    if worst is None:
        return
    interval = worst.interval
    place = interval_label(interval.interval, f"{interval.fabric} {interval.policy}")
    pair = " to ".join(worst.pair)
    yield Check(
        "route changes stay under the dwell limit",
        passed=worst.changes <= worst.allowed,
        detail=f"{worst.changes} of {worst.allowed} by {pair}, which came nearest to it ({place})",
        quantity="route changes of a pair",
        value=worst.changes,
        limit=worst.allowed,
        unit="changes",
        interval=interval.interval,
    )


def _is_damped(policy: str) -> bool:
    """Return whether a policy damps its changes; one of a plugin that isn't loaded now is taken to."""
    return policy not in HEALTH_POLICIES or HEALTH_POLICIES[policy].is_damped
