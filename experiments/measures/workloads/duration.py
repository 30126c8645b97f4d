"""About how long the replays of workloads take, from the specification alone."""

from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.measures.workloads.variants import variants_of
from railyard.experiments.spec.duration import stated_duration_s
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.workloads.spec import Workload


def seconds(spec: ExperimentSpec) -> float | None:
    """Return how long all replays take, s; None if the time of one follows from its bytes."""
    if any(map(_takes_its_bytes, workloads_of(spec))):
        return None
    method = variants_of(spec)
    repeat_s = 0.0
    for workload in workloads_of(spec):
        repeat_s += method.seconds_of_repeat(spec, stated_duration_s(workload))
    return len(spec.gpu_fabrics) * spec.repeats * repeat_s


def _takes_its_bytes(workload: Workload) -> bool:
    """Return whether the time of a workload follows from bytes."""
    return workload.takes_its_bytes or getattr(workload, "bytes", None) is not None
