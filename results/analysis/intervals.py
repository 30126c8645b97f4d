"""Everything that was recorded of a steered workload run, put together: scores, choices, route changes. Pure.

A run is steered if its spec has `routing`. Then each fabric is run under each policy in turn, and its records carry the
label `<fabric> <policy>`. Times are monotonic ns.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from railyard.core.units import parse_time
from railyard.results.runs.records import Choice, Event, HealthSample, Run
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.forwarding import Shape, policy_shares
from railyard.topologies.paths import path_names

Pair = tuple[str, str]
Key = tuple[str, str, str, int]
"""Fabric's label with the policy, policy, workload, repeat."""
Recorded = TypeVar("Recorded", HealthSample, Choice)
EVENT_SOURCES: Final = ("steering", "background")


@dataclass(frozen=True, slots=True)
class MeasurementInterval:
    """One workload run under one policy.

    It goes from the first record to the last; the foreground is the workload itself. `fabric` is without the policy.
    `default_paths`: by which path each pair goes until its first choice. `events`: what steering and background said.
    """

    label: str
    policy: str
    workload: str
    repeat: int
    fabric: str
    begin_ns: int
    end_ns: int
    started_ns: int
    finished_ns: int
    health: tuple[HealthSample, ...]
    choices: tuple[Choice, ...]
    default_paths: Mapping[Pair, str]
    events: tuple[Event, ...]

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


def is_steered(run: Run) -> bool:
    """Whether policies steered its routes."""
    return bool(run.spec.get("routing"))


def policies_of(run: Run) -> tuple[str, ...]:
    """In the spec's order."""
    return tuple((run.spec.get("routing") or {}).get("policies") or ())


def dwell_s(run: Run) -> float | None:
    """The least time between two changes of a pair; None without one."""
    dwell = (run.spec.get("routing") or {}).get("dwell")
    try:
        return parse_time(dwell)
    except ValueError:  # none, or zero, which is no time
        return None


def base_labels(run: Run) -> dict[str, str]:
    """Each fabric's label -> the same without the policy that steered it: where nobody steered, as it is."""
    label_policies = [*((f.label, f.policy) for f in run.fabrics), *((m.fabric, m.policy) for m in run.measurements)]
    steered = is_steered(run)
    return {label: label.removesuffix(f" {policy}") if steered else label for label, policy in label_policies}


def intervals(run: Run) -> tuple[MeasurementInterval, ...]:
    """In the order in which they were run. Empty if nobody steered."""
    if not is_steered(run):
        return ()
    health, choices, spans = _grouped(run.health), _grouped(run.choices), _foregrounds(run.events)
    measured = ((m.fabric, m.policy, m.workload, m.repeat) for m in run.measurements)
    times: dict[Key, list[int]] = {}
    for key in dict.fromkeys([*health, *choices, *measured]):
        rows = (*health.get(key, ()), *choices.get(key, ()))
        times[key] = [*(row.monotonic_ns for row in rows), *spans.get(_foreground_key(key), {}).values()]
    bases, before, found = base_labels(run), 0, []
    policies = _default_policies(run, bases)
    for key in sorted((k for k in times if times[k]), key=lambda k: max(times[k])):
        label, policy, workload, repeat = key
        fabric, end_ns = bases.get(label, label.removesuffix(f" {policy}")), max(times[key])
        events = tuple(e for e in run.events if before < e.monotonic_ns <= end_ns and _belongs_to(e, label, fabric))
        begin_ns = min([*times[key], *(e.monotonic_ns for e in events)])
        interval = MeasurementInterval(
            label=label,
            policy=policy,
            workload=workload,
            repeat=repeat,
            fabric=fabric,
            begin_ns=begin_ns,
            end_ns=end_ns,
            started_ns=spans.get(_foreground_key(key), {}).get("started", begin_ns),
            finished_ns=spans.get(_foreground_key(key), {}).get("finished", end_ns),
            health=tuple(health.get(key, ())),
            choices=tuple(choices.get(key, ())),
            default_paths=_default_paths(policies.get(fabric), choices.get(key, ())),
            events=events,
        )
        found.append(interval)
        before = end_ns
    return tuple(found)


def _foreground_key(key: Key) -> tuple[str, str, int]:
    label, _, workload, repeat = key
    return label, workload, repeat


def _grouped(rows: Iterable[Recorded]) -> dict[Key, list[Recorded]]:
    """By stretch, each in the order of time."""
    found: defaultdict[Key, list[Recorded]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: r.monotonic_ns):
        found[row.fabric, row.policy, row.workload, row.repeat].append(row)
    return found


def _foregrounds(events: Iterable[Event]) -> dict[tuple[str, str, int], dict[str, int]]:
    """(fabric's label, workload, repeat) -> when it "started" and "finished"."""
    found: defaultdict[tuple[str, str, int], dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.source == "workload" and event.what in ("started", "finished"):
            foreground_key = event.detail["fabric"], event.detail["workload"], event.detail["repeat"]
            found[foreground_key][event.what] = event.monotonic_ns
    return found


def _belongs_to(event: Event, label: str, base: str) -> bool:
    return event.source in EVENT_SOURCES and event.detail.get("fabric") in (label, base)


def _default_policies(run: Run, bases: Mapping[str, str]) -> dict[str, tuple[str, Shape]]:
    """By fabric, without policy: its forwarding policy and its shape. Spec and records name fabrics in the same order,
    as far as it came.
    """
    specs = run.spec.get("fabrics") or []
    return {
        base: (
            spec.get("policy") or FABRIC_KINDS[spec["kind"]].default_policy,
            Shape(spec["kind"], spec.get("domains", 4), spec.get("rails", 4)),
        )
        for base, spec in zip(dict.fromkeys(bases.values()), specs, strict=False)
        if spec["kind"] in FABRIC_KINDS
    }


def _default_paths(known: tuple[str, Shape] | None, choices: Iterable[Choice]) -> dict[Pair, str]:
    """The paths of the fabric's own routes for each pair, named as in choices."""
    policy, shape = known or ("dr", Shape("rail-only", 2, 2))
    return {
        pair: path_names(policy_shares(policy, gpu_of_name(pair[0]), gpu_of_name(pair[1]), shape))
        for pair in dict.fromkeys((c.src, c.dst) for c in choices)
    }
