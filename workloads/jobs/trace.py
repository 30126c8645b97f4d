"""Workload kind `trace`: a job that was traced elsewhere, replayed from its files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from railyard.core.errors import BadInput
from railyard.core.units import Time
from railyard.workloads.collectives.algorithm import check_algorithm, chosen_algorithm, sizing_algorithm
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.schedule import Factor, Scale, Schedule
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
from railyard.workloads.traces.chakra import read_chakra, read_groups
from railyard.workloads.traces.common import Files, Format, Trace, parse_json, read_files, trace_name
from railyard.workloads.traces.lower import Lowered, durations, lower
from railyard.workloads.traces.param import read_param
from railyard.workloads.traces.simai import read_simai


def load(
    path: str,
    format_: Format | None,
    groups: str | None,
    domains: int,
    rails: int,
    flops_per_s: float,
    field: str = "workload",
) -> Trace:
    """The trace at `path`, for a fabric of this shape. `groups`: a file of process groups, for Chakra.

    BadInput names a field below `field`, or the place in a file.
    """
    files = read_files(path, f"{field}.path")
    found = format_ or _format(files)
    if groups is not None and found != "chakra":
        raise BadInput(f"{field}.groups", groups, f"is only for Chakra: a {found} trace defines its groups itself")
    if found == "chakra":
        trace = read_chakra(files, _groups(groups, f"{field}.groups"))
    elif found == "param":
        trace = read_param(files, flops_per_s)
    elif files.shared:
        trace = read_simai(files, domains * rails, rails)
    else:
        raise BadInput(f"{field}.path", path, "must be one file: a SimAI workload is the same for all ranks")
    if len(trace.ranks) > domains * rails:
        fabric = f"{domains} domains x {rails} rails"
        raise BadInput(f"{field}.path", path, f"has {len(trace.ranks)} ranks, more than the {fabric} have GPUs")
    if len(trace.ranks) < 2:
        raise BadInput(f"{field}.path", path, "has one rank only, and no other rank to send to")
    return trace


def _format(files: Files) -> Format:
    """By the suffix; JSON by what is in its first entry."""
    suffix = Path(files.names[0]).suffix
    if suffix == ".et":
        return "chakra"
    if suffix != ".json":
        return "simai"
    content = files.content[0]
    if not content.lstrip().startswith(b"["):
        return "chakra"
    data = parse_json(content, files.names[0])
    first = data[0] if data else None
    return "param" if not isinstance(first, Mapping) or {"comms", "compute"} & set(first) else "chakra"


def _groups(path: str | None, field: str) -> dict[str, tuple[int, ...]]:
    if path is None:
        return {}
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(field, path, f"can't be read: {reason}") from error
    return read_groups(content, Path(path).name)


@WORKLOADS.register("trace")
class TraceSpec(Workload):
    """Somebody else's workload, read from its files: `path` is a file, or the folder or beginning of a file a rank.

    All bytes are scaled by `bytes_factor`, or such that the whole lasts `duration`. `groups`: ASTRA-sim's file of
    communicator groups, for a Chakra trace that doesn't define its own. `algorithm`: of even all-to-alls; those with
    splits go from pair to pair as the trace has them. `efficiency` is for a PARAM gemm that has no time of its own.
    """

    path: str
    format: Literal["auto", "chakra", "param", "simai"] = "auto"
    groups: str | None = None
    algorithm: str = "auto"
    bytes_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    duration: Time | None = None
    compute: Share = 1.0
    efficiency: Efficiency = 0.5

    @field_validator("algorithm")
    @classmethod
    def _check_algorithm(cls, algorithm: str) -> str:
        return check_algorithm("all-to-all", algorithm, on_grid=True)

    @field_validator("duration")
    @classmethod
    def _check_exclusive(cls, duration: float | None, info: ValidationInfo) -> float | None:
        return check_duration(duration, info, "bytes_factor")

    @property
    def target_duration_s(self) -> float:
        """The duration asked for, or the default."""
        return self.duration or DEFAULT_DURATION_S

    def label(self) -> str:
        return trace_name(self.path)

    def build(self, setting: Setting) -> Built:
        lowered, scale = self.lowered(setting)

        def measured_files(spans: TaskSpans) -> dict[str, bytes]:
            return lowered.trace.rewrite(durations(lowered, spans, scale.time_factor))

        return Built(lowered.schedule, scale, measured_files, tuple(lowered.trace.notes))

    def lowered(self, setting: Setting) -> tuple[Lowered, Scale]:
        """Return the trace, the tasks that each of its operations became, and the scale.

        Nothing of it is left out or merged: bytes are scaled by one factor, and gaps by the time that goes with it.
        """
        fabric, flops = setting.fabric, setting.platform.flops * self.efficiency
        format_ = None if self.format == "auto" else self.format
        trace = load(self.path, format_, self.groups, fabric.domains, fabric.rails, flops, setting.field)
        all_to_all = chosen_algorithm("all-to-all", self.algorithm, fabric)
        factor = self.bytes_factor
        if factor is None:  # such that the whole takes the duration asked for, on rail-only at the links' rates
            unscaled = lower(trace, fabric.domains, fabric.rails, 1.0, self.compute, sizing_algorithm("all-to-all"))
            self._check_sends(unscaled.schedule, setting)
            time_factor = self.target_duration_s / line_rate_duration_s(unscaled.schedule, setting.real)
            factor = time_factor * setting.emulated.rail / setting.real.rail
        scale = replace(
            setting.scale(trace.name, factor),
            shape={"gpus": Factor(len(trace.ranks), len(trace.ranks))},
            compute_kept=self.compute,
        )
        seconds = scale.time_factor * self.compute
        lowered = lower(trace, fabric.domains, fabric.rails, factor, seconds, all_to_all)
        self._check_sends(lowered.schedule, setting)
        return lowered, scale

    def _check_sends(self, schedule: Schedule, setting: Setting) -> None:
        if not schedule.transfers:
            raise BadInput(f"{setting.field}.path", self.path, "sends nothing, so there is nothing to replay")
