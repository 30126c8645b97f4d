"""Runs of format 1, whose records were joined by labels: gives each record the identity of its interval.

Format 1 wrote a steered fabric as "FABRIC POLICY", a workload in a scene as "WORKLOAD, SCENE", beside a failure script
as "WORKLOAD with SCRIPT", and an interval of faults as "FAULT TARGET (reroute on)". What these can be is known from the
run's other records, so nothing has to be guessed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from typing import Any, Final

from railyard.core.records import IntervalId
from railyard.core.units import size_name
from railyard.results.format import workload_label
from railyard.results.runs import allreduce
from railyard.results.runs.records import GoodputTrace, Rails, Run
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.workloads.background.spec import GridSpec
from railyard.workloads.jobs.training import training_name

FORMAT: Final = 1
Rows = list[dict[str, Any]]
STEERED_SOURCES: Final = ("workload", "steering", "background")
_EVENT_NAMES: Final = {
    "takeover": "replacement",
    "light-off": "optical-links-down",
    "light-on": "optical-links-up",
    "taken-over": "replaced",
    "job-goes-on": "job-resumed",
    "heard": "resumed",
}
"""An event's source or what happened, as old runs recorded them -> today's."""
_PHASES: Final = {"before": "before", "takeover": "replacement", "after": "after"}


def upgrade(rest: dict[str, Any], spec: Mapping[str, Any], parts: dict[str, Rows], events: Rows) -> dict[str, Any]:
    """Give the rows in `parts` and `events` their identity, in place; return what else run.json holds."""
    built = {row["label"]: row["policy"] for row in parts["fabrics"]}
    # a fabric's own name, without the policy that steered it
    fabrics = {f: f.removesuffix(f" {policy}") if spec.get("routing") else f for f, policy in built.items()}
    parts["fabrics"] = _distinct(spec, parts["fabrics"], fabrics)
    known = dict(_known_workloads(spec, parts, fabrics))
    for name in ("measurements", "flows", "health", "choices", "loads", "bytes"):
        for row in parts[name]:
            label, fabric = row["fabric"], fabrics.get(row["fabric"], row["fabric"])
            place = {"fabric": fabric, "policy": row.get("policy") or built.get(label, ""), "repeat": row["repeat"]}
            row |= known.get((label, row["workload"]), {"workload": row["workload"]}) | place
    if not fabrics:  # a multi-rail run, whose loads are called "POLICY, SIZE", "MODEL, POLICY" or "FAULT, POLICY"
        policies = {row["policy"] for row in parts["measurements"]}
        for row in parts["loads"]:
            first, _, last = row["workload"].partition(", ")
            what, _, policy = row["workload"].rpartition(", ")
            row |= {"workload": last, "policy": first} if first in policies else {"workload": what, "policy": policy}
    _upgrade_faults(parts, built)
    for event in events:
        event["source"] = _EVENT_NAMES.get(event["source"], event["source"])
        event["what"] = _EVENT_NAMES.get(event["what"], event["what"])
        detail = event["detail"]
        if "fabric" in detail:
            label = detail["fabric"]
            where = known.get((label, detail["workload"]), {}) if "workload" in detail else {}
            policy = {"policy": built[label]} if event["source"] in STEERED_SOURCES and label in built else {}
            event["detail"] = {**detail, **where, **policy, "fabric": fabrics.get(label, label)}
    scale = [_scaled(key, value, fabrics) for key, value in rest["scale"].items()]
    return {**rest, "scale": scale}


def add_operations(flows: Rows) -> None:
    """Give flows of runs that recorded no operation the one that follows from kind and phase, in place."""
    for row in flows:
        is_all_to_all = row["kind"] == "EP" or "all-to-all" in row["phase"]
        row.setdefault("operation", "all-to-all" if is_all_to_all else "")


def _distinct(spec: Mapping[str, Any], rows: Rows, fabrics: Mapping[str, str]) -> Rows:
    """Return one row for each fabric, with its own policy where policies steered it in turn."""
    specs = iter(spec.get("fabrics") or [])
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if (name := fabrics[row["label"]]) not in found:
            own: Mapping[str, Any] = next(specs, {}) if spec.get("routing") else {}
            policy = own.get("policy") or (FABRIC_KINDS[own["kind"]].default_policy if own else row["policy"])
            found[name] = {**row, "label": name, "policy": policy}
    return list(found.values())


def _known_workloads(
    spec: Mapping[str, Any], parts: Mapping[str, Rows], fabrics: Mapping[str, str]
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """(fabric's label, workload's label) -> the identity of what ran, without repeat."""
    grid = spec.get("grid")
    scenes = [scene.name for scene in GridSpec.model_validate(grid).scenes] if grid else []
    scripts = {(row["script"], row["reroute"]) for row in parts["recoveries"] if row["script"]}
    alone = {(row["fault"], row["target"], row["reroute"]) for row in parts["recoveries"] if not row["script"]}
    identities = [IntervalId(script=s, reroute=r) for s, r in scripts]
    identities += [IntervalId(part=f"{fault} {target}", reroute=r) for fault, target, r in alone]
    for row in parts["loads"]:
        label = row["workload"]
        ways = [IntervalId(workload=label.removesuffix(f", {s}"), scene=s) for s in scenes]
        ways += [
            IntervalId(workload=label[: label.find(f" with {s}")], script=s, reroute=r)
            for s, r in scripts
            if f" with {s}" in label
        ]
        found = next((i for i in (*identities, *ways) if workload_label(i) == label), None)
        if found:
            yield (row["fabric"], label), asdict(found)
    for row, (phase, part) in product(parts["replacements"], _PHASES.items()):
        for failed in ("", f", {row['failed']}"):
            what = f"{row['case']} by {row['method']}{failed}"
            yield (f"{row['fabric']}, {what}", f"{what}: {phase}"), asdict(IntervalId(script=what, part=part))


def read_multirail(run: Run, data: Mapping[str, Rows]) -> None:
    """Add what older runs have in multirail.json to their records, in place of what was derived from it."""
    plain: dict[str, Rows] = {
        part: [{name: tuple(v) if isinstance(v, list) else v for name, v in row.items()} for row in rows]
        for part, rows in data.items()
    }
    run.measurements.clear()
    run.rails += [Rails(**row) for row in plain["fabrics"]]
    intervals: dict[IntervalId, IntervalId] = {}
    for row in plain["points"]:
        interval = _sized(row, intervals)
        typical_s = row.pop("typical_s", None) or row.pop("median_s")
        row["p99_s"] = row["p99_s"] if row["measured"] >= allreduce.MIN_SAMPLES_FOR_P99 else None
        allreduce.Point(interval=interval, **row, typical_s=typical_s).add_to(run)
    for row in plain["trainings"]:
        name, samples = training_name(row.pop("model"), row.pop("batch")), row.pop("samples")
        interval = IntervalId(row.pop("fabric"), name, row.pop("policy"), repeat=row.pop("repeat"))
        allreduce.Training(interval=interval, **row, samples_per_s=samples / row["step_s"]).add_to(run)
    for row in plain["lessons"]:
        interval = IntervalId(row.pop("fabric"), "DDP", row.pop("policy"), repeat=row.pop("repeat"))
        allreduce.DdpRun(interval=interval, **row).add_to(run)
    sizes = {}
    for row in plain["cuts"]:
        fault, _, target = (name := row.pop("fault")).partition(" ")
        del row["node"], row["rail"]
        old, sizes[name] = IntervalId(row["fabric"], policy=row["policy"], repeat=row["repeat"]), row["size"]
        interval = _sized(row, {}, fault=fault, target=target)
        intervals[replace(old, workload=name)] = interval
        intervals[replace(old, workload=size_name(row["size"]), script=name)] = interval
        allreduce.Cut(interval=interval, fault=fault, target=target, **{"carried": True, **row}).add_to(run)
    for row in plain["rates"]:
        fault, _, target = (name := row.pop("fault")).partition(" ")
        interval = _sized({**row, "size": sizes[name]}, {}, fault=fault, target=target)
        values = {column: row[column] for column in ("t_ms", "bps", "repair_ms")}
        run.goodput.append(GoodputTrace(interval, fault, target, affected_bps=(), link=row["rail"], **values))
    at_ns = max((r.t_repair for r in run.recoveries), default=1)  # none of these events has a time of its own
    for row in plain["skipped"]:
        allreduce.Skipped(**row).add_to(run, at_ns)
    for row in plain.get("lost", ()):
        allreduce.LostRails(_sized(row, {}), row["rails"], row["kept"]).add_to(run, at_ns)
    run.loads = [replace(load, interval=intervals.get(load.interval, load.interval)) for load in run.loads]


def _sized(row: dict[str, Any], intervals: dict[IntervalId, IntervalId], **fault: str) -> IntervalId:
    """Return the interval of a size, and take the fields that identify it from the row; older ones lack `allreduce`."""
    fabric, policy, repeat = (row.pop(name) for name in ("fabric", "policy", "repeat"))
    interval = allreduce.allreduce_interval(fabric, policy, row["size"], repeat, **fault)
    intervals[IntervalId(fabric, size_name(row["size"]), policy, repeat=repeat)] = interval
    return interval


def _upgrade_faults(parts: dict[str, Rows], built: Mapping[str, str]) -> None:
    """Give faults, goodput and connectivity checks the identity of the load that was recorded beside them."""

    def key(row: Mapping[str, Any]) -> tuple[object, ...]:
        return row["fabric"], row["repeat"], row.get("reroute", ""), row["script"], row.get("part", "")

    watched = {key(row): row for row in parts["loads"] if row.get("part") or row.get("script")}
    for name in ("recoveries", "goodput", "connectivity_checks"):
        for row in parts[name]:
            row["part"] = "" if row["script"] else _fault_alone(row, parts["recoveries"])
            row["policy"] = row.get("policy") or built.get(row["fabric"], "")
            row["workload"] = watched.get(key(row), row).get("workload", "")
    for row in parts["replacements"]:
        names = [f"{row['case']} by {row['method']}", f"{row['case']} by {row['method']}, {row['failed']}"]
        scripts = {load["script"] for load in parts["loads"] if load.get("part")}
        row["script"] = next((name for name in reversed(names) if name in scripts), names[0])


def _fault_alone(row: Mapping[str, Any], recoveries: Rows) -> str:
    """Fault and target of a row; those of a connectivity check are of the last fault before it."""
    if "fault" not in row:
        where = (row["fabric"], row["reroute"], row["repeat"])
        earlier = (r for r in recoveries if (r["fabric"], r["reroute"], r["repeat"]) == where)
        row = max((r for r in earlier if r["t_fault"] <= row["monotonic_ns"]), key=lambda r: int(r["t_fault"]))
    return f"{row['fault']} {row['target']}"


def _scaled(key: str, value: dict[str, Any], fabrics: Mapping[str, str]) -> dict[str, Any]:
    """A key is "WORKLOAD, FABRIC" or "WORKLOAD, FABRIC, REPLACEMENT"."""
    for fabric in sorted(set(fabrics.values()), key=len, reverse=True):
        workload, found, replacement = key.partition(f", {fabric}")
        if found:
            where = {"workload": workload, "fabric": fabric}
            return {**value, **where, **({"replacement": replacement.removeprefix(", ")} if replacement else {})}
    return {**value, "workload": key, "fabric": ""}
