"""About how long a run takes on two idle cores, from its specification alone: no schedule is built.

The times that a specification states are added up, with what building, calibrating and recording add to them. An
interval that is measured again because the machine was busy comes on top.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.core.units import parse_time

START_S: Final = 3.0  # to measure what the machine carries
FABRIC_S: Final = 4.0  # to build a fabric and calibrate its links
GPU_S: Final = 0.02  # more for each GPU
INTERVAL_S: Final = 0.65  # to connect, and to record
AFTER_S: Final = 1.2  # of a fault's traffic after its repair (failure/analysis/evaluate.py, which takes long to import)
FAULT_S: Final = 0.7  # to start streams and probes, and to evaluate them
REPLACEMENT_S: Final = 8.0  # to build a fabric with spares, to take over, and to restore the state
RANDOM_FAULT_S: Final = 1.2  # between two random faults, where connectivity is checked in between
GRID: Final = 4  # domains and rails of a fabric that names none (topologies/spec.py)
WORKLOAD: Final = "5s"  # of a workload that states neither time nor bytes
SETTLE: Final = "700ms"


def duration_s(data: Mapping[Any, Any]) -> float | None:
    """Return about how many seconds a run takes; None where that follows from bytes and not from stated times.

    `data`: a specification as it is written, or resolved.
    """
    fabrics, workloads = data["fabrics"], data.get("workloads") or []
    if data.get("trainings") or any("nodes" in fabric for fabric in fabrics):
        return None
    if any(load.get("bytes") is not None or load["kind"] == "trace" for load in workloads):
        return None
    total = START_S
    reroutes = len(data.get("reroute") or ["on", "off"])
    for number, fabric in enumerate(fabrics):
        loads = [load for load in workloads if is_on(load, number)]
        faults = [fault for key in ("faults", "scripts") for fault in data.get(key) or [] if is_on(fault, number)]
        builds = reroutes if faults else bool(loads)
        gpus = fabric.get("domains", GRID) * fabric.get("rails", GRID)
        total += builds * (FABRIC_S + GPU_S * gpus)
        total += data.get("repeats", 1) * sum(_workload_s(load, data) for load in loads)
        total += reroutes * sum(_times(fault, data) * _fault_s(fault, workloads) for fault in faults)
        total += data.get("replacement_repeats", 1) * sum(
            _replacement_s(one) for one in data.get("replacements") or [] if is_on(one, number)
        )
    return total


def is_on(item: Mapping[Any, Any], fabric: int) -> bool:
    """Return whether a workload or a fault is for a fabric. YAML 1.1 reads a bare `on` as true."""
    on = item.get("on", item.get(True))
    return on is None or fabric in on


def _workload_s(load: Mapping[str, Any], data: Mapping[str, Any]) -> float:
    """Return how long one repeat takes, under all policies and in all scenes."""
    own_s = parse_time(load.get("duration") or WORKLOAD)
    routing = data.get("routing")
    if routing is None:
        return own_s + INTERVAL_S
    policies = len(routing.get("policies") or HEALTH_POLICIES)
    around_s = 2 * parse_time(routing.get("settle") or SETTLE) + INTERVAL_S
    return policies * sum(own_s * slowdown + around_s for slowdown in _slowdowns(data))


def _slowdowns(data: Mapping[str, Any]) -> Iterator[float]:
    """Yield for each scene how many times as long a workload takes, by about half of the policies around the load."""
    if grid := data.get("grid"):
        loads = grid.get("loads") or [0.0]
        places = sum(bool(grid.get(key)) for key in ("domains", "rails", "spine"))
        scenes: Sequence[float] = [max(loads)] * (len(loads) ** places)
    else:
        scenes = [max((_mean_load(entry) for entry in data.get("background") or []), default=0.0)]
    for load in scenes:
        yield (1 + 1 / (1 - load)) / 2


def _mean_load(entry: Mapping[str, Any]) -> float:
    """Return the load of an entry of the background, on average over its period."""
    load = float(entry["load"])
    if entry.get("duration") and entry.get("period"):
        load *= min(1.0, parse_time(entry["duration"]) / parse_time(entry["period"]))
    return min(load, 0.95)


def _times(fault: Mapping[str, Any], data: Mapping[str, Any]) -> int:
    limit = data.get("fault_repeats" if "kind" in fault else "script_repeats", 1)
    return int(min(fault.get("repeats") or limit, limit))


def _fault_s(fault: Mapping[str, Any], workloads: Sequence[Mapping[str, Any]]) -> float:
    """Return how long a fault or a script takes, from the first stream to the last record."""
    if (drawn := fault.get("random_faults")) is not None:
        interval = drawn.get("mean_interval")
        return int(drawn.get("count", 50)) * (parse_time(interval) if interval else RANDOM_FAULT_S) + AFTER_S + FAULT_S
    single = fault.get("faults") or [fault]
    last_s = max(parse_time(one.get("at") or "1s") + parse_time(one.get("repair") or "2s") for one in single)
    if fault.get("during"):
        last_s += max((parse_time(load.get("duration") or WORKLOAD) for load in workloads), default=0.0)
    return last_s + AFTER_S + FAULT_S


def _replacement_s(one: Mapping[str, Any]) -> float:
    load = one.get("workload") or {"duration": "1s"}
    return REPLACEMENT_S + (2 * int(one.get("iterations", 3)) + 1) * parse_time(load.get("duration") or WORKLOAD)


def about(seconds: float | None) -> str:
    """Return a duration as a reader wants it: whole minutes from 2 min on, else tens of seconds; "-" for None."""
    if seconds is None:
        return "-"
    return f"{round(seconds / 60)}min" if seconds >= 120 else f"{max(1, round(seconds / 10)) * 10}s"
