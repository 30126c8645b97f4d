"""Rail-only Eq. 6 to 11 with latency, and the GPU memory that is needed, for many strategies of a training at once.

Rail-only's appendix wants t(b), the compute time of a micro-batch, profiled or modelled; its own model isn't printed.
Ours is a roofline whose parts add up, since kernels run one after the other: matmuls at `matmul_efficiency` of the
peak, after `overhead_flops` for each pass of a layer; everything else (layer norm, GeLU, dropout, softmax, residuals)
moves bytes at `memory_efficiency` of the HBM peak. docs/iteration-time.md has the constants and how they were fitted.
"""

from dataclasses import dataclass, fields, replace
from typing import Final, Generic, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.results.theory import equations as eq
from railyard.topologies.platforms import PLATFORMS, Platform
from railyard.workloads.collectives.all_gather import N, all_gather_s
from railyard.workloads.collectives.all_reduce import all_reduce_s
from railyard.workloads.models.catalogue import FP16_BYTES, GptModel
from railyard.workloads.placement.layout import Parallelism


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of one GPU. `memory_bytes_per_s` is the data sheet's; efficiencies are shares of the peak.

    `overhead_flops`: what a layer's pass takes beside its size (launches, ramps and tails of kernels), as FLOPs on top
    of its own. So matmuls reach `matmul_efficiency` x F/(F + overhead_flops) of the peak in a pass of F FLOPs.
    """

    matmul_efficiency: float
    memory_efficiency: float
    overhead_flops: float
    memory_bytes_per_s: float
    hb_latency_s: float = 1e-6
    rail_latency_s: float = 2e-6


A100: Final = Constants(
    matmul_efficiency=0.7013,
    memory_efficiency=0.8701,
    overhead_flops=1.151e11,
    memory_bytes_per_s=2039e9,  # A100 80 GB data sheet
)
"""Fitted (fit.py); other GPUs take them with their own peaks."""


def taken_from_a100(platform: Platform) -> tuple[str, ...]:
    """Return the constants that the platform's file leaves open."""
    return tuple(field.name for field in fields(Constants) if getattr(platform, field.name) is None)


Recompute = Literal["none", "selective", "full"]
"""What is computed a second time in the backward pass: nothing, attention's inner part, or all of a layer's forward."""


def layer_flops(model: GptModel, recompute: Recompute) -> float:
    """FLOPs of a layer's matmuls with parameters and in attention, forward and backward, for one sequence.

    Narayanan et al. 2021 Eq. 3 (full), Korthikanti et al. 2022 Eq. 7 and 8 (none, selective): forward takes 24 s h^2 in
    matmuls with parameters and 4 s^2 h in attention, backward twice that. Selective recomputation repeats attention's
    forward, 4 s^2 h more, 16 s^2 h together. Korthikanti Eq. 8 has s/(3h), which is 24 s^2 h; that form is kept for
    reporting HFU (`hardware_flops`), since the published HFU use it.
    """
    parameter_passes = 4 if recompute == "full" else 3
    attention_passes = 3 if recompute == "none" else 4
    with_parameters = parameter_passes * 24.0 * model.sequence * model.hidden**2
    return with_parameters + attention_passes * 4.0 * model.sequence**2 * model.hidden


def output_flops(model: GptModel) -> float:
    """FLOPs of the output layer (logits), forward and backward, for one sequence: 6 s h V, never recomputed."""
    return 6.0 * model.sequence * model.hidden * model.vocabulary


def hardware_flops(model: GptModel, recompute: Recompute, global_batch: int) -> float:
    """FLOPs of an iteration as HFU is published.

    none: 72 B l s h^2 (1 + s/(6h) + V/(12 h l)). selective: s/(3h) in place of s/(6h). full: 96 B l s h^2 (1 + s/(6h)
    + V/(16 l h)).
    """
    s = model.sequence
    h = model.hidden
    base, attention = {"none": (72, s / (6 * h)), "selective": (72, s / (3 * h)), "full": (96, s / (6 * h))}[recompute]
    return global_batch * (model.layers * base * s * h**2 * (1 + attention) + output_flops(model))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe of a training. `gradient_bytes`: of a parameter's gradient, as kept and as AllReduced."""

    global_batch: int
    recompute: Recompute = "selective"
    sequence_parallel: bool = True
    gradient_bytes: int = 2


