"""Runs in which policies steered routes: scores, choices and route changes by interval, and what each policy achieved.

A run is steered if its spec has `routing`. Then each fabric runs under each policy in turn. Times are monotonic ns.
What the figures are: docs/results.md.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from statistics import fmean, median
from typing import Final

import pandas as pd

from railyard.core.records import IntervalId, Record
from railyard.experiments.measures.steering.recorded import is_steered, recorded_dwell_s, recorded_policies
from railyard.experiments.measures.steering.records import CHOICES, HEALTH, Choice, HealthSample
from railyard.results.analysis.aggregate import TIME_METRICS, grouped, none_if_nan
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Event, FabricRun, Run, Verdict, worst_verdict
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.forwarding import Fabric, path_names, policy_shares

Pair = tuple[str, str]
_time = attrgetter("monotonic_ns")


@dataclass(frozen=True, slots=True)
class MeasurementInterval(Record):
    """One workload run under one policy.

    It lasts from the first record to the last; the workload itself, the foreground, `started` and `finished` within.
    `default_paths`: the path of each pair until its first choice. `events`: those of steering and background.
    """

    begin_ns: int
    end_ns: int
    started_ns: int
    finished_ns: int
    health: tuple[HealthSample, ...]
    choices: tuple[Choice, ...]
    default_paths: Mapping[Pair, str]
    events: tuple[Event, ...]

    def changes(self) -> dict[Pair, int]:
        """Return how often each pair's paths changed."""
        now = dict(self.default_paths)
        count = dict.fromkeys(self.default_paths, 0)
        for choice in self.choices:
            pair = (choice.src, choice.dst)
            count[pair] += now[pair] != choice.paths
            now[pair] = choice.paths
        return count


def intervals(run: Run) -> tuple[MeasurementInterval, ...]:
    """Return the steered intervals in the order in which they were run. Empty unless policies steered."""
    if not is_steered(run):
        return ()
    health = grouped(sorted(run.rows(HEALTH), key=_time), "interval")
    choices = grouped(sorted(run.rows(CHOICES), key=_time), "interval")
    spans = _workload_spans(run.events)
    times = _record_times(run, health, choices, spans)
    built = {fabric.label: fabric for fabric in run.fabrics}
    steering_events = [event for event in run.events if event.source in ("steering", "background")]
    steered: list[MeasurementInterval] = []
    previous_end_ns = 0
    # events have no interval of their own, but fabric and policy: those since the end of the previous interval belong
    # to this one, so intervals are taken in the order of their ends
    for interval in sorted(times, key=lambda interval: max(times[interval])):
        end_ns = max(times[interval])
        events = _events_between(steering_events, interval, previous_end_ns, end_ns)
        begin_ns = min([*times[interval], *map(_time, events)])
        interval_choices = tuple(choices.get(interval, ()))
        steered.append(
            MeasurementInterval(
                interval=interval,
                begin_ns=begin_ns,
                end_ns=end_ns,
                started_ns=spans[interval].get("started", begin_ns),
                finished_ns=spans[interval].get("finished", end_ns),
                health=tuple(health.get(interval, ())),
                choices=interval_choices,
                default_paths=_default_paths(built.get(interval.fabric), interval_choices),
                events=events,
            )
        )
        previous_end_ns = end_ns
    return tuple(steered)


def intervals_of(analysis: Analysis) -> tuple[MeasurementInterval, ...]:
    """Return the steered intervals of a run."""
    return intervals(analysis.run)


