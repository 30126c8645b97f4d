"""About how long a run takes on two idle cores, from its specification alone: no schedule is built.

The times that a specification states are added up, with what building, calibrating and recording add to them. An
interval that is measured again because the machine was busy comes on top.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from railyard.experiments.measures.definition import measures_of
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import FaultSpec
from railyard.experiments.spec.scripts import ScriptSpec
from railyard.workloads.background.spec import BackgroundSpec
from railyard.workloads.spec import Workload

START_S: Final = 3.0  # to measure what the machine carries
FABRIC_S: Final = 4.0  # to build a fabric and calibrate its links
GPU_S: Final = 0.02  # more for each GPU
INTERVAL_S: Final = 0.65  # to connect, and to record
AFTER_S: Final = 1.2  # of a fault's traffic after its repair (failure/analysis/evaluate.py, which takes long to import)
FAULT_S: Final = 0.7  # to start streams and probes, and to evaluate them
RANDOM_FAULT_S: Final = 1.2  # between two random faults, where connectivity is checked in between
WORKLOAD_S: Final = 5.0  # of a workload that states neither time nor bytes


def duration_s(spec: ExperimentSpec) -> float | None:
    """Return about how many seconds a run takes; None where that follows from bytes and not from stated times."""
    if any(map(_takes_its_bytes, spec.workloads)):
        return None
    total_s = START_S
    for number, fabric in enumerate(spec.gpu_fabrics):
        workloads = [workload for workload in spec.workloads if workload_is_on(workload, number)]
        scripts = spec.scripts_on(number)
        builds = int(bool(workloads))
        if scripts:
            builds = len(spec.reroute)
        total_s += builds * (FABRIC_S + GPU_S * fabric.gpus)
        total_s += spec.repeats * sum(_workload_s(workload, spec) for workload in workloads)
        total_s += len(spec.reroute) * sum(spec.times(script) * _script_s(script, spec) for script in scripts)
    for measure in measures_of(spec):
        measure_s = measure.seconds(spec)
        if measure_s is None:
            return None
        total_s += measure_s
    return total_s


def workload_is_on(workload: Workload, fabric: int) -> bool:
    """Return whether a workload runs on a fabric, by its number: some kinds can be kept to some fabrics."""
    numbers: Sequence[int] | None = getattr(workload, "on", None)
    return numbers is None or fabric in numbers


def _takes_its_bytes(workload: Workload) -> bool:
    """Return whether the time of a workload follows from bytes."""
    return workload.takes_its_bytes or getattr(workload, "bytes", None) is not None


def stated_duration_s(workload: Workload) -> float:
    """Return the duration that a workload states, s, or a guess."""
    return getattr(workload, "duration", None) or WORKLOAD_S


def _workload_s(workload: Workload, spec: ExperimentSpec) -> float:
    """Return how long one repeat takes, under all policies and in all scenes."""
    stated_s = stated_duration_s(workload)
    if spec.routing is None:
        return stated_s + INTERVAL_S
    around_s = 2 * spec.routing.settle + INTERVAL_S
    scenes_s = sum(stated_s * slowdown + around_s for slowdown in _slowdowns(spec))
    return len(spec.routing.policies) * scenes_s


def _slowdowns(spec: ExperimentSpec) -> Iterator[float]:
    """Yield for each scene how many times as long a workload takes, by about half of the policies around the load."""
    if spec.grid:
        loads = [max(spec.grid.loads)] * len(spec.grid.scenes)
    else:
        loads = [max(map(_mean_load, spec.background), default=0.0)]
    for load in loads:
        yield (1 + 1 / (1 - load)) / 2


def _mean_load(entry: BackgroundSpec) -> float:
    """Return the load of an entry of the background, on average over its period."""
    load = entry.load
    if entry.duration and entry.period:
        load *= min(1.0, entry.duration / entry.period)
    return min(load, 0.95)


def _script_s(script: FaultSpec | ScriptSpec, spec: ExperimentSpec) -> float:
    """Return how long a fault or a script takes, from the first stream to the last record."""
    if isinstance(script, FaultSpec):
        return script.at + script.repair + AFTER_S + FAULT_S
    if script.random_faults:
        interval_s = script.random_faults.mean_interval or RANDOM_FAULT_S
        return script.random_faults.count * interval_s + AFTER_S + FAULT_S
    last_s = max(fault.at + fault.repair for fault in script.faults)
    if script.during:
        last_s += max(map(stated_duration_s, spec.workloads), default=0.0)
    return last_s + AFTER_S + FAULT_S


def about(seconds: float | None) -> str:
    """Return a duration as a reader wants it: whole minutes from 2 min on, else tens of seconds; "-" for None."""
    if seconds is None:
        return "-"
    return f"{round(seconds / 60)}min" if seconds >= 120 else f"{max(1, round(seconds / 10)) * 10}s"
