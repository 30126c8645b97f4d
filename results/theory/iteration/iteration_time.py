"""Rail-only Eq. 6 to 11 with latency, and the GPU memory that is needed, for many strategies at once.

Rail-only's appendix wants t(b), the compute time of a micro-batch, profiled, or modelled from FLOPs and the GPU's
speed; its own model isn't printed. Ours is a roofline whose parts add up, since kernels run one after the other:

- matmuls at `matmul_efficiency` of the peak, after `overhead_flops` for each pass of a layer;
- everything else (layer norm, GeLU, dropout, softmax, residuals) moves bytes at `memory_efficiency` of the HBM peak.

So efficiency rises with the micro-batch and with the width h, where FLOPs outgrow bytes, and falls with t, where the
work of a GPU shrinks and the overhead doesn't.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from railyard.results.theory import equations as eq
from railyard.results.theory.iteration.job import (
    Constants,
    FloatArray,
    Job,
    Recompute,
    Strategy,
    attention_flops,
    output_flops,
    parameter_flops,
)
from railyard.workloads.collectives.all_gather import all_gather_s
from railyard.workloads.collectives.all_reduce import all_reduce_s
from railyard.workloads.models.catalogue import FP16_BYTES

Strategies = Strategy[FloatArray]
PASSES: Final[dict[Recompute, int]] = {"none": 3, "selective": 3, "full": 4}
"""Of a layer: forward, two of backward (gradients of inputs and of parameters), and forward again."""


class ComputeParts(NamedTuple):
    """Seconds at a GPU's data-sheet peaks, before any constant: of matmuls, of moving bytes, and of one FLOP more in
    each pass of each layer.
    """

    matmul_s: FloatArray
    memory_s: FloatArray
    pass_s: FloatArray

    def seconds(self, constants: Constants) -> FloatArray:
        """Return the time with a GPU's constants, s."""
        matmul = (self.matmul_s + constants.overhead_flops * self.pass_s) / constants.matmul_efficiency
        return matmul + self.memory_s / constants.memory_efficiency


def micro_batch_parts(job: Job, s: Strategies) -> ComputeParts:
    """t(b): forward and backward of a micro-batch at a stage.

    The output layer's FLOPs are spread over the stages: Eq. 6 to 11 take all stages as equal.
    """
    model, recipe, cluster = job.model, job.recipe, job.cluster
    layer = parameter_flops(model, recipe.recompute) + attention_flops(model, recipe.recompute)
    whole = s.micro_batch * (model.layers * layer + output_flops(model))
    layers = model.layers / s.pipeline
    return ComputeParts(
        matmul_s=whole / (s.tensor * s.pipeline * cluster.flops),
        memory_s=layers * _layer_traffic(job, s) / cluster.constants.memory_bytes_per_s,
        pass_s=layers * PASSES[recipe.recompute] / cluster.flops,
    )


def _stored(job: Job, s: Strategies) -> tuple[FloatArray, FloatArray]:
    """Return what a layer stores of a micro-batch, in units of s b h bytes: attention's inner part, and all else.

    Together 10 + 24/t + 5 a s/(h t), Korthikanti Eq. 2; sequence parallelism divides the 10 by t too (Eq. 4).
    """
    model = job.model
    other = 34 / s.tensor if job.recipe.sequence_parallel else 10 + 24 / s.tensor
    return 5 * model.heads * model.sequence / model.hidden / s.tensor, other


def _layer_traffic(job: Job, s: Strategies) -> FloatArray:
    """Bytes that a layer's kernels other than matmuls move for a micro-batch, all passes, at one GPU.

    Proportional to the activations that they store: a stored byte is written by a kernel and read by the next, and
    backward moves twice that, as with FLOPs.
    """
    attention, other = _stored(job, s)
    recomputed = {"none": 0 * other, "selective": attention, "full": other + attention}[job.recipe.recompute]
    unit = 2 * s.micro_batch * job.model.sequence * job.model.hidden
    return unit * (3 * (other + attention) + recomputed)


def optimizer_parts(job: Job, parameters: FloatArray) -> ComputeParts:
    """Adam over a GPU's `parameters`, once an iteration: no matmul.

    It moves 26 bytes for a parameter, in fp32: reads its copy and both moments, writes the three; and the 16-bit
    parameter. It reads the gradient twice: for the norm, and for the update.
    """
    moved_bytes = parameters * (26 + 2 * job.recipe.gradient_bytes)
    no_matmul = np.zeros_like(parameters)
    return ComputeParts(no_matmul, moved_bytes / job.cluster.constants.memory_bytes_per_s, no_matmul)


def stage_parameters(job: Job, s: Strategies) -> FloatArray:
    """Parameters of a GPU of the first stage: its layers, and the embedding, both split over t."""
    layers = job.model.layers * job.model.layer_parameters / s.pipeline
    return (layers + job.model.embedding_parameters) / s.tensor


