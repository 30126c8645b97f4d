"""Workload kind `trace`: a job that was traced elsewhere, replayed from its files."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from railyard.core.errors import BadInput
from railyard.core.units import Time
from railyard.workloads.collectives.algorithm import check_algorithm, chosen_algorithm, sizing_algorithm
from railyard.workloads.schedule import Factor, Scale
from railyard.workloads.spec import (
    DEFAULT_DURATION_S,
    WORKLOADS,
    Built,
    Efficiency,
    Setting,
    Share,
    TaskSpans,
    Workload,
    check_duration,
)
from railyard.workloads.traces.common import (
    TRACE_FORMATS,
    Groups,
    ReplayOn,
    Trace,
    format_of,
    read_files,
    read_groups,
    trace_name,
)
from railyard.workloads.traces.lower import Lowered, durations, lower


@WORKLOADS.register("trace")
class TraceSpec(Workload):
    """Somebody else's workload, read from its files: `path` is a file, or the folder or beginning of a file a rank.

    All bytes are scaled by `bytes_factor`, or such that the whole lasts `duration`. `groups`: ASTRA-sim's file of
    communicator groups, for a Chakra trace that doesn't define its own. `algorithm`: of even all-to-alls; those with
    splits go from pair to pair as the trace has them. `efficiency` is for a PARAM gemm that has no time of its own.
    """

    path: str
    format: str = "auto"
    groups: str | None = None
    algorithm: str = "auto"
    bytes_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    duration: Time | None = None
    compute: Share = 1.0
    efficiency: Efficiency = 0.5

    @field_validator("format")
    @classmethod
    def _check_format(cls, name: str) -> str:
        return name if name == "auto" else TRACE_FORMATS.checked(name)

    @field_validator("algorithm")
    @classmethod
    def _check_algorithm(cls, algorithm: str) -> str:
        return check_algorithm("all-to-all", algorithm, on_grid=True)

    @field_validator("duration")
    @classmethod
    def _check_exclusive(cls, duration: float | None, info: ValidationInfo) -> float | None:
        return check_duration(duration, info, "bytes_factor")

    def label(self) -> str:
        return trace_name(self.path)

    def build(self, setting: Setting) -> Built:
        lowered, scale = self.lowered(setting)

        def measured_files(spans: TaskSpans) -> dict[str, bytes]:
            return lowered.trace.rewrite(durations(lowered, spans, scale.time_factor))

        return Built(lowered.schedule, scale, measured_files, tuple(lowered.trace.notes))

    def read(self, setting: Setting) -> Trace:
        """Return the trace. BadInput names a field below `setting.field`, or a place in a file."""
        fabric, field = setting.fabric, f"{setting.field}.path"
        files = read_files(self.path, field)
        name = format_of(files, field) if self.format == "auto" else self.format
        groups: Groups = {}
        if self.groups is not None:
            if not TRACE_FORMATS[name].takes_groups:
                allowed = f"is not for a {name} trace, which defines its groups itself"
                raise BadInput(f"{setting.field}.groups", self.groups, allowed)
            groups = read_groups(self.groups, f"{setting.field}.groups")
        flops = setting.platform.flops * self.efficiency
        trace = TRACE_FORMATS[name].read(files, ReplayOn(fabric.gpus, fabric.rails, flops, groups))
        if len(trace.ranks) > fabric.gpus:
            shape = f"{fabric.domains} domains x {fabric.rails} rails"
            raise BadInput(field, self.path, f"has {len(trace.ranks)} ranks, more than the {shape} have GPUs")
        if len(trace.ranks) < 2:
            raise BadInput(field, self.path, "has one rank only, and no other rank to send to")
        return trace

    def lowered(self, setting: Setting) -> tuple[Lowered, Scale]:
        """Return the trace, the tasks that each of its operations became, and the scale.

        Nothing of it is left out or merged: bytes are scaled by one factor, and gaps by the time that goes with it.
        """
        fabric, trace = setting.fabric, self.read(setting)

        def lowered(bytes_factor: float, time_factor: float, all_to_all: str) -> Lowered:
            found = lower(trace, fabric.domains, fabric.rails, bytes_factor, time_factor, all_to_all)
            if not found.schedule.transfers:
                raise BadInput(f"{setting.field}.path", self.path, "sends nothing, so there is nothing to replay")
            return found

        factor = self.bytes_factor
        if factor is None:  # such that the whole takes the duration asked for, on rail-only at the links' rates
            unscaled = lowered(1.0, self.compute, sizing_algorithm("all-to-all")).schedule
            factor = setting.bytes_factor(unscaled, self.duration or DEFAULT_DURATION_S)
        shape = {"gpus": Factor(len(trace.ranks), len(trace.ranks))}
        scale = setting.scale(trace.name, factor, shape=shape, compute_kept=self.compute)
        all_to_all = chosen_algorithm("all-to-all", self.algorithm, fabric)
        return lowered(factor, scale.time_factor * self.compute, all_to_all), scale
