"""Workload kind `training`: the allreduces and the computing of a model's training, replayed on a multi-rail fabric.

    {kind: training, model: vgg-11, batch: 64, bucket: 16MiB, volume: 0.5, policies: [nezha, single, gloo]}

Source: Nezha section 5.3, Fig. 12 and 16, Table 3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from statistics import median
from typing import Annotated

from pydantic import Field

from railyard.core.errors import BadInput
from railyard.core.units import Size, Time, format_size, format_time
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import Dilation, MultirailSpec
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine.jobs import Operations
from railyard.workloads.allreduce.engine_kind import Group, peer_rail, predicted_s, rails_of
from railyard.workloads.allreduce.peers.training import (
    GPT_LINK_RATE,
    SPEEDS,
    Step,
    first_part,
    gpt_step,
    in_proportion,
    published_compute_s,
    split,
    training_name,
)
from railyard.workloads.allreduce.workload import (
    ITEM,
    ComparedWorkload,
    Prediction,
    RailSession,
    Rows,
    check_complete,
    learning_operations,
)
from railyard.workloads.jobs.data_parallel import buckets
from railyard.workloads.models.catalogue import GptModel, LayersModel, load_model
from railyard.workloads.spec import WORKLOADS


@WORKLOADS.register("training")
class TrainingSpec(ComparedWorkload):
    """A training's allreduces and computing, replayed: `steps` of them.

    `bucket`: the most that an allreduce of gradients moves (AlexNet, VGG-11). `compute`: seconds a step, if not those
    of Nezha's Fig. 16. `volume`: the part of a step that is replayed: of its allreduces, the first; of GPT's, which
    are few and large, that part of each.
    """

    model: str
    batch: Annotated[int, Field(ge=1, le=65536)] = 32
    bucket: Size = 4 * 2**20
    compute: Time | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] = 3
    volume: Annotated[float, Field(gt=0, le=1, strict=False)] = 1.0
    dilation: Dilation = 1.0

    def label(self) -> str:
        """Return its model, and the batch unless the model has one of its own."""
        return training_name(self.model, 0 if isinstance(load_model(self.model), GptModel) else self.batch)

    def compute_s(self) -> float | None:
        """Return the seconds of computing in a step of a model of layers; None if neither spec nor paper says."""
        return self.compute or published_compute_s(self.model, self.batch)

    def check(self, fabrics: Sequence[MultirailSpec], field: str) -> None:
        """Check the model, its computing time, and that a GPT's batch can be shared."""
        super().check(fabrics, field)
        model = load_model(self.model, f"{field}.model")
        if not isinstance(model, LayersModel | GptModel):
            raise BadInput(f"{field}.model", self.model, "must be a model of layers (alexnet, vgg-11), or a GPT")
        if isinstance(model, LayersModel):
            if self.compute_s() is None:
                known = ", ".join(f"{name} {batch}" for name, batch in SPEEDS)
                allowed = f"and batch {self.batch} have no published step time: give compute, or one of {known}"
                raise BadInput(f"{field}.model", self.model, allowed)
            return
        if self.compute is not None:
            allowed = "is for models of layers: a GPT's is counted"
            raise BadInput(f"{field}.compute", format_time(self.compute), allowed)
        batch = model.training.global_batch
        for nodes in [fabric.nodes for number, fabric in enumerate(fabrics) if self.is_on(number)]:
            if batch % nodes:
                allowed = f"has a batch of {batch}, which {nodes} nodes can't share"
                raise BadInput(f"{field}.model", self.model, allowed)

    def step(self, nodes: int, scale: float, rail_rate: float) -> Step:
        """Return what is sent on rails `scale` times slower than the paper's. `rail_rate` as emulated, bytes/s.

        GPT-3's nodes had 1 Gbit/s: on faster rails its computing shrinks as much as its communication does.
        """
        model = load_model(self.model)
        if isinstance(model, GptModel):
            step = in_proportion(gpt_step(self.model, model, nodes), self.volume, rail_rate * scale / GPT_LINK_RATE)
        else:
            assert isinstance(model, LayersModel)
            # a bucket that a large layer overfills is split, as Nezha's Fig. 15 has it
            sizes = split(buckets(model, self.bucket), self.bucket)
            step = first_part(Step(self.model, self.batch, sizes, self.compute_s() or 0.0), self.volume)
        return step.scaled(1 / scale, ITEM)

    def measure(self, session: RailSession) -> None:
        """Replay the steps under each policy, after as many without computing as have the operations to learn in."""
        plan, peer, dilation = session.plan, peer_rail(session.plan.spec), session.plan.dilation
        step = self.step(plan.spec.nodes, plan.scale, session.rails[peer].rate * dilation)
        step = replace(step, compute_s=step.compute_s * dilation)
        for repeat in range(session.repeats):
            for policy in self.policies_on(session.number, plan.spec):
                predicted = predicted_step_s(step, session.rails, plan.spec.nodes, policy, peer)
                with session.interval(self.label(), policy, repeat) as interval, session.engine(policy) as ranks:
                    for n in range(ceil(learning_operations(policy, self.learning) / len(step.sizes))):
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

    def predictions(self, number: int, plan: MultirailPlan) -> Iterator[Prediction]:
        """Yield the seconds of a step under every policy."""
        rails, peer = rails_of(plan), peer_rail(plan.spec)
        step = self.step(plan.spec.nodes, plan.scale, rails[peer].rate)
        for policy in self.policies_on(number, plan.spec):
            time = predicted_step_s(step, rails, plan.spec.nodes, policy, peer)
            yield Prediction(policy, self.label(), "iteration_time", time)

    def dry_run(self, number: int, plan: MultirailPlan, repeats: int) -> Iterator[str | Rows]:
        """Yield the allreduces and the computing of a step."""
        step = self.step(plan.spec.nodes, plan.scale, rails_of(plan)[peer_rail(plan.spec)].rate)
        slower = f", in slow motion {self.dilation:g}x" if self.dilation > 1 else ""
        sent = f"{len(step.sizes)} allreduces of {format_size(sum(step.sizes), 3)} in all"
        yield f"{self.model}: {sent}, {format_time(step.compute_s, 4)} of computing a step{slower}"


def predicted_step_s(step: Step, rails: Sequence[Rail], nodes: int, policy: str, peer: int) -> float:
    """Return the seconds of a step, one allreduce after the other: nothing overlaps, as Nezha's Fig. 16 suggests."""
    return step.compute_s + sum(predicted_s(policy, rails, nodes, size, peer) for size in step.sizes)


def _replay_step(ranks: Group, step: Step, seed: int) -> float:
    """Return the s of a step: of each run of equal allreduces its computing, and from first start to last end."""
    total = 0.0
    for size, operations in step.groups:
        reports = ranks.run(Operations("allreduce", "float32", size, operations, seed, gap_s=step.gap_s))
        check_complete(reports)
        ended, began = max(r.ends_ns[-1] for r in reports), min(r.starts_ns[0] for r in reports)
        total += step.gap_s + (ended - began) / 1e9
    return total
