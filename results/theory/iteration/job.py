"""Model, recipe, cluster and strategies of a training iteration, and the FLOPs and GPU constants that its time needs.

FLOPs: Narayanan et al. 2021 Eq. 3 (full recomputation), Korthikanti et al. 2022 Eq. 7 and 8 (none, selective). All are
sums of the same parts: for a layer and a sequence, 24 s h^2 forward in matmuls with parameters and 4 s^2 h in attention
(scores, and scores times values); backward takes twice that.

Constants: the A100's efficiencies and overhead are fitted (fit.py) on the rows of measured.csv marked `fit`. No
measured iteration of another GPU was at hand, so other platforms use the A100's values with their own peaks, unless the
platform's file gives them. Latencies are per hop and assumed: 1 us in an HB domain and 2 us over a rail, as in
calculon's A100 and H100 systems (Isaev et al. 2023); Rail-only counts latency without saying how much.
"""

from dataclasses import dataclass, fields, replace
from typing import Final, Generic, Literal

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.topologies.platforms import PLATFORMS, Platform
from railyard.workloads.collectives.all_gather import N
from railyard.workloads.models.catalogue import GptModel
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


def taken_from_a100(platform: Platform) -> tuple[str, ...]:
    """Return the constants that the platform's file leaves open."""
    return tuple(field.name for field in fields(Constants) if getattr(platform, field.name) is None)


Recompute = Literal["none", "selective", "full"]
"""What is computed a second time in the backward pass: nothing, attention's inner part, or all of a layer's forward."""


def layer_flops(model: GptModel, recompute: Recompute) -> float:
    """FLOPs of a layer's matmuls with parameters and in attention, forward and backward, for one sequence.

    Selective recomputation repeats attention's forward, 4 s^2 h more, 16 s^2 h together. Korthikanti Eq. 8 has s/(3h),
    which is 24 s^2 h; that form is kept for reporting HFU (`hardware_flops`), since the published HFU use it.
    """
    parameter_passes, attention_passes = (4 if recompute == "full" else 3), (3 if recompute == "none" else 4)
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
    s, h = model.sequence, model.hidden
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
    given = {field.name for field in fields(Constants)} - set(taken_from_a100(p))
    constants = replace(A100, **{name: getattr(p, name) for name in given})
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
    room, inside = domain_gpus, []
    for name, size in (("tensor", p.tensor), ("data", p.data), ("pipeline", p.pipeline)):
        part = min(size, room)
        if size % part or room % part:
            raise ValueError(f"{name} of {size} doesn't lie evenly in HB domains with {room} GPUs left")
        inside.append(part)
        room //= part
    t, d, s = inside
    return Strategy(t, p.tensor // t, s, p.pipeline // s, d, p.data // d, p.micro_batch, p.virtual_stages)