def activation_bytes(job: Job, s: Strategies) -> FloatArray:
    """Bytes of the micro-batches that a first stage holds in 1F1B: p of them, or all m where there are fewer.

    Korthikanti et al. 2022, per layer and micro-batch: s b h (34 + 5 a s/h)/t; selective recomputation keeps 34 s b h/t
    and full recomputation 2 s b h/t, with one layer's rest while it is done again; without sequence parallelism 10 of
    the 34, or all of the 2, aren't split. Interleaving multiplies by 1 + (p - 1)/(p v).
    """
    model, recipe = job.model, job.recipe
    unit = s.micro_batch * model.sequence * model.hidden
    attention, rest = _stored(job, s)
    edge = 2 / s.tensor if recipe.sequence_parallel else 2 * np.ones_like(s.tensor)
    kept = {"none": rest + attention, "selective": rest, "full": edge}[recipe.recompute]
    working = {"none": 0 * rest, "selective": attention, "full": rest + attention}[recipe.recompute]
    p, v = s.pipeline, s.virtual_stages
    interleaving = np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
    in_flight = np.minimum(s.micro_batches(recipe.global_batch), p) / p * interleaving
    return np.asarray(unit * (kept * model.layers * in_flight + working))


def gpu_bytes(job: Job, s: Strategies) -> FloatArray:
    """Parameters, gradients, Adam's state and activations: 16 bytes a parameter, 18 with fp32 gradients.

    14 are beside the gradient: a 16-bit parameter, and for Adam its fp32 copy and two fp32 moments.
    """
    state = stage_parameters(job, s) * (14 + job.recipe.gradient_bytes)
    return state + activation_bytes(job, s)


@dataclass(frozen=True)
class IterationTime:
    """The terms of Rail-only Eq. 6, and the optimizer's step, which it leaves out; seconds, an array each."""

    bubble_compute_s: FloatArray
    bubble_network_s: FloatArray
    last_stage_compute_s: FloatArray
    last_stage_network_s: FloatArray
    sync_s: FloatArray
    optimizer_s: FloatArray

    @property
    def compute_s(self) -> FloatArray:
        """Time of computing, s."""
        return self.bubble_compute_s + self.last_stage_compute_s + self.optimizer_s

    @property
    def network_s(self) -> FloatArray:
        """Time on the network, s."""
        return self.bubble_network_s + self.last_stage_network_s + self.sync_s

    @property
    def total_s(self) -> FloatArray:
        """Time of an iteration, Eq. 6, s."""
        return self.compute_s + self.network_s


def iteration_time(job: Job, s: Strategies) -> IterationTime:
    """Rail-only Eq. 6: bubble (7, 8), last stage (9, 10), synchronisation (11)."""
    c, p, v = job.cluster.constants, s.pipeline, s.virtual_stages
    t_b, m = micro_batch_parts(job, s).seconds(c), s.micro_batches(job.recipe.global_batch)
    k, stages = job.cluster, (s.pipeline_network, s.pipeline_hb)
    boundary = np.where(p > 1, FP16_BYTES * s.micro_batch * job.model.hidden * job.model.sequence / s.tensor, 0.0)
    return IterationTime(
        bubble_compute_s=eq.bubble_compute_s(p, v, t_b),
        bubble_network_s=eq.bubble_network_s(boundary, *stages, k.hb_bytes_per_s, k.rail_bytes_per_s)
        + eq.bubble_latency_s(*stages, c.hb_latency_s, c.rail_latency_s),
        last_stage_compute_s=eq.last_stage_compute_s(m, t_b),
        last_stage_network_s=_last_stage_network_s(job, s, boundary),
        sync_s=_sync_s(job, s),
        optimizer_s=optimizer_parts(job, stage_parameters(job, s)).seconds(c),
    )


def compute_parts(job: Job, s: Strategies) -> ComputeParts:
    """All computing of an iteration: (m + (p - 1)/v) t(b) and the optimizer's step, before any constant."""
    one, step = micro_batch_parts(job, s), optimizer_parts(job, stage_parameters(job, s))
    times = s.micro_batches(job.recipe.global_batch) + (s.pipeline - 1) / s.virtual_stages
    return ComputeParts(*(times * each + once for each, once in zip(one, step, strict=True)))


def _last_stage_network_s(job: Job, s: Strategies, boundary: FloatArray) -> FloatArray:
    k, m, v = job.cluster, s.micro_batches(job.recipe.global_batch), s.virtual_stages
    gathered = FP16_BYTES * s.micro_batch * job.model.hidden * job.model.sequence
    gather = all_gather_s(gathered, s.tensor_hb, s.tensor_network, k.hb_bytes_per_s, k.rail_bytes_per_s)
    late = eq.all_gather_latency_s(s.tensor_hb, s.tensor_network, k.constants.hb_latency_s, k.constants.rail_latency_s)
    # Eq. 10 has 4 AllGather and 4 ReduceScatter; a forward that is done again has 2 + 2 more
    gathers = 12 if job.recipe.recompute == "full" else 8
    collectives = gathers * job.model.layers / s.pipeline * (gather + late)
    leaves = s.pipeline_network > 1
    bytes_per_s = np.where(leaves, k.rail_bytes_per_s, k.hb_bytes_per_s)
    sent = eq.last_stage_network_s(m, collectives, v, boundary, bytes_per_s)
    hop = np.where(leaves, k.constants.rail_latency_s, k.constants.hb_latency_s)
    return sent + np.where(s.pipeline > 1, 2 * m * v * hop, 0.0)


def _sync_s(job: Job, s: Strategies) -> FloatArray:
    """Eq. 11, with the first stage's embedding among its parameters."""
    k = job.cluster
    size = job.recipe.gradient_bytes * stage_parameters(job, s)
    sent = all_reduce_s(size, s.data_hb, s.data_network, k.hb_bytes_per_s, k.rail_bytes_per_s)
    late = eq.all_gather_latency_s(s.data_hb, s.data_network, k.constants.hb_latency_s, k.constants.rail_latency_s)
    return sent + 2 * late
