"""What each policy made of a steered run: its time, beside dr and the oracle, and how much it changed for that. Pure.

| figure      | is                                                                                           |
|-------------|----------------------------------------------------------------------------------------------|
| over dr     | dr's time over this policy's: how many times faster. Median over the repeats that both have  |
| over oracle | this policy's time over the oracle's, in the same way: 1 is the best that can be             |
| changes     | routes put in or removed while the foreground ran, a second, over all repeats                |
| most        | how often the paths of one pair changed in a stretch, of the pair nearest to the dwell limit |
| reaction    | from scores to the last route that follows from them, acknowledged                           |
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.intervals import Pair, Stretch, base_labels, dwell_s, policies_of, stretches
from railyard.results.runs.records import Event, Measurement, Run

BASE: Final = "dr"
BEST: Final = "oracle"
BLIND: Final = frozenset({"dr", "rd", "ecmp", "random", "oracle"})
"""Policies that don't go by scores; all others, a user's among them, may."""
Place = tuple[str, str]
"""A fabric, without policy, and a workload."""


@dataclass(frozen=True, slots=True)
class Crowded:
    """The pair that came nearest to its dwell limit: `changes` of at most `allowed` in `stretch`."""

    stretch: Stretch
    pair: Pair
    changes: int
    allowed: int


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy on one fabric (its label without policy) and workload. None where it isn't known.

    `times`: s, a repeat each. `predicted` (s) is the median of the repeats', whose traffic may differ; `ratio` the
    median of measured over predicted. `changes_per_s`: routes of all pairs. `most`: None without a dwell time.
    """

    fabric: str
    workload: str
    policy: str
    times: tuple[float, ...]
    predicted: float | None
    ratio: float | None
    over_dr: float | None
    over_oracle: float | None
    changes_per_s: float | None
    most: Crowded | None
    reaction_ms: float | None
    worst_reaction_ms: float | None

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
            "most_changes_of_a_pair": self.most and self.most.changes,
            "allowed_changes_of_a_pair": self.most and self.most.allowed,
            "reaction_ms_median": self.reaction_ms,
            "reaction_ms_worst": self.worst_reaction_ms,
        }


def policy_rows(run: Run) -> dict[Place, tuple[PolicyRow, ...]]:
    """For each fabric and workload a row a policy, in the spec's order. Empty if nobody steered."""
    told = stretches(run)
    if not told:
        return {}
    wholes = _wholes(run)
    order = list(dict.fromkeys([*policies_of(run), *(policy for _, _, policy in wholes)]))
    return {
        place: tuple(
            _row((*place, policy), wholes, told, dwell_s(run)) for policy in order if (*place, policy) in wholes
        )
        for place in dict.fromkeys((fabric, workload) for fabric, workload, _ in wholes)
    }


def _wholes(run: Run) -> dict[tuple[str, str, str], dict[int, Measurement]]:
    """(fabric, workload, policy) -> the whole workload's time in each repeat."""
    bases = base_labels(run)
    found: defaultdict[tuple[str, str, str], dict[int, Measurement]] = defaultdict(dict)
    for m in run.measurements:
        if m.metric in TIME_METRICS and not m.phase:
            found[bases[m.fabric], m.workload, m.policy][m.repeat] = m
    return found


def _row(
    key: tuple[str, str, str],
    wholes: Mapping[tuple[str, str, str], Mapping[int, Measurement]],
    told: Iterable[Stretch],
    dwell: float | None,
) -> PolicyRow:
    fabric, workload, _ = key
    mine, own = wholes[key], [s for s in told if (s.fabric, s.workload, s.policy) == key]
    known = [m.predicted for m in mine.values() if m.predicted]
    ratios = [m.ratio for m in mine.values() if m.ratio is not None]
    took = [ms for s in own for ms in _reactions_ms(s)]
    return PolicyRow(
        *key,
        times=tuple(m.value for m in mine.values()),
        predicted=median(known) if known else None,
        ratio=median(ratios) if ratios else None,
        over_dr=_over(wholes.get((fabric, workload, BASE), {}), mine),
        over_oracle=_over(mine, wholes.get((fabric, workload, BEST), {})),
        changes_per_s=_changes_per_s(own),
        most=most_crowded(own, dwell) if dwell else None,
        reaction_ms=median(took) if took else None,
        worst_reaction_ms=max(took) if took else None,
    )


def _reactions_ms(stretch: Stretch) -> list[float]:
    """For each version of the scores, until the last of the routes that follow from it at once."""
    found: dict[int, float] = {}
    for event in rerouted(stretch):
        if event.detail["ms"] is not None:
            version = event.detail["version"]
            found[version] = max(found.get(version, 0.0), float(event.detail["ms"]))
    return list(found.values())


def _over(these: Mapping[int, Measurement], those: Mapping[int, Measurement]) -> float | None:
    """The median ratio of the times in the same repeat: another repeat is another seed, and so other traffic."""
    ratios = [these[r].value / those[r].value for r in these if r in those and those[r].value > 0]
    return median(ratios) if ratios else None


def rerouted(stretch: Stretch) -> tuple[Event, ...]:
    """Each change of scores that changed routes."""
    return tuple(e for e in stretch.told if (e.source, e.what) == ("steering", "changed"))


def _changes_per_s(own: Sequence[Stretch]) -> float | None:
    lasted = sum(s.foreground_s for s in own)
    routes = sum(
        int(e.detail["routes"]) for s in own for e in rerouted(s) if s.started_ns <= e.monotonic_ns <= s.finished_ns
    )
    return routes / lasted if lasted else None


def most_crowded(own: Iterable[Stretch], dwell: float) -> Crowded | None:
    """Of all pairs, the one with most changes for what its stretch allows: 1 + t / dwell (s). None without a pair."""
    found = []
    for stretch in own:
        allowed = 1 + int((stretch.end_ns - stretch.begin_ns) / 1e9 / dwell)
        found += [Crowded(stretch, pair, count, allowed) for pair, count in stretch.changes().items()]
    return max(found, key=lambda c: c.changes / c.allowed, default=None)
