"""A workload as an experiment's YAML has it, and the schedule that it means on a fabric.

    {kind: gpt, model: gpt-145.6b, duration: 5s}
    {kind: moe, all_to_alls: 4, compute: 0.1}
    {kind: data-parallel, model: vgg-11, bucket: 25MiB}
    {kind: collective, collective: all-gather, bytes: 64MB}
    {kind: transfers, domains: [0], ranks: [0, 1], bytes: 4MB, stripes: 4}
    {kind: trace, path: traces/dlrm, duration: 5s}

Sizes follow from a wished-for duration unless they are given. A duration is that of the workload on rail-only
(two-phase all-to-all) if all goes at the links' rates, whatever the fabric: so the same bytes go over every fabric,
and their times can be compared. Of `transfers` it is that of one.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from railyard.core.errors import unknown_name_hint
from railyard.core.parse import parse_by_kind
from railyard.core.units import Size, Time
from railyard.topologies.spec import ConfigModel, FabricSpec
from railyard.workloads.collectives.algorithm import algorithms_of, collectives, default_algorithm
from railyard.workloads.collectives.stages import IN_FLIGHT
from railyard.workloads.placement.parallelism import Count, Parallelism

Share = Annotated[float, Field(ge=0, le=1)]
Efficiency = Annotated[float, Field(gt=0, le=1)]
Number = Annotated[int, Field(ge=0)]
GpuPair = Annotated[tuple[str, str], Field(strict=False)]
"""(source, destination), as d0g0 and d1g1."""
AllToAll = Literal["auto", "direct", "in-rail", "two-phase"]

DEFAULT_DURATION_S: Final = 5.0
MAX_DURATION_S: Final = 3600
MAX_STRIPES: Final = 64


def _check_duration(duration: float | None, info: ValidationInfo, other: str) -> float | None:
    """A workload's duration; ValueError if it is too long, or `other` has said already how much is sent."""
    if duration is not None and info.data.get(other) is not None:
        raise ValueError(f"can't be given together with {other}: one follows from the other")
    if duration is not None and duration > MAX_DURATION_S:
        raise ValueError(f"must be {MAX_DURATION_S} s or less")
    return duration


class _Sized(ConfigModel):
    """`bytes` is D of the workload's main collective as emulated (see `Phase`); `duration` is of the whole workload."""

    bytes: Size | None = None
    duration: Time | None = None

    @field_validator("duration")
    @classmethod
    def _check_exclusive(cls, duration: float | None, info: ValidationInfo) -> float | None:
        return _check_duration(duration, info, "bytes")

    @property
    def target_duration_s(self) -> float:
        """The duration asked for, or the default."""
        return self.duration or DEFAULT_DURATION_S


class _Training(_Sized):
    """`efficiency`: the part of the platform's peak that a GPU achieves; `compute`: the part of computing time kept.

    Computing costs the emulation nothing but time. With less of it, communication is a larger part of the same
    duration, and its steps are longer and so better measured; 1 keeps the real proportions.
    """

    efficiency: Efficiency = 0.5
    compute: Share = 1.0


class GptSpec(_Training):
    """An iteration of a dense GPT. `bytes` is D of each AllGather and ReduceScatter as merged.

    Left out: t = the GPUs of an HB domain, p = the smallest divisor of the number of domains above 1, d = the rest,
    four micro-batches of the model's own size (or `global_batch`, in sequences, whatever d); as many layers at a stage
    as in the published job. A pass (a micro-batch through a stage, one way) has `pairs_per_pass` AllGather and
    ReduceScatter, which carry the bytes of all its layers.
    """

    kind: Literal["gpt"]
    model: str = "gpt-145.6b"
    parallelism: Parallelism | None = None
    global_batch: Count | None = None
    layers_per_stage: Count | None = None
    pairs_per_pass: Count = 1

    @field_validator("global_batch")
    @classmethod
    def _check_global_batch(cls, global_batch: int | None, info: ValidationInfo) -> int | None:
        if global_batch is not None and info.data.get("parallelism") is not None:
            raise ValueError("can't be given together with parallelism, which has its own")
        return global_batch


class MoeSpec(_Training):
    """A step of a mixture of experts, `all_to_alls` of the model's own number long. `bytes` is D of an all-to-all.

    `skew`: the exponent of a Zipf law by which experts get tokens, 0 for as many each; who is popular is drawn from the
    seed. Uneven ones go straight. They have as many bytes in all as even ones, so they take longer than `duration`.
    """

    kind: Literal["moe"]
    model: str = "moe-1.3b-128"
    algorithm: Literal["auto", "direct", "two-phase"] = "auto"
    all_to_alls: Count = 4
    skew: Annotated[float, Field(ge=0, le=2)] = 0.0

    @field_validator("skew")
    @classmethod
    def _check_skew(cls, skew: float, info: ValidationInfo) -> float:
        if skew > 0 and info.data.get("algorithm") == "two-phase":
            raise ValueError("is not for two-phase, whose pairs are all alike: leave algorithm out, or write direct")
        return skew


class DataParallelSpec(_Sized):
    """AllReduce of a model's gradients in buckets of real bytes (PyTorch DDP's default). `bytes`: the largest's D."""

    kind: Literal["data-parallel"]
    model: str = "vgg-11"
    bucket: Size = 25 * 2**20


