"""From a trace's spec to its schedule on a fabric, with the record of what was scaled."""

from railyard.core.errors import BadInput
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.pace import line_rate_duration_s
from railyard.workloads.scale import Factor, Rates, Scale
from railyard.workloads.spec import TraceSpec, auto_all_to_all
from railyard.workloads.traces.common import Trace
from railyard.workloads.traces.load import load
from railyard.workloads.traces.lower import Lowered, lower


def lowered_trace(
    spec: TraceSpec, fabric: FabricSpec, real: Rates, emulated: Rates, field: str = "workload"
) -> tuple[Lowered, Scale]:
    """The trace as it runs on a fabric with these rates, and its scale; BadInput names fields below `field`.

    Nothing of it is left out or merged: bytes are scaled by one factor, and gaps by the time that goes with it.
    """
    trace = read_trace(spec, fabric, field)
    chosen = auto_all_to_all(fabric) if spec.algorithm == "auto" else spec.algorithm
    factor = spec.bytes_factor or _bytes_factor(trace, spec, fabric, real, emulated, field)
    scale = Scale(
        workload=trace.name,
        platform=fabric.platform,
        real_rates=real,
        emulated_rates=emulated,
        bytes_factor=factor,
        shape={"gpus": Factor(len(trace.ranks), len(trace.ranks))},
        compute_kept=spec.compute,
    )
    seconds = scale.time_factor * spec.compute
    lowered = lower(trace, fabric.domains, fabric.rails, factor, seconds, two_phase=chosen == "two-phase")
    if not lowered.schedule.transfers:
        raise BadInput(f"{field}.path", spec.path, "sends nothing, so there is nothing to replay")
    return lowered, scale


def read_trace(spec: TraceSpec, fabric: FabricSpec, field: str = "workload") -> Trace:
    """The trace that a spec means, for a fabric of this shape."""
    flops = PLATFORMS[fabric.platform].flops * spec.efficiency
    format_ = None if spec.format == "auto" else spec.format
    return load(spec.path, format_, spec.groups, fabric.domains, fabric.rails, flops, field)


def _bytes_factor(trace: Trace, spec: TraceSpec, fabric: FabricSpec, real: Rates, emulated: Rates, field: str) -> float:
    """Such that the whole takes the wished-for time, on rail-only at the links' rates, as with other workloads."""
    unscaled = lower(trace, fabric.domains, fabric.rails, 1.0, spec.compute, two_phase=True).schedule
    if not unscaled.transfers:
        raise BadInput(f"{field}.path", spec.path, "sends nothing, so there is nothing to replay")
    return spec.target_duration_s / line_rate_duration_s(unscaled, real, "dr") * emulated.rail / real.rail