def _workload_spans(events: Iterable[Event]) -> defaultdict[IntervalId, dict[str, int]]:
    """Return when the workload of each interval `started` and `finished`."""
    spans: defaultdict[IntervalId, dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.source == "workload" and event.what in ("started", "finished"):
            spans[IntervalId.of(event.detail)][event.what] = event.monotonic_ns
    return spans


def _record_times(
    run: Run,
    health: Mapping[IntervalId, Sequence[HealthSample]],
    choices: Mapping[IntervalId, Sequence[Choice]],
    spans: defaultdict[IntervalId, dict[str, int]],
) -> dict[IntervalId, list[int]]:
    """Return the times of all records of each interval; intervals without any are left out."""
    measured = [measurement.interval for measurement in run.measurements]
    times: dict[IntervalId, list[int]] = {}
    for interval in dict.fromkeys([*health, *choices, *measured]):
        interval_times = [sample.monotonic_ns for sample in health.get(interval, ())]
        interval_times += [choice.monotonic_ns for choice in choices.get(interval, ())]
        interval_times += spans[interval].values()
        if interval_times:
            times[interval] = interval_times
    return times


def _events_between(events: Iterable[Event], interval: IntervalId, after_ns: int, until_ns: int) -> tuple[Event, ...]:
    """Return the events of the interval's fabric and policy after one time, and until another one."""
    place = (interval.fabric, interval.policy)
    matching: list[Event] = []
    for event in events:
        event_place = (event.detail.get("fabric"), event.detail.get("policy"))
        if event_place == place and after_ns < event.monotonic_ns <= until_ns:
            matching.append(event)
    return tuple(matching)


def _default_paths(fabric: FabricRun | None, choices: Iterable[Choice]) -> dict[Pair, str]:
    """Return the path of each pair until its first choice: that of the fabric's own routes.

    `fabric`: None if it was not recorded.
    """
    policy = "dr"
    shape = Fabric("rail-only", 2, 2)
    if fabric:
        policy = fabric.policy
        shape = Fabric(fabric.kind, fabric.domains, fabric.rails)
    paths: dict[Pair, str] = {}
    for choice in choices:
        pair = (choice.src, choice.dst)
        if pair not in paths:
            shares = policy_shares(policy, gpu_of_name(choice.src), gpu_of_name(choice.dst), shape)
            paths[pair] = path_names(shares)
    return paths


NO_PATH: Final = "none"
_KINDS: Final = ("d", "r", "dr", "rd", "drd", "spine", NO_PATH)
_WHOLE: Final = 720_720
"""Parts of a pair: divided by any number up to 16 none is left over, so that sums stay exact."""


def path_shares(interval: MeasurementInterval, max_times: int) -> pd.DataFrame:
    """Return the shares of paths among the pairs: a row for each of `max_times` + 1 times (ns) or fewer.

    A pair with several paths counts as a part of each; before its first choice it takes its default path. The columns
    are in the order of the paths' kinds, then rails; a row adds up to 1.
    """
    step = max(1, (interval.end_ns - interval.begin_ns) // max_times)
    times = [*range(interval.begin_ns, interval.end_ns, step), interval.end_ns]
    rows: list[tuple[int, Pair, list[str]]] = []
    for pair, paths in interval.default_paths.items():
        rows.append((interval.begin_ns, pair, paths.split(" + ")))
    for choice in interval.choices:
        rows.append((choice.monotonic_ns, (choice.src, choice.dst), choice.paths.split(" + ")))
    chosen = pd.DataFrame(rows, columns=["at", "pair", "path"]).astype({"at": "int64"})
    chosen["until"] = chosen.groupby("pair", sort=False)["at"].shift(-1, fill_value=interval.end_ns + 1)
    chosen["parts"] = _WHOLE // chosen.path.map(len)
    chosen = chosen.explode("path").replace({"path": {"": NO_PATH}})
    ended = chosen.assign(at=chosen.until, parts=-chosen.parts)
    parts = pd.concat([chosen, ended]).groupby(["at", "path"]).parts.sum().unstack(fill_value=0).cumsum()
    shares = parts.reindex(times, method="ffill") / (_WHOLE * max(1, len(interval.default_paths)))

    def order(path: str) -> tuple[int, int, str]:
        kind = path.partition(" ")[0]
        place = len(_KINDS)
        if kind in _KINDS:
            place = _KINDS.index(kind)
        return place, rail_of(path), path

    names = sorted(map(str, shares.columns[shares.any()]), key=order)
    return shares[names]


def rail_of(path: str) -> int:
    """Return the rail of a path such as `drd by rail 4`; 0 where the name has none."""
    match = re.search(r"by rail (\d+)$", path)
    return int(match[1]) if match else 0


BEFORE_SAMPLES: Final = 10
DURING_SAMPLES: Final = 5
"""The fewest samples of the rails' load before a workload and meanwhile, for its evenness."""
RISING_SAMPLES: Final = 3
"""Samples after a change of the background that still have the load before it."""


def rail_evenness(interval: MeasurementInterval) -> float | None:
    """Return Jain's index of the bytes that the workload added to each rail: 1 if alike on all K, 1/K if on one.

    The bytes are those that the rails' ports counted, less what the background brought before the workload began. None
    if the background changed meanwhile, if the workload was too short, or if it added nothing.

    Source: Jain, Chiu and Hawe 1984, A Quantitative Measure of Fairness.
    """
    since_ns = interval.begin_ns
    for event in interval.events:
        if event.source != "background" or event.monotonic_ns >= interval.finished_ns:
            continue
        # what a background that changes brings would count as bytes of the workload
        if event.monotonic_ns > interval.started_ns:
            return None
        since_ns = event.monotonic_ns
    before = _rail_loads(interval, since_ns, interval.started_ns)
    during = _rail_loads(interval, interval.started_ns, interval.finished_ns)
    added: list[float] = []
    for rail, loads_before in before.items():
        steady_loads = loads_before[RISING_SAMPLES:]
        loads_during = during.get(rail, [])
        if len(steady_loads) < BEFORE_SAMPLES or len(loads_during) < DURING_SAMPLES:
            return None
        # loads are of single periods, not smoothed, so that their mean over a time is bytes; below 0 is noise
        added.append(max(0.0, fmean(loads_during) - fmean(steady_loads)))
    squares = sum(load**2 for load in added)
    if not squares:
        return None
    return sum(added) ** 2 / (len(added) * squares)


def _rail_loads(interval: MeasurementInterval, after_ns: int, until_ns: int) -> dict[int, list[float]]:
    """Return the loads of each rail after one time and until another."""
    loads: dict[int, list[float]] = {}
    for sample in interval.health:
        if sample.element == "rail" and after_ns < sample.monotonic_ns <= until_ns:
            loads.setdefault(sample.index, []).append(sample.load)
    return loads


def evenness_by_policy(analysis: Analysis) -> dict[str, list[float]]:
    """Return the evenness of the rails in each interval of each policy, without invalid intervals."""
    values: dict[str, list[float]] = {}
    for interval in analysis.derived(intervals_of):
        evenness = rail_evenness(interval)
        if evenness is not None and analysis.judgement.intervals.get(interval.interval) != "invalid":
            values.setdefault(interval.policy, []).append(evenness)
    return values


BASELINE_POLICY: Final = "dr"
ORACLE_POLICY: Final = "oracle"
FabricWorkload = tuple[str, IntervalId]  # a fabric, and what ran on it


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
    `evenness`: the median of `rail_evenness`. `verdict`: the worst of its times. Ratios to invalid times are not known.
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
    evenness: float | None = None
    verdict: Verdict = "ok"

    @property
    def displayed_ratio(self) -> float | None:
        """The ratio for tables: None if the row is invalid."""
        return None if self.verdict == "invalid" else self.ratio

    @property
    def median(self) -> float:
        """Median of the times (s)."""
        return median(self.times)


def policy_rows(
    run: Run, measurements: pd.DataFrame, intervals: Sequence[MeasurementInterval]
) -> dict[FabricWorkload, tuple[PolicyRow, ...]]:
    """Return a row for each fabric, workload and policy, in the spec's order. Empty unless policies steered."""
    if not intervals:
        return {}
    is_time = measurements.metric.isin(TIME_METRICS) & (measurements.phase == "")
    frame = measurements[is_time].set_index("repeat")
    order = list(dict.fromkeys([*recorded_policies(run), *frame.policy]))
    dwell_s = recorded_dwell_s(run)
    by_place = grouped(intervals, "fabric", "interval.work", "policy")
    rows: dict[FabricWorkload, tuple[PolicyRow, ...]] = {}
    for _, times in frame.groupby(["fabric", "work"], sort=False):
        place: FabricWorkload = (times.fabric.iloc[0], times.work.iloc[0])
        by_policy = {str(policy): policy_times for policy, policy_times in times.groupby("policy", sort=False)}
        place_rows: list[PolicyRow] = []
        for policy in order:
            if policy in by_policy:
                steered = by_place.get((*place, policy), [])
                place_rows.append(_row(place, policy, by_policy, steered, dwell_s))
        rows[place] = tuple(place_rows)
    return rows


def rows_of(analysis: Analysis) -> dict[FabricWorkload, tuple[PolicyRow, ...]]:
    """Return the rows of a run."""
    return policy_rows(analysis.run, analysis.measurements, analysis.derived(intervals_of))


def _row(
    place: FabricWorkload,
    policy: str,
    by_policy: Mapping[str, pd.DataFrame],
    steered: Sequence[MeasurementInterval],
    dwell_s: float | None,
) -> PolicyRow:
    """Return the row of a policy from the times of all (s, by repeat). `steered`: the intervals of the policy."""
    # ratios are of the same repeat (the index of the frames): another repeat is another seed, so other traffic
    times = by_policy[policy]
    reactions_ms = _reactions_ms(steered)
    evenness = list(map(rail_evenness, steered))
    most_changed = None
    if dwell_s:
        most_changed = most_changed_pair(steered, dwell_s)
    fabric, work = place
    return PolicyRow(
        fabric=fabric,
        work=work,
        policy=policy,
        times=tuple(times.value),
        predicted=_median(times.predicted),
        ratio=_median(times.ratio),
        over_dr=_quotient(by_policy.get(BASELINE_POLICY), times),
        over_oracle=_quotient(times, by_policy.get(ORACLE_POLICY)),
        changes_per_s=_changes_per_s(steered),
        most_changed=most_changed,
        reaction_ms=none_if_nan(reactions_ms.median()),
        worst_reaction_ms=none_if_nan(reactions_ms.max()),
        evenness=_median(pd.Series(evenness, dtype=float)),
        verdict=worst_verdict(times.verdict),
    )


def _route_changes(interval: MeasurementInterval) -> list[Event]:
    """Return the changes of scores that changed routes."""
    return [event for event in interval.events if (event.source, event.what) == ("steering", "changed")]


def _changes_per_s(steered: Iterable[MeasurementInterval]) -> float | None:
    """Return how many routes changed in a second while the workload ran; None if it didn't."""
    duration_s = 0.0
    routes = 0
    for interval in steered:
        duration_s += (interval.finished_ns - interval.started_ns) / 1e9
        for event in _route_changes(interval):
            if interval.started_ns <= event.monotonic_ns <= interval.finished_ns:
                routes += event.detail["routes"]
    if not duration_s:
        return None
    return routes / duration_s


def _reactions_ms(steered: Iterable[MeasurementInterval]) -> pd.Series:
    """Return for each version of the scores how long it took until the last of the routes that follow from it, ms."""
    # an agent may change its routes in several batches: the last one ends the reaction
    reactions: list[tuple[IntervalId, int, float]] = []
    for interval in steered:
        for event in _route_changes(interval):
            if event.detail["ms"] is not None:
                reactions.append((interval.interval, event.detail["version"], float(event.detail["ms"])))
    frame = pd.DataFrame(reactions, columns=["interval", "version", "ms"])
    return frame.groupby(["interval", "version"], sort=False).ms.max()


def _quotient(times: pd.DataFrame | None, base: pd.DataFrame | None) -> float | None:
    """Return the median of one policy's times over another's; None if one is missing or a time is invalid."""
    if times is None or base is None:
        return None
    if "invalid" in (worst_verdict(times.verdict), worst_verdict(base.verdict)):
        return None
    return _median(times.value / base.value)


def _median(values: pd.Series) -> float | None:
    """Return the median of the known values, which are above 0; None if there is none."""
    return none_if_nan(values[(values > 0) & (values < inf)].median())


def most_changed_pair(intervals: Iterable[MeasurementInterval], dwell_s: float) -> MostChangedPair | None:
    """Return the pair with most changes for what its interval allows: 1 + t / dwell. None without a pair."""
    pairs: list[MostChangedPair] = []
    for interval in intervals:
        allowed = 1 + int((interval.end_ns - interval.begin_ns) / 1e9 / dwell_s)
        pairs += [MostChangedPair(interval, pair, count, allowed) for pair, count in interval.changes().items()]
    return max(pairs, key=lambda pair: pair.changes / pair.allowed, default=None)
