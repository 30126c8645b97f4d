"""One training step of a mixture of experts: all-to-alls between the experts' GPUs, AllReduce of the static part.

Source: Rail-only section III-C, DeepSpeed-MoE (Rajbhandari et al. 2022). One expert a GPU, tokens spread uniformly
unless the job has `shares`. With fewer experts than GPUs, all-to-alls stay in groups that have each expert once, and
the gradients of an expert are summed over its copies. Each MoE layer has two all-to-alls forward and two backward: one
to the experts, dispatch, and one back, combine; they differ only where the spread is uneven. What isn't an expert is
replicated on every GPU, and its gradients are summed at the end, hierarchically. A GPU's computing is spread evenly
before the all-to-alls, whatever its expert's share.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Annotated, Final

from pydantic import Field, ValidationInfo, field_validator

from railyard.core.errors import BadInput
from railyard.core.input_paths import NameOrPath
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.models.catalogue import FP16_BYTES, MoeModel
from railyard.workloads.placement.layout import Layout, Numbers, data_parallel, grids
from railyard.workloads.schedule import Factor, Grid, Iteration, Program, Schedule
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Count, Job, Setting, TrafficKind, Training

ALL_TO_ALL: Final = "all-to-all"
TRAFFIC_KINDS.add("EP", TrafficKind())


@dataclass(frozen=True)
class MoeJob(Job):
    """A step on `domains` x `rails` GPUs, in bytes and seconds.

    `algorithm`: the full name of the all-to-alls'.
    `pair_bytes`: D of an all-to-all.
    `static_bytes`: D of the AllReduce.
    `shares`: the part of all tokens that goes to each GPU's expert; empty if they are spread uniformly.
    `experts`: GPUs of a group that exchanges tokens.
    `expert_bytes`: D of the AllReduce over an expert's copies.
    """

    name: str
    domains: int
    rails: int
    algorithm: str
    all_to_alls: int
    experts: int
    pair_bytes: float
    static_bytes: float
    expert_bytes: float
    shares: tuple[float, ...] = ()

    @property
    def exchange_grids(self) -> tuple[Grid, ...]:
        """The GPUs of each group that exchanges tokens."""
        return self._grids(self._layout.expert_groups)

    @property
    def copy_grids(self) -> tuple[Grid, ...]:
        """The GPUs that have copies of the same expert, for each expert; none if there is one of each."""
        copies = self._layout.expert_copies
        return self._grids(copies) if copies.shape[1] > 1 else ()

    @property
    def _layout(self) -> Layout:
        gpus = self.domains * self.rails
        return data_parallel(gpus, gpus, self.rails, self.experts)

    def _grids(self, groups: Numbers) -> tuple[Grid, ...]:
        regular, irregular = grids(groups, self.rails)
        if len(irregular):
            allowed = f"must divide the {self.rails} GPUs of an HB domain, or be a multiple of them"
            raise BadInput("experts", self.experts, allowed)
        result: list[Grid] = []
        for array in regular:
            result += [tuple(map(tuple, grid)) for grid in array.tolist()]
        return tuple(result)


def moe_job(
    model: MoeModel, name: str, domains: int, rails: int, algorithm: str, all_to_alls: int, flops_per_s: float
) -> MoeJob:
    """Return the step in real bytes and seconds, with the model's own tokens for each GPU.

    With fewer all-to-alls than the model's the whole step is shorter by the same share, as if it had fewer layers.
    """
    # of the AllReduce and the computing too, which so keep their proportion to an all-to-all
    share = all_to_alls / model.all_to_alls
    # at most one on each GPU
    experts = min(model.experts, domains * rails)
    pair_bytes = model.all_to_all_bytes / experts
    static_bytes = share * FP16_BYTES * model.static_parameters
    compute_s = share * model.gpu_flops / flops_per_s
    return MoeJob(
        name=name,
        domains=domains,
        rails=rails,
        algorithm=algorithm,
        all_to_alls=all_to_alls,
        experts=experts,
        pair_bytes=pair_bytes,
        static_bytes=static_bytes,
        expert_bytes=share * FP16_BYTES * model.expert_parameters,
        compute_s=compute_s,
    )


def moe_iteration(job: MoeJob) -> Iteration:
    """The step as Eq. 6-11 see it: one stage, one micro-batch; the all-to-alls take turns."""
    x, y = _size(job.exchange_grids)
    if job.shares:
        named = zip(("moe-dispatch", "moe-combine"), algorithms.ALGORITHMS[job.algorithm].uneven, strict=True)
    else:
        named = zip(["moe-a2a"], [job.algorithm], strict=True)
    exchanges = [algorithms.whole_phase(name, "EP", each, x, y, job.pair_bytes, job.shares) for name, each in named]
    # dispatch and combine take turns, and with an odd number of all-to-alls there is one more dispatch
    runs = Counter(islice(cycle(range(len(exchanges))), job.all_to_alls))
    each_micro_batch = tuple(replace(exchanges[number], repeats=count) for number, count in runs.items())
    reducing = "all-reduce-hierarchical"
    sync = [algorithms.whole_phase("dp-all-reduce", "DP", reducing, job.rails, job.domains, job.static_bytes)]
    if job.copy_grids:
        sync.append(algorithms.whole_phase("dp-experts", "DP", reducing, *_size(job.copy_grids), job.expert_bytes))
    return Iteration(1, 1, 1, job.compute_s, each_micro_batch, None, tuple(sync))


def _size(groups: Sequence[Grid]) -> tuple[int, int]:
    """Return x and y of groups that are alike: GPUs in each domain, and domains."""
    return len(groups[0][0]), len(groups[0])


def moe_schedule(job: MoeJob) -> Schedule:
    """The step as tasks."""
    program = Program(job.domains, job.rails)
    iteration = moe_iteration(job)
    for number, exchange in enumerate(islice(cycle(iteration.each_micro_batch), job.all_to_alls)):
        named = replace(exchange, repeats=1, stage="stage 0", step=f"all-to-all {number}")
        algorithms.run(program, named, *job.exchange_grids, compute_s=job.compute_s / job.all_to_alls)
    for reduction, groups in zip(iteration.sync, ((program.grid,), job.copy_grids), strict=False):
        algorithms.run(program, replace(reduction, stage="stage 0", step="gradients"), *groups)
    return program.schedule(job.name, iteration)


def zipf_shares(experts: int, skew: float, seed: int) -> tuple[float, ...]:
    """Return the share of all tokens that each expert gets; the shares add up to 1.

    The n-th most popular expert gets tokens in proportion to 1/n^skew (Zipf), and the seed decides which GPU's that is.
    Skew 0 is even.
    """
    # nothing is capped, as routers with a capacity factor would do
    weights = [1 / n**skew for n in range(1, experts + 1)]
    random.Random(seed).shuffle(weights)
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def _check_experts(model: MoeModel, fabric: FabricSpec, field: str, name: str) -> None:
    """Raise BadInput if the fabric can't have whole groups of this many experts, each of them a grid."""
    experts = model.experts
    if fabric.gpus % experts or (fabric.rails % experts and experts % fabric.rails):
        shape = f"{fabric.domains} domains x {fabric.rails} rails"
        allowed = f"has {experts} experts, which must divide the GPUs of {shape}, and those of a domain or a multiple"
        raise BadInput(field, name, allowed)


