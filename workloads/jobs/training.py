"""Workload kind `training`: the allreduces and the computing of a model's training, replayed on a multi-rail fabric.

    {kind: training, model: vgg-11, batch: 64, bucket: 16MiB, volume: 0.5, policies: [nezha, single, gloo]}

Source: Nezha section 5.3, Fig. 12, 15 and 16, Table 3; Li et al. 2020 (PyTorch DDP) 3.2.3 for buckets. Units: bytes of
the buffer, seconds, samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil
from statistics import linear_regression, median
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from railyard.core.errors import BadInput
from railyard.core.input_paths import NameOrPath
from railyard.core.units import Size, Time, format_size, format_time
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import Dilation, MultirailSpec
from railyard.workloads.allreduce import workload
from railyard.workloads.allreduce.balancing.costs import Rail, allreduce_cost, paper_rail
from railyard.workloads.allreduce.engine.jobs import Operations
from railyard.workloads.allreduce.engine_kind import Group, peer_rail, predicted_s, rails_of
from railyard.workloads.jobs.data_parallel import buckets
from railyard.workloads.models.catalogue import FP16_BYTES, GptModel, LayersModel, load_model, model_title
from railyard.workloads.spec import WORKLOADS

# Nezha 5.3.4: packets above 1 GB crashed Gloo, and were split into several of 256 MB.
GPT_MAX_MESSAGE: Final = 256 * 2**20
GPT_SPLIT_ABOVE: Final = 2**30
# Half precision by the data sheet, and the share of it that Megatron-LM's GPTs reach (Narayanan et al. 2021, Table 1:
# 44 to 52% on the A100, whose memory is faster). Nezha gives no times of its own.
V100_FLOPS: Final = 125e12 * 0.4
# Nezha 5.3.4: all NICs were held to 1 Gbit/s for GPT-3. Bytes per second.
GPT_LINK_RATE: Final = 1e9 / 8
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
    """Training step of a node: it computes for `compute_s`, spread evenly before its allreduces of `sizes`.

    `samples`: that a node trains on in a step; of GPT, sequences of the whole job over the nodes that are replayed.
    """

    model: str
    samples: float
    sizes: tuple[int, ...]
    compute_s: float

    @property
    def gap_s(self) -> float:
        """Seconds of computing before each allreduce."""
        return self.compute_s / len(self.sizes)

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(bytes, how many of them in a row), in the order in which they are sent."""
        return tuple((size, len(list(same))) for size, same in groupby(self.sizes))

    def scaled(self, factor: float, unit: int = 4) -> "Step":
        """Return a step with `factor` times the bytes, in whole elements of `unit` bytes, and the same computing."""
        sizes = tuple(max(1, round(size * factor / unit)) * unit for size in self.sizes)
        return replace(self, sizes=sizes)


# of a step, before they are listed: each takes a prediction under each policy
MAX_ALLREDUCES: Final = 2**14


