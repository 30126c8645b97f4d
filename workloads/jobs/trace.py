"""Workload kind `trace`: a job that was traced elsewhere, replayed from its files."""

import os
from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from railyard.core.errors import BadInput
from railyard.core.input_paths import InputPath
from railyard.core.units import Time
from railyard.workloads import spec
from railyard.workloads.collectives.algorithm import AllToAllAlgorithm, chosen_algorithm, sizing_algorithm
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.scale import Factor, Scale
from railyard.workloads.schedule import TooManyTasks
from railyard.workloads.traces import common
from railyard.workloads.traces.lower import Lowered, durations, lower

# a product with the bytes of a transfer is finite, and more than it may have
MAX_BYTES_FACTOR: Final = 1e12

MAX_TRACE_NAME: Final = 128


@spec.WORKLOADS.register("trace")
class TraceSpec(spec.Workload):
    """Somebody else's workload, read from its files: `path` is a file, or the folder or beginning of a file a rank.

    All bytes are scaled by `bytes_factor`, or such that the whole lasts `duration`. `groups`: ASTRA-sim's file of
    communicator groups, for a Chakra trace that doesn't define its own. `algorithm`: of even all-to-alls; those with
    splits go from pair to pair as the trace has them. `efficiency` is for what has no measured time: a PARAM gemm, or a
    Chakra node with `num_ops`.
    """

    takes_its_bytes = True

    path: InputPath
    format: Annotated[str, AfterValidator(common.check_format)] = "auto"
    groups: InputPath | None = None
    algorithm: AllToAllAlgorithm = "auto"
    bytes_factor: Annotated[float, Field(gt=0, le=MAX_BYTES_FACTOR)] | None = None
    duration: Time | None = None
    compute: spec.Share = 1.0
    efficiency: spec.Efficiency = 0.5

    @field_validator("duration")
    @classmethod
    def _check_exclusive(cls, duration: float | None, info: ValidationInfo) -> float | None:
        return spec.check_duration(duration, info, "bytes_factor")

    def label(self) -> str:
        return common.trace_name(self.path)

    def build(self, setting: spec.Setting) -> spec.Built:
        lowered, scale = self.lowered(setting)

        def measured_files(spans: spec.TaskSpans) -> dict[str, bytes]:
            return lowered.trace.rewrite(durations(lowered, spans, scale.time_factor))

        return spec.Built(lowered.schedule, scale, measured_files, tuple(lowered.trace.notes))

    def read(self, setting: spec.Setting) -> common.Trace:
        """Return the trace. BadInput names a field below `setting.field`, or a place in a file."""
        fabric = setting.fabric
        field = f"{setting.field}.path"
        files = common.read_files(self.path, field)
        name = common.format_of(files, field) if self.format == "auto" else self.format
        groups: common.Groups = {}
        if self.groups is not None:
            if not common.TRACE_FORMATS[name].takes_groups:
                allowed = f"is not for a {name} trace, which defines its groups itself"
                raise BadInput(f"{setting.field}.groups", self.groups, allowed)
            groups = common.read_groups(self.groups, f"{setting.field}.groups")
        name_bytes = len(os.fsencode(files.name))
        if name_bytes > MAX_TRACE_NAME:
            # the run's folder has it as a folder, and with a suffix as a file
            allowed = f"has a name of {name_bytes} bytes, without rank and suffix: {MAX_TRACE_NAME} or fewer fit"
            raise BadInput(field, self.path, allowed)
        flops = setting.platform.flops * self.efficiency
        trace = common.TRACE_FORMATS[name].read(files, common.ReplayOn(fabric.gpus, fabric.rails, flops, groups))
        if len(trace.ranks) > fabric.gpus:
            gpus = f"domains * rails = {fabric.domains} * {fabric.rails} = {fabric.gpus} GPUs"
            raise BadInput(field, self.path, f"has {len(trace.ranks)} ranks, more than {gpus}")
        if len(trace.ranks) < 2:
            raise BadInput(field, self.path, "has one rank only, and no other rank to send to")
        return trace

    def lowered(self, setting: spec.Setting) -> tuple[Lowered, Scale]:
        """Return the trace, the tasks that each of its operations became, and the scale."""
        # nothing of it is left out or merged: bytes are scaled by one factor, and gaps by the time that goes with it
        fabric = setting.fabric
        trace = self.read(setting)

        def lowered(bytes_factor: float, time_factor: float, all_to_all: str) -> Lowered:
            try:
                lowered_trace = lower(trace, fabric.domains, fabric.rails, bytes_factor, time_factor, all_to_all)
            except TooManyTasks as error:
                remedy = "take fewer domains or rails, or fewer operations of the trace"
                raise BadInput(f"{setting.field}.path", self.path, f"{error}; {remedy}") from error
            if not lowered_trace.schedule.transfers:
                raise BadInput(f"{setting.field}.path", self.path, "sends nothing, so there is nothing to replay")
            return lowered_trace

        factor = self.bytes_factor
        if factor is None:
            # such that the whole takes the duration asked for, on rail-only at the links' rates
            unscaled = lowered(1.0, self.compute, sizing_algorithm("all-to-all")).schedule
            factor = setting.bytes_factor(
                line_rate_duration_s(unscaled, setting.real), self.duration or spec.DEFAULT_DURATION_S
            )
        shape = {"gpus": Factor(len(trace.ranks), len(trace.ranks))}
        scale = setting.scale(trace.name, factor, shape=shape, compute_kept=self.compute)
        all_to_all = chosen_algorithm("all-to-all", self.algorithm, fabric)
        return lowered(factor, scale.time_factor * self.compute, all_to_all), scale
