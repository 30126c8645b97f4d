"""What each policy made of a steered run: its time, beside dr and the oracle, and how much it changed for that. Pure.

| figure      | is                                                                                           |
|-------------|----------------------------------------------------------------------------------------------|
| over dr     | dr's time over this policy's: how many times faster. Median over the repeats that both have  |
| over oracle | this policy's time over the oracle's, in the same way: 1 is the best that can be             |
| changes     | routes put in or removed while the foreground ran, a second, over all repeats                |
| most        | how often the paths of one pair changed in one interval, of the pair nearest to the limit   |
| reaction    | from scores to the last route that follows from them, acknowledged                           |
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from railyard.core.records import IntervalId
from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.intervals import MeasurementInterval, Pair
from railyard.results.runs.records import Event, Measurement, Run
from railyard.results.views.labels import workload_label

BASELINE_POLICY: Final = "dr"
ORACLE_POLICY: Final = "oracle"
FabricWorkload = tuple[str, IntervalId]
"""A fabric, and what ran on it."""


@dataclass(frozen=True, slots=True)
class MostChangedPair:
    """The pair that came nearest to its dwell limit: `changes` of at most `allowed` in `interval`."""

    interval: MeasurementInterval
    pair: Pair
    changes: int
    allowed: int


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy on one fabric and workload. None where it isn't known.

    `times`: s, a repeat each. `predicted` (s) is the median of the repeats', whose traffic may differ; `ratio` the
    median of measured over predicted. `changes_per_s`: routes of all pairs. `most_changed`: None without a dwell time.
    """

    fabric: str
    work: IntervalId
    policy: str
    times: tuple[float, ...]
    predicted: float | None
    ratio: float | None
    over_dr: float | None
    over_oracle: float | None
    changes_per_s: float | None
    most_changed: MostChangedPair | None
    reaction_ms: float | None
    worst_reaction_ms: float | None

    @property
    def workload(self) -> str:
        """Its label."""
        return workload_label(self.work)

    @property
    def median(self) -> float:
        return median(self.times)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for summary.json."""
        return {
            "fabric": self.fabric,
            "workload": self.workload,
            "policy": self.policy,
            "median": self.median,
            "min": min(self.times),
            "max": max(self.times),
            "repeats": len(self.times),
            "predicted": self.predicted,
            "ratio": self.ratio,
            "over_dr": self.over_dr,
            "over_oracle": self.over_oracle,
            "route_changes_per_s": self.changes_per_s,
            "most_changes_of_a_pair": self.most_changed and self.most_changed.changes,
            "allowed_changes_of_a_pair": self.most_changed and self.most_changed.allowed,
            "reaction_ms_median": self.reaction_ms,
            "reaction_ms_worst": self.worst_reaction_ms,
        }


def policy_rows(run: Run, intervals: Sequence[MeasurementInterval]) -> dict[FabricWorkload, tuple[PolicyRow, ...]]:
    """Return a row for each fabric, workload and policy, in the spec's order. Empty unless policies steered."""
    if not intervals:
        return {}
    completion_times = _completion_times(run)
    order = list(dict.fromkeys([*run.policies, *(policy for _, _, policy in completion_times)]))
    return {
        place: tuple(
            _row((*place, policy), completion_times, intervals, run.dwell_s)
            for policy in order
            if (*place, policy) in completion_times
        )
        for place in dict.fromkeys((fabric, workload) for fabric, workload, _ in completion_times)
    }


def _completion_times(run: Run) -> dict[tuple[str, IntervalId, str], dict[int, Measurement]]:
    """(fabric, what ran, policy) -> the whole workload's time in each repeat."""
    found: defaultdict[tuple[str, IntervalId, str], dict[int, Measurement]] = defaultdict(dict)
    for m in run.measurements:
        if m.metric in TIME_METRICS and not m.phase:
            found[m.fabric, m.interval.work, m.policy][m.repeat] = m
    return found


def _row(
    key: tuple[str, IntervalId, str],
    completion_times: Mapping[tuple[str, IntervalId, str], Mapping[int, Measurement]],
    intervals: Iterable[MeasurementInterval],
    dwell: float | None,
) -> PolicyRow:
    fabric, workload, _ = key
    measurements, own_intervals = (
        completion_times[key],
        [s for s in intervals if (s.fabric, s.id.work, s.policy) == key],
    )
    known = [m.predicted for m in measurements.values() if m.predicted]
    ratios = [m.ratio for m in measurements.values() if m.ratio is not None]
    reactions_ms = [ms for s in own_intervals for ms in _reactions_ms(s)]
    return PolicyRow(
        *key,
        times=tuple(m.value for m in measurements.values()),
        predicted=median(known) if known else None,
        ratio=median(ratios) if ratios else None,
        over_dr=_median_ratio(completion_times.get((fabric, workload, BASELINE_POLICY), {}), measurements),
        over_oracle=_median_ratio(measurements, completion_times.get((fabric, workload, ORACLE_POLICY), {})),
        changes_per_s=_changes_per_s(own_intervals),
        most_changed=most_changed_pair(own_intervals, dwell) if dwell else None,
        reaction_ms=median(reactions_ms) if reactions_ms else None,
        worst_reaction_ms=max(reactions_ms) if reactions_ms else None,
    )


def _reactions_ms(interval: MeasurementInterval) -> list[float]:
    """For each version of the scores, until the last of the routes that follow from it at once."""
    found: dict[int, float] = {}
    for event in rerouted(interval):
        if event.detail["ms"] is not None:
            version = event.detail["version"]
            found[version] = max(found.get(version, 0.0), float(event.detail["ms"]))
    return list(found.values())


def _median_ratio(numerators: Mapping[int, Measurement], denominators: Mapping[int, Measurement]) -> float | None:
    """The median ratio of the times in the same repeat: another repeat is another seed, and so other traffic."""
    ratios = [
        numerators[r].value / denominators[r].value
        for r in numerators
        if r in denominators and denominators[r].value > 0
    ]
    return median(ratios) if ratios else None


def rerouted(interval: MeasurementInterval) -> tuple[Event, ...]:
    """Each change of scores that changed routes."""
    return tuple(e for e in interval.events if (e.source, e.what) == ("steering", "changed"))


def _changes_per_s(own_intervals: Sequence[MeasurementInterval]) -> float | None:
    duration_s = sum(s.foreground_s for s in own_intervals)
    routes = sum(
        int(e.detail["routes"])
        for s in own_intervals
        for e in rerouted(s)
        if s.started_ns <= e.monotonic_ns <= s.finished_ns
    )
    return routes / duration_s if duration_s else None


def most_changed_pair(own_intervals: Iterable[MeasurementInterval], dwell: float) -> MostChangedPair | None:
    """Of all pairs, the one with most changes for what its interval allows: 1 + t / dwell (s). None without a pair."""
    found = []
    for interval in own_intervals:
        allowed = 1 + int((interval.end_ns - interval.begin_ns) / 1e9 / dwell)
        found += [MostChangedPair(interval, pair, count, allowed) for pair, count in interval.changes().items()]
    return max(found, key=lambda c: c.changes / c.allowed, default=None)
