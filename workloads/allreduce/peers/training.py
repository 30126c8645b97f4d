"""What training sends: the allreduces of a step, and how long the nodes compute beside them. Pure.

Source: Nezha section 5.3, Fig. 12, 15 and 16, Table 3; Li et al. 2020 (PyTorch DDP) 3.2.3 for buckets. Units: bytes of
the buffer, seconds, samples.
"""

from dataclasses import dataclass, replace
from itertools import groupby
from statistics import linear_regression
from typing import Final

from railyard.core.errors import BadInput
from railyard.workloads.jobs.data_parallel import buckets
from railyard.workloads.models.catalogue import GptModel, LayersModel

FP16_BYTES: Final = 2
GPT_MAX_MESSAGE: Final = 256 * 2**20
"""Nezha 5.3.4: packets above 1 GB crashed Gloo, and were split into several of 256 MB."""
GPT_SPLIT_ABOVE: Final = 2**30
V100_FLOPS: Final = 125e12 * 0.4
"""Of a V100 in half precision, by its data sheet; the share of it that Megatron-LM's GPTs reach is about 40%
(Narayanan et al. 2021, Table 1: 44 to 52% on the A100, whose memory is faster). Nezha gives no times of its own."""
GPT_LINK_RATE: Final = 1e9 / 8
"""Nezha 5.3.4: all NICs were held to 1 Gbit/s for GPT-3. Bytes per second."""

SPEEDS: Final[dict[tuple[str, int], tuple[float, float, float]]] = {
    ("alexnet", 32): (215.7, 319.0, 376.8),
    ("alexnet", 64): (426.6, 612.5, 753.2),
    ("vgg-11", 32): (114.8, 154.8, 179.2),
    ("vgg-11", 64): (253.2, 303.7, 362.5),
}
"""Nezha Fig. 16: samples/s of 4 nodes together with 1, 2 and 3 Ethernet NICs and one GPU a node, by model and batch.

Together, since with 6 nodes they are more by nearly half, where a node's own speed could only fall.
"""
SPEEDS_NODES: Final = 4


@dataclass(frozen=True, slots=True)
class Step:
    """A training step as a node sees it: it computes for `compute_s`, spread evenly before its allreduces of `sizes`.

    `samples`: that a node trains on in a step; of GPT, sequences of the whole job over the nodes that are replayed.
    """

    model: str
    samples: float
    sizes: tuple[int, ...]
    compute_s: float

    @property
    def gap_s(self) -> float:
        """Computing before each allreduce."""
        return self.compute_s / len(self.sizes)

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(bytes, how many of them in a row), in the order in which they are sent."""
        return tuple((size, len(list(same))) for size, same in groupby(self.sizes))

    def scaled(self, factor: float, unit: int = 4) -> "Step":
        """With `factor` times the bytes, in whole elements of `unit` bytes, and the same computing."""
        sizes = tuple(max(1, round(size * factor / unit)) * unit for size in self.sizes)
        return replace(self, sizes=sizes)


def split(sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """What is larger than `largest` as several of that size and a rest."""
    found: list[int] = []
    for size in sizes:
        whole, rest = divmod(size, largest)
        found += [largest] * whole + [rest] * bool(rest)
    return tuple(found)


def published_compute_s(model: str, batch: int) -> float | None:
    """How long a step computes, from Fig. 16's speeds with 1, 2 and 3 NICs; None for what isn't in it.

    Step times there are `compute + communication / NICs` (within 3% but for VGG-11 with batches of 64), so the line
    through them, over 1 / NICs, meets the axis at the computing that no NIC shortens.
    """
    speeds = SPEEDS.get((model, batch))
    if speeds is None:
        return None
    steps = [SPEEDS_NODES * batch / speed for speed in speeds]
    return linear_regression([1 / nics for nics in (1, 2, 3)], steps).intercept


def layers_step(name: str, model: LayersModel, batch: int, bucket: int, compute_s: float) -> Step:
    """Gradients in DDP's buckets, the last layer's first; a bucket that a large layer overfills is split.

    Nezha's Fig. 15 has no operation above 4 MB of AlexNet, of which one layer has 151 MB: they must have been split.
    """
    return Step(name, batch, split(buckets(model, bucket), bucket), compute_s)


def gpt_step(name: str, model: GptModel, nodes: int) -> Step:
    """A step of a data-parallel group of `nodes`: the gradients of one GPU's stage and tensor slice, in 16 bits.

    Table 3: two tensor-parallel GPUs a node and 8 stages stay as they are, so `nodes` is its DP, and the whole job has
    8 times as many; the batch is shared by the replicas. The pipeline's bubble is in the computing; tensor parallelism
    within a node and activations between stages are not, since they are no allreduces between nodes. BadInput if the
    batch can't be shared.
    """
    shape = model.training
    if shape.global_batch % nodes:
        raise BadInput("trainings.model", name, f"has a batch of {shape.global_batch}, which {nodes} nodes can't share")
    gradient = FP16_BYTES * model.parameters // (shape.tensor * shape.pipeline)
    sizes = split((gradient,), GPT_MAX_MESSAGE) if gradient > GPT_SPLIT_ABOVE else (gradient,)
    micro_batches = shape.global_batch // nodes // shape.micro_batch
    stage_flops = model.layer_flops(shape.micro_batch) * model.layers / (shape.tensor * shape.pipeline)
    compute_s = (micro_batches + shape.pipeline - 1) * stage_flops / V100_FLOPS
    return Step(name, shape.global_batch / nodes, sizes, compute_s)


def in_proportion(step: Step, volume: float, speedup: float = 1.0) -> Step:
    """Less of each allreduce: `volume` of its bytes, of samples and of computing; `speedup` times as fast a network.

    With `speedup` the computing shrinks further, so that it stays to the communication as it was on the slower network.
    """
    sizes = tuple(max(1, round(size * volume)) for size in step.sizes)
    return replace(step, sizes=sizes, samples=step.samples * volume, compute_s=step.compute_s * volume / speedup)


def first_part(step: Step, volume: float) -> Step:
    """As many of its allreduces, the first ones, as make `volume` of their number; samples and computing by bytes."""
    sizes = step.sizes[: max(1, round(volume * len(step.sizes)))]
    share = sum(sizes) / sum(step.sizes)
    return replace(step, sizes=sizes, samples=step.samples * share, compute_s=step.compute_s * share)


def step_s(step: Step, seconds: list[float] | tuple[float, ...]) -> float:
    """Computing, then each allreduce in its time: nothing overlaps, as Fig. 16's step times suggest."""
    if len(seconds) != len(step.sizes):
        raise ValueError(f"{len(seconds)} times for {len(step.sizes)} allreduces")
    return step.compute_s + sum(seconds)


@dataclass(frozen=True, slots=True)
class Training:
    """`width`: of the hidden layer, which has most parameters: 260 * `width` in all, about, of 4 bytes each.

    `bucket_mb`: DDP's, of gradients that are summed together.
    """

    steps: int = 60
    batch: int = 32
    width: int = 256
    bucket_mb: float = 1.0
    seed: int = 0
    learning_rate: float = 0.1


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """By step, on one rank: its loss, and seconds from the forward pass to the new weights; then all weights."""

    losses: list[float]
    seconds: list[float]
    gradient_bytes: int
    weights: list[float]