@dataclass(frozen=True, slots=True)
class Cluster:
    """`gpus` in HB domains of `domain_gpus` (K). Bandwidths per GPU and direction; memory of a GPU, in bytes."""

    gpus: int
    domain_gpus: int
    flops: float
    hb_bytes_per_s: float
    rail_bytes_per_s: float
    memory_bytes: float
    constants: Constants


@dataclass(frozen=True, slots=True)
class Job:
    """Everything about a training but its strategy."""

    model: GptModel
    recipe: Recipe
    cluster: Cluster


def make_cluster(platform: str, gpus: int, domain_gpus: int) -> Cluster:
    """GPUs and links of a platform in HB domains of any size; the platform by its name or its file's path."""
    if platform not in PLATFORMS:
        raise BadInput("platform", platform, f"{unknown_name_hint(platform, PLATFORMS)}, or the path of a .yaml file")
    if gpus < 1 or domain_gpus < 1 or gpus % domain_gpus:
        raise BadInput("domain_gpus", domain_gpus, f"must divide the {gpus} GPUs")
    p = PLATFORMS[platform]
    given_fields = {field.name for field in fields(Constants)} - set(taken_from_a100(p))
    constants = replace(A100, **{name: getattr(p, name) for name in given_fields})
    return Cluster(gpus, domain_gpus, p.flops, p.hb_bps / 8, p.rail_bps / 8, float(p.memory_bytes), constants)


FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Strategy(Generic[N]):
    """t = t_h t_l, p = p_h p_l, d = d_h d_l (in an HB domain, over the network), b and v: of one, or arrays of many.

    Whole numbers; in arrays they are floats, so that products can't overflow and every formula works on them unchanged.
    """

    tensor_hb: N
    tensor_network: N
    pipeline_hb: N
    pipeline_network: N
    data_hb: N
    data_network: N
    micro_batch: N
    virtual_stages: N

    def __str__(self) -> str:
        """`t=8x1 p=1x64 d=1x6 b=1 v=1`, HB x network."""
        return "t={}x{} p={}x{} d={}x{} b={} v={}".format(*self.columns)

    @property
    def columns(self) -> tuple[N, ...]:
        """All of them, in their order."""
        return tuple(vars(self).values())

    @property
    def tensor(self) -> N:
        """t."""
        return self.tensor_hb * self.tensor_network

    @property
    def pipeline(self) -> N:
        """p."""
        return self.pipeline_hb * self.pipeline_network

    def micro_batches(self, global_batch: int) -> N:
        """m, of one pipeline."""
        return global_batch / (self.data_hb * self.data_network * self.micro_batch)