def _uneven_algorithms() -> dict[str, str]:
    """Return the full name of each all-to-all that has an uneven form, by its short name."""
    names = algorithms.algorithms_of(ALL_TO_ALL).items()
    return {short: name for short, name in names if algorithms.ALGORITHMS[name].uneven}


@WORKLOADS.register("moe")
class MoeSpec(Training):
    """A step of a mixture of experts, `all_to_alls` of the model's own number long. `bytes` is D of an all-to-all.

    `skew`: the exponent of a Zipf law by which experts get tokens, 0 for as many each; who is popular is drawn from the
    seed. Uneven ones go straight. They have as many bytes in all as even ones, so they take longer than `duration`.
    """

    model: NameOrPath = "moe-1.3b-128"
    algorithm: algorithms.AllToAllAlgorithm = "auto"
    all_to_alls: Count = 4
    skew: Annotated[float, Field(ge=0, le=2)] = 0.0

    @field_validator("skew")
    @classmethod
    def _check_skew(cls, skew: float, info: ValidationInfo) -> float:
        algorithm = info.data.get("algorithm", "auto")
        fitting = _uneven_algorithms()
        if skew > 0 and algorithm != "auto" and algorithm not in fitting:
            allowed = f"leave algorithm out, or write {' or '.join(fitting)}"
            raise ValueError(f"is not for {algorithm}, whose pairs are all alike: {allowed}")
        return skew

    def traits(self) -> dict[str, str]:
        return {"skew": f"skew {self.skew:g}", "algorithm": self.algorithm}

    def build(self, setting: Setting) -> Built:
        fabric = setting.fabric
        model = MoeModel.load(self.model, f"{setting.field}.model")
        if self.all_to_alls > model.all_to_alls:
            allowed = f"must be {model.all_to_alls} or less: the model has no more in a step"
            raise BadInput(f"{setting.field}.all_to_alls", self.all_to_alls, allowed)
        chosen = algorithms.chosen_algorithm(ALL_TO_ALL, self.algorithm, fabric)
        if self.skew and not algorithms.ALGORITHMS[chosen].uneven:
            # `auto` on a fabric without spines is two-phase, in which all pairs are alike
            chosen = next(iter(_uneven_algorithms().values()))
        flops = setting.platform.flops * self.efficiency

        if model.experts < fabric.gpus:
            _check_experts(model, fabric, f"{setting.field}.model", self.model)

        def job(domains: int, rails: int, all_to_alls: int) -> MoeJob:
            """Return the step for sizing; `with_algorithm` sets what really runs."""
            # the same on every fabric, so that all fabrics carry the same bytes
            sizing = algorithms.sizing_algorithm(ALL_TO_ALL)
            whole_job = moe_job(model, self.label(), domains, rails, sizing, all_to_alls, flops)
            return replace(whole_job, compute_s=whole_job.compute_s * self.compute)

        def with_algorithm(job: MoeJob) -> MoeJob:
            shares = zipf_shares(job.experts, self.skew, setting.seed) if self.skew else ()
            return replace(job, algorithm=chosen, shares=shares)

        emulated_job = job(fabric.domains, fabric.rails, self.all_to_alls)
        published_job = job(model.gpus // model.domain_gpus, model.domain_gpus, model.all_to_alls)
        factor = self.bytes_factor(
            setting, emulated_job.pair_bytes, lambda rates: line_rate_duration_s(moe_schedule(emulated_job), rates)
        )
        shape = {
            "gpus": Factor(model.gpus, fabric.gpus),
            "experts": Factor(model.experts, min(model.experts, fabric.gpus)),
            "domain_gpus": Factor(model.domain_gpus, fabric.rails),
            "all_to_alls": Factor(model.all_to_alls, self.all_to_alls),
        }
        real = moe_iteration(with_algorithm(published_job))
        scale = setting.scale(
            self.label(),
            factor,
            shape=shape,
            compute_kept=self.compute,
            real=real,
            full_compute_s=model.gpu_flops / flops,
        )
        return Built(moe_schedule(with_algorithm(emulated_job).scaled(factor, scale.time_factor)), scale)
