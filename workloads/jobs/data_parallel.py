"""A training step of plain data parallelism: AllReduce of the gradients, bucket by bucket, over all GPUs.

Buckets are PyTorch DDP's (Li et al. 2020, section 3.2.3): gradients in the order in which the backward pass gives
them, the last layer first and in each layer the bias before the weights; a bucket is full with the gradient that
brings it to its limit, so none is split. One follows the other, as NCCL runs them. Computing is left out: models
given by layers don't say how long theirs takes.
"""

from typing import Final

from railyard.core.input_paths import NameOrPath
from railyard.core.units import Size
from railyard.workloads.collectives.algorithm import run, whole_phase
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.models.catalogue import LayersModel
from railyard.workloads.scale import Scale
from railyard.workloads.schedule import Iteration, Phase, Program, Schedule
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Modelled, Setting, TrafficKind

TRAFFIC_KINDS.add("DP", TrafficKind(is_dense=True, is_headline=False))
# DDP's first bucket is smaller (1 MiB), so that communication starts early
FIRST_BUCKET_BYTES: Final = 2**20


def buckets(model: LayersModel, limit: int) -> tuple[int, ...]:
    """Bytes of each bucket, in the order in which they are sent."""
    bucket_sizes: list[int] = []
    bucket_size = 0
    bucket_limit = min(limit, FIRST_BUCKET_BYTES)
    # gradients of the last layer are ready first; a tensor stays in one bucket
    for layer in reversed(model.layers):
        for parameters in (layer.biases, layer.weights):
            bucket_size += parameters * model.bytes_per_parameter
            if bucket_size >= bucket_limit:
                bucket_sizes.append(bucket_size)
                bucket_size = 0
                bucket_limit = limit
    if bucket_size:
        bucket_sizes.append(bucket_size)
    return tuple(bucket_sizes)


@WORKLOADS.register("data-parallel")
class DataParallelSpec(Modelled):
    """AllReduce of a model's gradients in buckets of real bytes (PyTorch DDP's default). `bytes`: the largest's D."""

    model: NameOrPath = "vgg-11"
    bucket: Size = 25 * 2**20

    def state_parameters(self, scale: Scale) -> float:
        return float(LayersModel.load(self.model).parameters)

    def build(self, setting: Setting) -> Built:
        """The model says nothing of a cluster: it is projected to the real platform with as many GPUs as here."""
        x = setting.fabric.rails
        y = setting.fabric.domains
        sizes = buckets(LayersModel.load(self.model, f"{setting.field}.model"), self.bucket)

        def iteration(factor: float) -> Iteration:
            """The step as Eq. 6-11 see it: nothing but its synchronisation, twice Eq. 1 a bucket (Eq. 11)."""
            phases: list[Phase] = []
            for number, size in enumerate(sizes, start=1):
                name = f"dp-bucket-{number}"
                phases.append(whole_phase(name, "DP", "all-reduce-hierarchical", x, y, size * factor))
            return Iteration(1, 1, 1, 0.0, (), None, tuple(phases))

        def schedule(factor: float) -> Schedule:
            program = Program(y, x)
            whole = iteration(factor)
            for phase in whole.sync:
                run(program, phase, program.grid)
            return program.schedule(self.label(), whole)

        factor = self.bytes_factor(setting, max(sizes), lambda rates: line_rate_duration_s(schedule(1.0), rates))
        return Built(schedule(factor), setting.scale(self.label(), factor, real=iteration(1.0)))