def split(sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """Return the sizes, those above `largest` as several of that size and a rest."""
    parts: list[int] = []
    for size in sizes:
        parts += [min(largest, size - start) for start in range(0, size, largest)]
    return tuple(parts)


def training_name(model: str, batch: int) -> str:
    """Return `vgg-11 batch 64`. For a GPT (`batch` 0: its model has a batch of its own), return `gpt3-2.7b`."""
    title = model_title(model)
    return f"{title} batch {batch}" if batch else title


class StepParts(NamedTuple):
    """Seconds of a step that computing takes, and that communication adds with one NIC."""

    compute_s: float
    communication_s: float


def published_parts(model: str, batch: int) -> StepParts | None:
    """Return the parts of a step by Fig. 16's speeds with 1, 2 and 3 NICs; None if the model is not in it."""
    speeds = SPEEDS.get((model, batch))
    if not speeds:
        return None
    steps = [SPEEDS_NODES * batch / speed for speed in speeds]
    # step times there are `compute + communication / NICs` (within 3% but for VGG-11 with batches of 64)
    line = linear_regression([1, 1 / 2, 1 / 3], steps)
    return StepParts(line.intercept, line.slope)


def published_exposed(model: str, batch: int, sizes: Sequence[int]) -> float | None:
    """Return the part of a step's communication that computing does not hide, by Fig. 16; None if it is not in it.

    It is what communication adds to a step, over what Eq. 1 and 2 say of all allreduces on one TCP rail.
    """
    parts = published_parts(model, batch)
    if parts is None:
        return None
    cost = allreduce_cost(paper_rail("tcp"), SPEEDS_NODES)
    return min(1.0, parts.communication_s / sum(cost.seconds(size) for size in sizes))


def gpt_step(name: str, model: GptModel, nodes: int) -> Step:
    """Return a step of a data-parallel group of `nodes`: the gradients of a node's tensor slices, in 16 bits.

    Source: Nezha Table 3. The whole job has 8 stages of so many nodes, with two tensor-parallel GPUs each.
    """
    shape = model.training
    gradient = FP16_BYTES * model.parameters // (shape.tensor * shape.pipeline)
    sizes: tuple[int, ...] = (gradient,)
    if gradient > GPT_SPLIT_ABOVE:
        sizes = split(sizes, GPT_MAX_MESSAGE)
    # each GPU of a node sums a slice of its own with the other replicas, and all of them share the node's NICs
    sizes *= min(shape.tensor, model.domain_gpus)
    # the replicas share the batch
    micro_batches = shape.global_batch // nodes // shape.micro_batch
    # The pipeline's bubble is in the computing; tensor parallelism within a node and activations between stages are
    # not, since they are no allreduces between nodes.
    stage_flops = model.layer_flops(shape.micro_batch) * model.layers / (shape.tensor * shape.pipeline)
    compute_s = (micro_batches + shape.pipeline - 1) * stage_flops / V100_FLOPS
    return Step(name, shape.global_batch / nodes, sizes, compute_s)


def in_proportion(step: Step, volume: float, speedup: float = 1.0) -> Step:
    """Return a step with `volume` of the bytes of each allreduce, of samples and of computing.

    On a network that is `speedup` times as fast the computing shrinks further, to keep its ratio to the communication.
    """
    part = step.scaled(volume, unit=1)
    return replace(part, samples=step.samples * volume, compute_s=step.compute_s * volume / speedup)


def last_part(step: Step, volume: float) -> Step:
    """Return a step with the last `volume` of its bytes, in whole allreduces, and all of its computing.

    DDP sends the last layers' gradients while the backward pass goes on, so the first allreduces are those it hides.
    """
    wanted_bytes = volume * sum(step.sizes)
    bytes_so_far = 0
    first = len(step.sizes)
    # an allreduce is taken if more than half of it belongs to the part
    while first and bytes_so_far + step.sizes[first - 1] / 2 < wanted_bytes:
        first -= 1
        bytes_so_far += step.sizes[first]
    return replace(step, sizes=step.sizes[min(first, len(step.sizes) - 1) :])


def first_part(step: Step, volume: float) -> Step:
    """Return a step with the first `volume` of its allreduces; samples and computing in proportion to their bytes."""
    sizes = step.sizes[: max(1, round(volume * len(step.sizes)))]
    share = sum(sizes) / sum(step.sizes)
    return replace(step, sizes=sizes, samples=step.samples * share, compute_s=step.compute_s * share)


@WORKLOADS.register("training")
class TrainingSpec(workload.ComparedWorkload):
    """A training's allreduces and computing, replayed: `steps` of them.

    `bucket`: the most that an allreduce of gradients moves (AlexNet, VGG-11).
    `compute`: seconds a step, if not those of Nezha's Fig. 16.
    `exposed`: the part of the communication that computing does not hide, the last allreduces of a step; `auto`: what
    Fig. 16 says of it. By default all of it.
    `volume`: the part of a step that is replayed: of its allreduces, the first; of GPT's, which are few and large, that
    part of each.
    """

    model: NameOrPath
    batch: Annotated[int, Field(ge=1, le=65536)] = 32
    bucket: Size = 4 * 2**20
    compute: Time | None = None
    exposed: Annotated[float, Field(gt=0, le=1, strict=False)] | Literal["auto"] = 1.0
    steps: Annotated[int, Field(ge=1, le=1000)] = 3
    volume: Annotated[float, Field(gt=0, le=1, strict=False)] = 1.0
    dilation: Dilation = 1.0

    def label(self) -> str:
        """Return its model, and the batch unless the model has one of its own."""
        if isinstance(load_model(self.model), GptModel):
            return training_name(self.model, 0)
        return training_name(self.model, self.batch)

    def compute_s(self) -> float | None:
        """Return the seconds of computing in a step of a model of layers; None if neither spec nor paper says."""
        parts = published_parts(self.model, self.batch)
        if self.compute or parts is None:
            return self.compute
        return parts.compute_s

    def exposed_part(self, sizes: Sequence[int]) -> float:
        """Return the part of the communication that computing does not hide. `sizes`: of all allreduces of a step."""
        if self.exposed == "auto":
            return published_exposed(self.model, self.batch, sizes) or 1.0
        return self.exposed

    def check(self, fabrics: Sequence[MultirailSpec], field: str) -> None:
        """Check the model, its computing time, and that a GPT's batch can be shared."""
        super().check(fabrics, field)
        model = load_model(self.model, f"{field}.model")
        if not isinstance(model, LayersModel | GptModel):
            raise BadInput(f"{field}.model", self.model, "must be a model of layers (alexnet, vgg-11), or a GPT")
        if isinstance(model, LayersModel):
            is_published = (self.model, self.batch) in SPEEDS
            if self.exposed == "auto" and not is_published:
                published = ", ".join(f"{name} {batch}" for name, batch in SPEEDS)
                allowed = f"is for trainings of Nezha's Fig. 16: give a part, 0 to 1, or one of {published}"
                raise BadInput(f"{field}.exposed", self.exposed, allowed)
            if self.compute_s() is None:
                published = ", ".join(f"{name} {batch}" for name, batch in SPEEDS)
                allowed = f"and batch {self.batch} have no published step time: give compute, or one of {published}"
                raise BadInput(f"{field}.model", self.model, allowed)
            count = sum(-(-size // self.bucket) for size in buckets(model, self.bucket))
            if count > MAX_ALLREDUCES:
                allowed = f"makes {count:,} allreduces a step: {MAX_ALLREDUCES:,} or fewer are allowed"
                raise BadInput(f"{field}.bucket", format_size(self.bucket), allowed)
            return
        if self.exposed != 1:
            raise BadInput(f"{field}.exposed", self.exposed, "is for models of layers: give no value with a GPT")
        if self.compute is not None:
            allowed = "is for models of layers: a GPT's is counted"
            raise BadInput(f"{field}.compute", format_time(self.compute), allowed)
        batch = model.training.global_batch
        for number, fabric in enumerate(fabrics):
            if self.is_on(number) and batch % fabric.nodes:
                allowed = f"has a batch of {batch}, which {fabric.nodes} nodes can't share"
                raise BadInput(f"{field}.model", self.model, allowed)

    def step(self, nodes: int, scale: float, rail_rate: float) -> Step:
        """Return what is sent on rails `scale` times slower than the paper's. `rail_rate` as emulated, bytes/s."""
        model = load_model(self.model)
        if isinstance(model, GptModel):
            # GPT-3's nodes had 1 Gbit/s: on faster rails its computing shrinks as much as its communication does
            whole = gpt_step(model_title(self.model), model, nodes)
            step = in_proportion(whole, self.volume, rail_rate * scale / GPT_LINK_RATE)
        else:
            assert isinstance(model, LayersModel)
            # a bucket that a large layer overfills is split, as Nezha's Fig. 15 has it
            sizes = split(buckets(model, self.bucket), self.bucket)
            whole = Step(model_title(self.model), self.batch, sizes, self.compute_s() or 0.0)
            step = first_part(last_part(whole, self.exposed_part(sizes)), self.volume)
        return step.scaled(1 / scale, workload.ITEM)

    def measure(self, session: workload.RailSession) -> None:
        """Replay the steps under each policy, after as many without computing as have the operations to learn in."""
        plan = session.plan
        peer = peer_rail(session.plan.spec)
        dilation = session.plan.dilation
        step = self.step(plan.spec.nodes, plan.scale, session.rails[peer].rate * dilation)
        step = replace(step, compute_s=step.compute_s * dilation)
        for repeat in range(session.repeats):
            for policy in self.policies_on(session.number, plan.spec):
                predicted = predicted_step_s(step, session.rails, plan.spec.nodes, policy, peer)
                with session.interval(self.result_name, policy, repeat) as interval, session.engine(policy) as ranks:
                    for n in range(ceil(workload.learning_operations(policy, self.learning) / len(step.sizes))):
                        _replay_step(ranks, replace(step, compute_s=0.0), session.seed + n)
                    times = [_replay_step(ranks, step, session.seed + n) for n in range(self.steps)]
                    step_s = median(times) / dilation
                    session.record(interval, "iteration_time", step_s, "s", predicted / dilation)
                    session.record(interval, "samples_per_s", step.samples / step_s, "1/s")
                    session.record(interval, "compute_time", step.compute_s / dilation, "s")
                    session.record(interval, "sent_size", sum(step.sizes), "B")
                    session.record(interval, "iterations", self.steps, "1")
                    session.record(interval, "time_dilation", dilation, "ratio")

    def dilations(self, number: int, fabric: MultirailSpec) -> frozenset[float]:
        """Return its own."""
        return frozenset({self.dilation})

    def step_count(self, number: int, fabric: MultirailSpec, repeats: int) -> int:
        """Return how often it is replayed."""
        return len(self.policies_on(number, fabric)) * repeats

    def predictions(self, number: int, plan: MultirailPlan) -> Iterator[workload.Prediction]:
        """Yield the seconds of a step under every policy."""
        rails = rails_of(plan)
        peer = peer_rail(plan.spec)
        step = self.step(plan.spec.nodes, plan.scale, rails[peer].rate)
        for policy in self.policies_on(number, plan.spec):
            time = predicted_step_s(step, rails, plan.spec.nodes, policy, peer)
            yield workload.Prediction(policy, self.result_name, "iteration_time", time)

    def dry_run(self, number: int, plan: MultirailPlan, repeats: int) -> Iterator[str | workload.Rows]:
        """Yield the allreduces and the computing of a step."""
        step = self.step(plan.spec.nodes, plan.scale, rails_of(plan)[peer_rail(plan.spec)].rate)
        slower = f", in slow motion {self.dilation:g}x" if self.dilation > 1 else ""
        sent = f"{len(step.sizes)} allreduces of {format_size(sum(step.sizes), 3)} in all"
        yield f"{model_title(self.model)}: {sent}, {format_time(step.compute_s, 4)} of computing a step{slower}"


def predicted_step_s(step: Step, rails: Sequence[Rail], nodes: int, policy: str, peer: int) -> float:
    """Return the seconds of a step, one allreduce after the other: nothing overlaps, as Nezha's Fig. 16 suggests."""
    return step.compute_s + sum(predicted_s(policy, rails, nodes, size, peer) for size in step.sizes)


def _replay_step(ranks: Group, step: Step, seed: int) -> float:
    """Return the seconds of a step: the sum over its runs of equal allreduces.

    A run takes its computing time, and the time from the first start to the last end of its allreduces.
    """
    total = 0.0
    for size, operations in step.groups:
        reports = ranks.run(Operations("allreduce", "float32", size, operations, seed, gap_s=step.gap_s))
        workload.check_complete(reports)
        ended = max(r.ends_ns[-1] for r in reports)
        began = min(r.starts_ns[0] for r in reports)
        total += step.gap_s + (ended - began) / 1e9
    return total