def place_strategy(p: Parallelism, domain_gpus: int) -> Strategy[float]:
    """Return the strategy of a published job on HB domains of `domain_gpus`.

    Tensor ranks fill a domain first, then data, then stages: Megatron-LM's order. ValueError if a dimension
    would lie across domains unevenly.
    """
    room = domain_gpus
    inside = []
    for name, size in (("tensor", p.tensor), ("data", p.data), ("pipeline", p.pipeline)):
        part = min(size, room)
        if size % part or room % part:
            raise ValueError(f"{name} of {size} doesn't lie evenly in HB domains with {room} GPUs left")
        inside.append(part)
        room //= part
    t, d, s = inside
    return Strategy(t, p.tensor // t, s, p.pipeline // s, d, p.data // d, p.micro_batch, p.virtual_stages)


Strategies = Strategy[FloatArray]


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
    model = job.model
    recipe = job.recipe
    cluster = job.cluster
    whole = s.micro_batch * (model.layers * layer_flops(model, recipe.recompute) + output_flops(model))
    layers = model.layers / s.pipeline
    # Bytes that a layer's kernels other than matmuls move in all passes, at one GPU. Proportional to the activations
    # that they store: a stored byte is written by a kernel and read by the next, and backward moves twice that, as
    # with FLOPs.
    attention, other = _stored(job, s)
    recomputed = {"none": 0 * other, "selective": attention, "full": other + attention}[recipe.recompute]
    moved = 2 * s.micro_batch * model.sequence * model.hidden * (3 * (other + attention) + recomputed)
    return ComputeParts(
        matmul_s=whole / (s.tensor * s.pipeline * cluster.flops),
        memory_s=layers * moved / cluster.constants.memory_bytes_per_s,
        # passes of a layer: forward, two of backward (gradients of inputs and of parameters), and forward again
        pass_s=layers * (4 if recipe.recompute == "full" else 3) / cluster.flops,
    )


def _stored(job: Job, s: Strategies) -> tuple[FloatArray, FloatArray]:
    """Return what a layer stores of a micro-batch, in units of s b h bytes: attention's inner part, and all else.

    Together 10 + 24/t + 5 a s/(h t), Korthikanti Eq. 2; sequence parallelism divides the 10 by t too (Eq. 4).
    """
    model = job.model
    other = 34 / s.tensor if job.recipe.sequence_parallel else 10 + 24 / s.tensor
    return 5 * model.heads * model.sequence / model.hidden / s.tensor, other


def optimizer_parts(job: Job, parameters: FloatArray) -> ComputeParts:
    """Adam over a GPU's `parameters`, once an iteration: no matmul."""
    # 26 bytes for a parameter: Adam reads its fp32 copy and both moments, writes the three, and the 16-bit parameter;
    # the gradient is read twice, for the norm and for the update
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
    model = job.model
    recipe = job.recipe
    unit = s.micro_batch * model.sequence * model.hidden
    attention, other_bytes = _stored(job, s)
    edge = 2 / s.tensor if recipe.sequence_parallel else 2 * np.ones_like(s.tensor)
    kept = {"none": other_bytes + attention, "selective": other_bytes, "full": edge}[recipe.recompute]
    working = {"none": 0 * other_bytes, "selective": attention, "full": other_bytes + attention}[recipe.recompute]
    p = s.pipeline
    v = s.virtual_stages
    interleaving = np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
    in_flight = np.minimum(s.micro_batches(recipe.global_batch), p) / p * interleaving
    return np.asarray(unit * (kept * model.layers * in_flight + working))


def gpu_bytes(job: Job, s: Strategies) -> FloatArray:
    """Parameters, gradients, Adam's state and activations: 16 bytes a parameter, 18 with fp32 gradients."""
    # 14 bytes beside the gradient: a 16-bit parameter, and for Adam its fp32 copy and two fp32 moments
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
    model = job.model
    recipe = job.recipe
    cluster = job.cluster
    c = job.cluster.constants
    p = s.pipeline
    v = s.virtual_stages
    stages = (s.pipeline_network, s.pipeline_hb)
    m = s.micro_batches(recipe.global_batch)
    t_b = micro_batch_parts(job, s).seconds(c)
    rates = (cluster.hb_bytes_per_s, cluster.rail_bytes_per_s)
    latencies = (c.hb_latency_s, c.rail_latency_s)
    # Eq. 10 has 4 AllGather and 4 ReduceScatter; a forward that is done again has 2 + 2 more
    gathered = FP16_BYTES * s.micro_batch * model.hidden * model.sequence
    gather_s = all_gather_s(gathered, s.tensor_hb, s.tensor_network, *rates)
    gather_s = gather_s + eq.all_gather_latency_s(s.tensor_hb, s.tensor_network, *latencies)
    collectives_s = (12 if recipe.recompute == "full" else 8) * model.layers / p * gather_s
    boundary = np.where(p > 1, gathered / s.tensor, 0.0)
    leaves_domain = s.pipeline_network > 1
    hop_bytes_per_s, hop_s = (np.where(leaves_domain, rail, hb) for hb, rail in (rates, latencies))
    # Eq. 11, with the first stage's embedding among its parameters
    parameters = stage_parameters(job, s)
    sync_s = all_reduce_s(recipe.gradient_bytes * parameters, s.data_hb, s.data_network, *rates)
    return IterationTime(
        bubble_compute_s=eq.bubble_compute_s(p, v, t_b),
        bubble_network_s=eq.bubble_network_s(boundary, *stages, *rates) + eq.bubble_latency_s(*stages, *latencies),
        last_stage_compute_s=eq.last_stage_compute_s(m, t_b),
        last_stage_network_s=eq.last_stage_network_s(m, collectives_s, v, boundary, hop_bytes_per_s)
        + np.where(p > 1, 2 * m * v * hop_s, 0.0),
        sync_s=sync_s + 2 * eq.all_gather_latency_s(s.data_hb, s.data_network, *latencies),
        optimizer_s=optimizer_parts(job, parameters).seconds(c),
    )


def compute_parts(job: Job, s: Strategies) -> ComputeParts:
    """All computing of an iteration: (m + (p - 1)/v) t(b) and the optimizer's step, before any constant."""
    micro_batch = micro_batch_parts(job, s)
    step = optimizer_parts(job, stage_parameters(job, s))
    times = s.micro_batches(job.recipe.global_batch) + (s.pipeline - 1) / s.virtual_stages
    return ComputeParts(*(times * each + once for each, once in zip(micro_batch, step, strict=True)))
