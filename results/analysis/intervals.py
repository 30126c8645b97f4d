"""Everything that was recorded of a steered workload run, put together: scores, choices, route changes. Pure.

A run is steered if its spec has `routing`. Then each fabric is run under each policy in turn. Times are monotonic ns.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from railyard.core.records import IntervalId
from railyard.results.runs.records import Choice, Event, FabricRun, HealthSample, Run
from railyard.results.views.labels import workload_label
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.forwarding import Shape, policy_shares
from railyard.topologies.paths import path_names

Pair = tuple[str, str]
Recorded = TypeVar("Recorded", HealthSample, Choice)
EVENT_SOURCES: Final = ("steering", "background")


@dataclass(frozen=True, slots=True)
class MeasurementInterval:
    """One workload run under one policy.

    It lasts from the first record to the last; the foreground is the workload itself. `default_paths`: the path of each
    pair until its first choice. `events`: those of steering and background.
    """

    id: IntervalId
    begin_ns: int
    end_ns: int
    started_ns: int
    finished_ns: int
    health: tuple[HealthSample, ...]
    choices: tuple[Choice, ...]
    default_paths: Mapping[Pair, str]
    events: tuple[Event, ...]

    @property
    def fabric(self) -> str:
        return self.id.fabric

    @property
    def policy(self) -> str:
        return self.id.policy

    @property
    def repeat(self) -> int:
        return self.id.repeat

    @property
    def workload(self) -> str:
        """Its label."""
        return workload_label(self.id)

    @property
    def foreground_s(self) -> float:
        return (self.finished_ns - self.started_ns) / 1e9

    def changes(self) -> dict[Pair, int]:
        """How often each pair's paths became others than they were."""
        now, count = dict(self.default_paths), dict.fromkeys(self.default_paths, 0)
        for choice in self.choices:
            pair = (choice.src, choice.dst)
            count[pair] += now[pair] != choice.paths
            now[pair] = choice.paths
        return count


def intervals(run: Run) -> tuple[MeasurementInterval, ...]:
    """Return them in the order in which they were run. Empty unless policies steered."""
    if not run.is_steered:
        return ()
    health, choices, spans = _grouped(run.health), _grouped(run.choices), _foregrounds(run.events)
    times: dict[IntervalId, list[int]] = {}
    for key in dict.fromkeys([*health, *choices, *(m.interval for m in run.measurements)]):
        rows = (*health.get(key, ()), *choices.get(key, ()))
        times[key] = [*(row.monotonic_ns for row in rows), *spans.get(key, {}).values()]
    built = {fabric.label: fabric for fabric in run.fabrics}
    before, found = 0, []
    for key in sorted((k for k in times if times[k]), key=lambda k: max(times[k])):
        end_ns = max(times[key])
        events = tuple(e for e in run.events if before < e.monotonic_ns <= end_ns and _belongs_to(e, key))
        begin_ns = min([*times[key], *(e.monotonic_ns for e in events)])
        interval = MeasurementInterval(
            id=key,
            begin_ns=begin_ns,
            end_ns=end_ns,
            started_ns=spans.get(key, {}).get("started", begin_ns),
            finished_ns=spans.get(key, {}).get("finished", end_ns),
            health=tuple(health.get(key, ())),
            choices=tuple(choices.get(key, ())),
            default_paths=_default_paths(built.get(key.fabric), choices.get(key, ())),
            events=events,
        )
        found.append(interval)
        before = end_ns
    return tuple(found)


def _grouped(rows: Iterable[Recorded]) -> dict[IntervalId, list[Recorded]]:
    """By interval, each in the order of time."""
    found: defaultdict[IntervalId, list[Recorded]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: r.monotonic_ns):
        found[row.interval].append(row)
    return found


def _foregrounds(events: Iterable[Event]) -> dict[IntervalId, dict[str, int]]:
    """Interval -> when its workload "started" and "finished"."""
    found: defaultdict[IntervalId, dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.source == "workload" and event.what in ("started", "finished"):
            found[IntervalId.of(event.detail)][event.what] = event.monotonic_ns
    return found


def _belongs_to(event: Event, interval: IntervalId) -> bool:
    place = (event.detail.get("fabric"), event.detail.get("policy"))
    return event.source in EVENT_SOURCES and place == (interval.fabric, interval.policy)


def _default_paths(fabric: FabricRun | None, choices: Iterable[Choice]) -> dict[Pair, str]:
    """The paths of the fabric's own routes for each pair, named as in choices."""
    policy = fabric.policy if fabric else "dr"
    shape = Shape(fabric.kind, fabric.domains, fabric.rails) if fabric else Shape("rail-only", 2, 2)
    return {
        pair: path_names(policy_shares(policy, gpu_of_name(pair[0]), gpu_of_name(pair[1]), shape))
        for pair in dict.fromkeys((c.src, c.dst) for c in choices)
    }