class CollectiveSpec(_Sized):
    """One plain collective. auto: all-to-all two-phase on rail-only and direct elsewhere, the others hierarchical."""

    kind: Literal["collective"]
    collective: str
    algorithm: str = "auto"
    in_flight: Count = IN_FLIGHT

    @field_validator("collective")
    @classmethod
    def _check_collective(cls, collective: str) -> str:
        if collective not in collectives():
            raise ValueError(unknown_name_hint(collective, collectives()))
        return collective

    @field_validator("algorithm")
    @classmethod
    def _check_algorithm(cls, algorithm: str, info: ValidationInfo) -> str:
        known = algorithms_of(info.data.get("collective", ""))
        if algorithm != "auto" and known and algorithm not in known:
            raise ValueError(f"is not for {info.data['collective']}: allowed are auto, {', '.join(known)}")
        return algorithm

    def resolve_algorithm(self, fabric: FabricSpec) -> str:
        """Return the full name of the algorithm chosen."""
        if self.algorithm != "auto":
            return algorithms_of(self.collective)[self.algorithm]
        return default_algorithm(self.collective, fabric)


class TransfersSpec(_Sized):
    """Each GPU of these domains and ranks (left out: all) sends `bytes` to the next domain, to another of the ranks.

    The next domain is by number, after the last the first. next-rank: the one that follows in the list, after its last
    the first; shuffled: drawn from the seed. Each is once a destination. Or `pairs` says who sends to whom. `bytes`, or
    `duration` at the rail's rate, is of one transfer; it goes in `stripes` over as many connections. A source sends
    `rounds` of them, one after the other, to the same destination.
    """

    kind: Literal["transfers"]
    domains: Annotated[tuple[Number, ...], Field(min_length=1, strict=False)] | None = None
    ranks: Annotated[tuple[Number, ...], Field(min_length=2, strict=False)] | None = None
    to: Literal["next-rank", "shuffled"] = "next-rank"
    pairs: Annotated[tuple[GpuPair, ...], Field(min_length=1, strict=False)] | None = None
    stripes: Annotated[int, Field(ge=1, le=MAX_STRIPES)] = 1
    rounds: Count = 1

    @field_validator("domains", "ranks")
    @classmethod
    def _check_unique(cls, numbers: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if numbers is not None and len(set(numbers)) < len(numbers):
            raise ValueError("must name each once")
        return numbers

    @field_validator("pairs")
    @classmethod
    def _check_pairs(
        cls, pairs: tuple[tuple[str, str], ...] | None, info: ValidationInfo
    ) -> tuple[tuple[str, str], ...] | None:
        if pairs is not None and (info.data.get("domains") is not None or info.data.get("ranks") is not None):
            raise ValueError("can't be given together with domains or ranks: it says all")
        if pairs is not None and any(len(set(side)) < len(pairs) for side in zip(*pairs, strict=True)):
            raise ValueError("must name each GPU once as a source, and once as a destination")
        return pairs


class TraceSpec(ConfigModel):
    """Somebody else's workload, read from its files: `path` is a file, or the folder or beginning of a file a rank.

    All bytes are scaled by `bytes_factor`, or such that the whole lasts `duration`. `groups`: ASTRA-sim's file of
    communicator groups, for a Chakra trace that doesn't define its own. `algorithm`: of even all-to-alls; those with
    splits go from pair to pair as the trace has them. `efficiency` is for a PARAM gemm that has no time of its own.
    """

    kind: Literal["trace"]
    path: str
    format: Literal["auto", "chakra", "param", "simai"] = "auto"
    groups: str | None = None
    algorithm: Literal["auto", "direct", "two-phase"] = "auto"
    bytes_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    duration: Time | None = None
    compute: Share = 1.0
    efficiency: Efficiency = 0.5

    @field_validator("duration")
    @classmethod
    def _check_exclusive(cls, duration: float | None, info: ValidationInfo) -> float | None:
        return _check_duration(duration, info, "bytes_factor")

    @property
    def target_duration_s(self) -> float:
        """The duration asked for, or the default."""
        return self.duration or DEFAULT_DURATION_S


Workload = GptSpec | MoeSpec | DataParallelSpec | CollectiveSpec | TransfersSpec | TraceSpec
WorkloadSpec = Annotated[Workload, Field(discriminator="kind")]
KINDS: Final[dict[str, type[Workload]]] = {
    "gpt": GptSpec,
    "moe": MoeSpec,
    "data-parallel": DataParallelSpec,
    "collective": CollectiveSpec,
    "transfers": TransfersSpec,
    "trace": TraceSpec,
}


def is_iteration(workload: Workload) -> bool:
    """Whether it is a job's iteration, or somebody's trace of one, and not plain traffic."""
    return not isinstance(workload, CollectiveSpec | TransfersSpec)


def auto_all_to_all(fabric: FabricSpec) -> Literal["direct", "two-phase"]:
    """Two-phase where there are no spines to go straight over."""
    return "two-phase" if default_algorithm("all-to-all", fabric) == "all-to-all-two-phase" else "direct"


def parse_workload(data: object, field: str = "workload") -> Workload:
    """Read a workload from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    return parse_by_kind(data, KINDS, field)
