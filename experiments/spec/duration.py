"""About how long a run takes on two idle cores, from its specification alone: no schedule is built.

The times that a specification states are added up, with what building, calibrating and recording add to them. An
interval that is measured again because the machine was busy comes on top.
"""

from typing import Final

from railyard.experiments.measures.definition import measures_of, shared_reroutes, sharing_measures
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.workloads.spec import Workload

# to measure what the machine carries
START_S: Final = 3.0
# to build a fabric and calibrate its links, and more for each GPU
FABRIC_S: Final = 4.0
GPU_S: Final = 0.02
# to connect, and to record
INTERVAL_S: Final = 0.65
# a guess, for a workload that states neither time nor bytes
WORKLOAD_S: Final = 5.0
# a guess, as no schedule says how much of an iteration a slow GPU or link prolongs
SLOWED_SHARE: Final = 0.5


def duration_s(spec: ExperimentSpec) -> float | None:
    """Return about how many seconds a run takes; None where that follows from bytes and not from stated times."""
    total_s = START_S
    for number, fabric in enumerate(spec.gpu_fabrics):
        if sharing_measures(spec):
            total_s += len(shared_reroutes(spec, number)) * (FABRIC_S + GPU_S * fabric.gpus)
    for measure in measures_of(spec):
        measure_s = measure.seconds(spec)
        if measure_s is None:
            return None
        total_s += measure_s
    return total_s


def expected_s(spec: ExperimentSpec) -> float | None:
    """Return about how many seconds a run takes: by its times, else as its file says; None if it says nothing."""
    seconds = duration_s(spec)
    return spec.takes if seconds is None else seconds


def stated_duration_s(workload: Workload) -> float:
    """Return the duration that a workload states, s, or a guess; longer by its stragglers."""
    even_s = getattr(workload, "duration", None) or WORKLOAD_S
    # plain traffic doesn't compute
    if not workload.is_iteration:
        return even_s
    return slowed_s(even_s, slowest_factor(workload))


def slowest_factor(workload: Workload) -> float:
    """Return times as long that the slowest GPU of a workload computes: 1 without stragglers."""
    if workload.stragglers is None:
        return 1.0
    return workload.stragglers.slowest


def slowed_s(seconds: float, ratio: float) -> float:
    """Return about how long an iteration of so many s takes in which a GPU or a link is `ratio` times as slow."""
    return seconds * (1 + SLOWED_SHARE * (ratio - 1))


def about(seconds: float | None) -> str:
    """Return a duration as a reader wants it: whole minutes from 2 min on, else tens of seconds; "-" for None."""
    if seconds is None:
        return "-"
    if seconds >= 120:
        return f"{round(seconds / 60)}min"
    return f"{max(1, round(seconds / 10)) * 10}s"
