"""A training step of plain data parallelism: AllReduce of the gradients, bucket by bucket, over all GPUs.

Buckets are PyTorch DDP's (Li et al. 2020, section 3.2.3): gradients in the order in which the backward pass gives
them, the last layer first and in each layer the bias before the weights; a bucket is full with the gradient that
brings it to its limit, so none is split. One follows the other, as NCCL runs them. Computing is left out: models
given by layers don't say how long theirs takes.
"""

from dataclasses import dataclass, replace
from typing import Final

from railyard.core.units import Size
from railyard.workloads.collectives.algorithm import ALGORITHMS
from railyard.workloads.collectives.stages import whole_bytes
from railyard.workloads.models.catalogue import LayersModel, load_layers
from railyard.workloads.schedule import Iteration, Phase, Program, Scale, Schedule
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Modelled, Setting, TrafficKind

TRAFFIC_KINDS.add("DP", TrafficKind(is_dense=True, is_headline=False))
FIRST_BUCKET_BYTES: Final = 2**20
"""DDP's first bucket is smaller (1 MiB), so that communication starts early."""


def buckets(model: LayersModel, limit: int) -> tuple[int, ...]:
    """Bytes of each bucket, in the order in which they are sent."""
    full_buckets: list[int] = []
    bucket_size = 0
    for layer in reversed(model.layers):
        for parameters in (layer.biases, layer.weights):
            bucket_size += parameters * model.bytes_per_parameter
            if bucket_size >= (limit if full_buckets else min(limit, FIRST_BUCKET_BYTES)):
                full_buckets.append(bucket_size)
                bucket_size = 0
    return (*full_buckets, bucket_size) if bucket_size else tuple(full_buckets)


@dataclass(frozen=True)
class DataParallelJob:
    """A step on `domains` x `rails` GPUs. `bucket_bytes`: D of each AllReduce."""

    name: str
    domains: int
    rails: int
    bucket_bytes: tuple[float, ...]

    def scaled(self, factor: float) -> "DataParallelJob":
        """The same step with that many times the bytes."""
        return replace(self, bucket_bytes=tuple(size * factor for size in self.bucket_bytes))


def _bucket_phases(job: DataParallelJob) -> tuple[Phase, ...]:
    """With whole bytes for each GPU."""
    x, y = job.rails, job.domains
    return tuple(
        Phase(
            f"dp-bucket-{number}", "DP", "all-reduce-hierarchical", x, y, x * y * whole_bytes(size / (x * y))
        )
        for number, size in enumerate(job.bucket_bytes, start=1)
    )  # fmt: skip


def data_parallel_iteration(job: DataParallelJob) -> Iteration:
    """The step as Eq. 6-11 see it: nothing but its synchronisation, twice Eq. 1 a bucket (Eq. 11)."""
    return Iteration(1, 1, 1, 0.0, (), None, _bucket_phases(job))


def data_parallel_schedule(job: DataParallelJob) -> Schedule:
    """The step as tasks."""
    program = Program(job.domains, job.rails)
    for step in _bucket_phases(job):
        ALGORITHMS[step.collective].emit(program, step, program.phase(step), program.grid)
    return program.schedule(job.name, data_parallel_iteration(job))


@WORKLOADS.register("data-parallel")
class DataParallelSpec(Modelled):
    """AllReduce of a model's gradients in buckets of real bytes (PyTorch DDP's default). `bytes`: the largest's D."""

    model: str = "vgg-11"
    bucket: Size = 25 * 2**20

    def state_parameters(self, scale: Scale) -> float:
        return float(load_layers(self.model).parameters)

    def build(self, setting: Setting) -> Built:
        """The model says nothing of a cluster: it is projected to the real platform with as many GPUs as here."""
        model = load_layers(self.model, f"{setting.field}.model")
        job = DataParallelJob(self.model, setting.fabric.domains, setting.fabric.rails, buckets(model, self.bucket))
        factor = self.bytes_factor(setting, max(job.bucket_bytes), lambda: data_parallel_schedule(job))
        scale = replace(setting.scale(self.model, factor), real=data_parallel_iteration(job))
        return Built(data_parallel_schedule(job.scaled(factor)), scale)
