"""One training iteration of a mixture of experts: all-to-alls between experts' GPUs, AllReduce of what has copies.

Source: Rail-only section III-C, DeepSpeed-MoE (Rajbhandari et al. 2022). The GPUs of an expert-parallel group share out
the experts evenly, one or several each, and exchange tokens, spread uniformly unless the job has `shares`. Each MoE
layer has two all-to-alls forward and two backward: one to the experts, dispatch, and one back, combine; they differ
only where the spread is uneven. Routed experts have a copy in each group, everything else has one on every GPU of a
stage; the gradients of both are summed at the end, hierarchically. A GPU's computing is spread evenly before the
all-to-alls, whatever its experts' share. With several stages or micro-batches these are taken in 1F1B order.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil, gcd, lcm
from typing import Annotated, Final

from pydantic import Field, ValidationInfo, field_validator

from railyard.core.errors import BadInput
from railyard.core.input_paths import NameOrPath
from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.models.catalogue import FP16_BYTES, MoeModel, load_model
from railyard.workloads.models.mixture import Mixture, check_experts, load_mixture
from railyard.workloads.pipeline import Pass, emit_pipeline
from railyard.workloads.placement.layout import (
    Layout,
    Numbers,
    Parallelism,
    check_parallelism,
    data_parallel,
    grids,
    hierarchical,
    place,
)
from railyard.workloads.scale import Factor
from railyard.workloads.schedule import Grid, Iteration, Phase, Program, Schedule
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Count, Job, Setting, TrafficKind, Training

ALL_TO_ALL: Final = "all-to-all"
REDUCING: Final = "all-reduce-hierarchical"
TRAFFIC_KINDS.add("EP", TrafficKind())


@dataclass(frozen=True)
class MoeJob(Job):
    """An iteration, in bytes and seconds.

    `algorithm`: the full name of the all-to-alls'.
    `micro_batches`: of each pipeline.
    `all_to_alls`: of a micro-batch at each stage.
    `gpu_experts`: experts of a layer on each GPU.
    `pair_bytes`: D of an all-to-all.
    `gathered_bytes`: D of a tensor-parallel AllGather or ReduceScatter of attention; 0 without tensor parallelism.
    `boundary_bytes`: a GPU's part of a stage's output.
    `static_bytes`: D of the AllReduce of what every GPU of a stage has.
    `expert_bytes`: D of the AllReduce over the copies of a GPU's experts.
    `shares`: the part of all tokens that goes to each GPU's experts; empty if they are spread uniformly.
    """

    name: str
    placement: Layout
    algorithm: str
    micro_batches: int
    all_to_alls: int
    gpu_experts: int
    pair_bytes: float
    gathered_bytes: float
    boundary_bytes: float
    static_bytes: float
    expert_bytes: float
    shares: tuple[float, ...] = ()

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return self.placement.parallelism.pipeline

    @property
    def virtual_stages(self) -> int:
        """Chunks of layers at each stage."""
        return self.placement.parallelism.virtual_stages

    def exchange_grids(self, stage: int) -> tuple[Grid, ...]:
        """The GPUs of each group of a stage that exchanges tokens."""
        return self._grids(self.placement.expert_groups, stage)

    def copy_grids(self, stage: int) -> tuple[Grid, ...]:
        """The GPUs of a stage that have copies of the same experts; none if there is one of each."""
        copies = self.placement.expert_copies
        return self._grids(copies, stage) if copies.shape[1] > 1 else ()

    def tensor_grids(self, stage: int) -> tuple[Grid, ...]:
        """The tensor-parallel groups of a stage."""
        return tuple(self.placement.tensor_grid(stage, replica) for replica in range(self.placement.parallelism.data))

    def replica_grids(self, stage: int) -> tuple[Grid, ...]:
        """The GPUs of a stage that hold the same parameters outside of experts: all, or those of a tensor rank."""
        return tuple(self.placement.data_grid(stage, rank) for rank in range(self.placement.parallelism.tensor))

    def _grids(self, groups: Numbers, stage: int) -> tuple[Grid, ...]:
        """Return a stage's part of the groups of all stages."""
        of_stage = groups.reshape(self.stages, -1, groups.shape[1])[stage]
        regular, irregular = grids(of_stage, self.placement.rails)
        if len(irregular):
            raise ValueError("a placement has its expert groups on grids")
        result: list[Grid] = []
        for array in regular:
            result += [tuple(map(tuple, grid)) for grid in array.tolist()]
        return tuple(result)


def moe_job(
    mixture: Mixture,
    name: str,
    placement: Layout,
    all_to_alls: int,
    tokens: int,
    gpu_experts: int,
    flops_per_s: float,
    algorithm: str = "",
    real_all_to_alls: int | None = None,
) -> MoeJob:
    """Return the iteration in real bytes and seconds.

    all_to_alls: of a micro-batch at each stage; a stage has the same share of the model's layers, so that AllReduce
        and computing keep their proportion to an all-to-all
    tokens: of a micro-batch at each GPU; tensor-parallel GPUs share those of a sequence (sequence parallelism)
    gpu_experts: experts of a layer on each GPU
    algorithm: the full name of the all-to-alls'; left out, the one by which a duration becomes bytes
    real_all_to_alls: of a micro-batch at each stage of the real job, to which a stage's output keeps its proportion
    """
    p = placement.parallelism
    share = all_to_alls / mixture.all_to_alls
    gathered_bytes = 0.0
    if p.tensor > 1:
        gathered_bytes = FP16_BYTES * tokens * p.tensor * mixture.hidden
    boundary_bytes = 0.0
    if p.pipeline > 1:
        boundary_bytes = FP16_BYTES * tokens * mixture.hidden * all_to_alls / (real_all_to_alls or all_to_alls)
    return MoeJob(
        name=name,
        placement=placement,
        # the same on every fabric, so that all fabrics carry the same bytes
        algorithm=algorithm or algorithms.sizing_algorithm(ALL_TO_ALL),
        micro_batches=p.micro_batches,
        all_to_alls=all_to_alls,
        gpu_experts=gpu_experts,
        pair_bytes=mixture.exchanged_bytes(tokens) / p.expert,
        gathered_bytes=gathered_bytes,
        boundary_bytes=boundary_bytes,
        static_bytes=share * FP16_BYTES * mixture.static_parameters / p.tensor,
        expert_bytes=share * FP16_BYTES * gpu_experts * mixture.expert_parameters,
        compute_s=share * tokens * mixture.token_flops / flops_per_s,
    )


def _exchange_phases(job: MoeJob) -> list[Phase]:
    """Return the all-to-all, or dispatch and combine where they differ."""
    x, y = _size(job.exchange_grids(0))
    if job.shares:
        named = zip(("moe-dispatch", "moe-combine"), algorithms.ALGORITHMS[job.algorithm].uneven, strict=True)
    else:
        named = zip(["moe-a2a"], [job.algorithm], strict=True)
    return [algorithms.whole_phase(name, "EP", each, x, y, job.pair_bytes, job.shares) for name, each in named]


def _tensor_phases(job: MoeJob) -> list[Phase]:
    """Return the AllGather and ReduceScatter around a layer's attention; none without tensor parallelism.

    A pass has one of each before its dispatch, forward and backward. Experts aren't split, so they need none.
    """
    if not job.gathered_bytes:
        return []
    split = job.placement.splits["tensor"]
    form = "ring" if split.network == 1 else "hierarchical"
    return [
        algorithms.whole_phase(f"tp-{name}", "TP", f"{name}-{form}", *split, job.gathered_bytes)
        for name in ("all-gather", "reduce-scatter")
    ]


def moe_iteration(job: MoeJob) -> Iteration:
    """The iteration as Eq. 6-11 see it; the all-to-alls of a micro-batch take turns, in the bubble too."""
    exchanges = _exchange_phases(job)
    passes = ceil(job.all_to_alls / 2)
    tensor = [replace(phase, repeats=passes) for phase in _tensor_phases(job)]
    # dispatch and combine take turns, and with an odd number of all-to-alls there is one more dispatch
    runs = Counter(islice(cycle(range(len(exchanges))), job.all_to_alls))
    all_exchanges = [replace(exchanges[number], repeats=count) for number, count in runs.items()]
    each_micro_batch = (*tensor, *all_exchanges)
    boundary = None
    if job.stages > 1:
        boundary = algorithms.whole_phase("pp", "PP", "point-to-point", 1, 2, job.boundary_bytes)
    static = algorithms.whole_phase("dp-all-reduce", "DP", REDUCING, *_size(job.replica_grids(0)), job.static_bytes)
    sync = [static]
    copies = job.copy_grids(0)
    if copies:
        sync.append(algorithms.whole_phase("dp-experts", "DP", REDUCING, *_size(copies), job.expert_bytes))
    return Iteration(
        stages=job.stages,
        micro_batches=job.micro_batches,
        virtual_stages=job.virtual_stages,
        compute_s=job.compute_s,
        each_micro_batch=each_micro_batch,
        boundary=boundary,
        sync=tuple(sync),
        bubble_has_collectives=True,
    )


def _size(groups: Sequence[Grid]) -> tuple[int, int]:
    """Return x and y of groups that are alike: GPUs in each domain, and domains."""
    return len(groups[0][0]), len(groups[0])


def moe_schedule(job: MoeJob) -> Schedule:
    """The iteration as tasks."""
    program = Program(job.placement.domains, job.placement.rails)
    iteration = moe_iteration(job)
    tensor = _tensor_phases(job)
    # what comes before each all-to-all: attention before a dispatch, nothing before a combine
    before = cycle([tensor, []])
    steps = list(zip(before, islice(cycle(_exchange_phases(job)), job.all_to_alls), strict=False))
    if job.stages * job.micro_batches > 1:
        # as many in each chunk, and in its forward pass as in its backward pass
        count = job.all_to_alls // (2 * job.virtual_stages)

        def run_pass(stage: int, step: Pass, compute_s: float) -> None:
            first = count * (2 * step.chunk + (0 if step.forward else 1))
            _emit_exchanges(program, job, steps[first : first + count], stage, compute_s, f"{step.name}, ")

        stage_gpus = job.placement.gpus.reshape(job.stages, -1)
        emit_pipeline(program, iteration, stage_gpus.tolist(), run_pass, backward=1.0)
    else:
        _emit_exchanges(program, job, steps, 0, job.compute_s, "")
    for stage in range(job.stages):
        groups = (job.replica_grids(stage), job.copy_grids(stage))
        for reduction, grids_of_stage in zip(iteration.sync, groups, strict=False):
            algorithms.run(program, replace(reduction, stage=f"stage {stage}", step="gradients"), *grids_of_stage)
    return program.schedule(job.name, iteration)


def _emit_exchanges(
    program: Program, job: MoeJob, steps: Sequence[tuple[list[Phase], Phase]], stage: int, compute_s: float, title: str
) -> None:
    """Append all-to-alls of all groups of a stage, one after the other, with computing before each.

    steps: each all-to-all, with the tensor-parallel collectives before it
    """
    where = f"stage {stage}"
    for number, (collectives, exchange) in enumerate(steps):
        for phase in collectives:
            algorithms.run(program, replace(phase, stage=where, step=f"{title}attention"), *job.tensor_grids(stage))
        named = replace(exchange, stage=where, step=f"{title}all-to-all {number}")
        algorithms.run(program, named, *job.exchange_grids(stage), compute_s=compute_s / len(steps))


def _gpu_tokens(mixture: Mixture, parallelism: Parallelism) -> int:
    """Return the tokens of a micro-batch at each GPU; tensor-parallel GPUs share those of a sequence."""
    return ceil(parallelism.micro_batch * mixture.sequence / parallelism.tensor)


def _longest_stage(mixture: Mixture, parallelism: Parallelism) -> int:
    """Return the all-to-alls of a micro-batch at the stage that has most: each of its chunks takes whole layers."""
    chunks = parallelism.pipeline * parallelism.virtual_stages
    return 4 * parallelism.virtual_stages * ceil(mixture.moe_layers / chunks)


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


def gpu_shares(gpus: int, gpu_experts: int, skew: float, seed: int) -> tuple[float, ...]:
    """Return the share of all tokens that each GPU of a group gets, with `gpu_experts` experts on each."""
    shares = zipf_shares(gpus * gpu_experts, skew, seed)
    return tuple(sum(shares[first : first + gpu_experts]) for first in range(0, len(shares), gpu_experts))


def _uneven_algorithms() -> dict[str, str]:
    """Return the full name of each all-to-all that has an uneven form, by its short name."""
    names = algorithms.algorithms_of(ALL_TO_ALL).items()
    return {short: name for short, name in names if algorithms.ALGORITHMS[name].uneven}


@WORKLOADS.register("moe")
class MoeSpec(Training):
    """An iteration of a mixture of experts with `all_to_alls` of those that the model has in a micro-batch.

    `bytes` is D of an all-to-all. `parallelism`: left out, there is one stage and one micro-batch, of the published
    job's tokens or of one sequence a GPU, and a group has a GPU for each expert if there are as many. `real`: the job
    that this is in place of, on the platform's HB domains; left out, that of the model's file, or of the fabric's GPUs.
    `sequence`: tokens, in place of the model's.
    `skew`: the exponent of a Zipf law by which experts get tokens, 0 for as many each; who is popular is drawn from the
    seed. Uneven ones go straight. They have as many bytes in all as even ones, so they take longer than `duration`.
    """

    model: NameOrPath = "moe-1.3b-128"
    algorithm: algorithms.AllToAllAlgorithm = "auto"
    all_to_alls: Count = 4
    skew: Annotated[float, Field(ge=0, le=2)] = 0.0
    parallelism: Parallelism | None = None
    real: Parallelism | None = None
    sequence: Count | None = None

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
        chosen = algorithms.chosen_algorithm(ALL_TO_ALL, self.algorithm, fabric)
        if self.skew and not algorithms.ALGORITHMS[chosen].uneven:
            # `auto` on a fabric without spines is two-phase, in which all pairs are alike
            chosen = next(iter(_uneven_algorithms().values()))
        real = self._real_job(setting)
        job = self._emulated_job(setting, real)

        def with_algorithm(job: MoeJob) -> MoeJob:
            shares: tuple[float, ...] = ()
            if self.skew:
                shares = gpu_shares(job.placement.parallelism.expert, job.gpu_experts, self.skew, setting.seed)
            return replace(job, algorithm=chosen, shares=shares)

        kept_job = replace(job, compute_s=job.compute_s * self.compute)
        factor = self.bytes_factor(
            setting, job.pair_bytes, lambda rates: line_rate_duration_s(moe_schedule(kept_job), rates)
        )
        kept_real = None
        full_compute_s = None
        if real is not None:
            full_compute_s = real.compute_s
            kept_real = moe_iteration(replace(with_algorithm(real), compute_s=real.compute_s * self.compute))
        scale = setting.scale(
            self.label(),
            factor,
            shape=self._shape(setting, job, real),
            compute_kept=self.compute,
            real=kept_real,
            full_compute_s=full_compute_s,
        )
        return Built(moe_schedule(with_algorithm(kept_job).scaled(factor, scale.time_factor)), scale)

    def _mixture(self, setting: Setting) -> Mixture:
        return load_mixture(self.model, f"{setting.field}.model", self.sequence)

    def _flops(self, setting: Setting) -> float:
        return setting.platform.flops * self.efficiency

    def _real_job(self, setting: Setting) -> MoeJob | None:
        """Return the job that the emulation is in place of: `real`, or that of the model's file; None without one."""
        mixture = self._mixture(setting)
        if self.real is not None:
            rails = setting.platform.domain_gpus
            field = f"{setting.field}.real"
            check_experts(mixture, self.real, field)
            layout = hierarchical(self.real, self.real.gpus // rails, rails, field)
            # the stage with most layers decides the pace
            all_to_alls = _longest_stage(mixture, self.real)
            tokens = _gpu_tokens(mixture, self.real)
        else:
            model = load_model(self.model)
            if not isinstance(model, MoeModel):
                return self._real_job_of_shape(setting, mixture)
            rails = model.domain_gpus
            expert = self._whole_groups(model, model.gpus // rails, rails, setting.field)
            layout = data_parallel(model.gpus, model.gpus, rails, expert)
            all_to_alls = model.all_to_alls
            tokens = model.tokens_per_gpu
        gpu_experts = max(1, mixture.experts // layout.parallelism.expert)
        return moe_job(mixture, self.label(), layout, all_to_alls, tokens, gpu_experts, self._flops(setting))

    def _real_job_of_shape(self, setting: Setting, mixture: Mixture) -> MoeJob:
        """Return the job of a model whose file has none: that of the fabric's GPUs, in HB domains of the platform.

        All layers, and groups as large as on the fabric. Where GPUs don't fill such domains, there are more of them.
        """
        fabric = setting.fabric
        rails = setting.platform.domain_gpus
        parallelism = self.parallelism
        if parallelism is None:
            expert = gcd(mixture.experts, fabric.gpus)
            # jobs leave GPUs of a domain idle that whole groups don't fill, 8 of the 72 of an NVL72 for instance
            if expert <= rails:
                rails -= rails % expert
            whole = lcm(rails, expert)
            gpus = ceil(fabric.gpus / whole) * whole
            layout = data_parallel(gpus, gpus, rails, expert)
        else:
            # a job that is given whole can't have more GPUs, so its domains are the fabric's where others don't fit
            field = f"{setting.field}.parallelism"
            check_parallelism(parallelism, fabric.domains, fabric.rails, field)
            if fabric.gpus % rails:
                rails = fabric.rails
            layout = hierarchical(parallelism, fabric.gpus // rails, rails, field)
        p = layout.parallelism
        all_to_alls = _longest_stage(mixture, p)
        tokens = _gpu_tokens(mixture, p)
        gpu_experts = max(1, mixture.experts // p.expert)
        return moe_job(mixture, self.label(), layout, all_to_alls, tokens, gpu_experts, self._flops(setting))

    def _emulated_job(self, setting: Setting, real: MoeJob | None) -> MoeJob:
        """Return the job on the fabric. A GPU has as many experts as in the real job, so that there may be fewer."""
        mixture = self._mixture(setting)
        fabric = setting.fabric
        if self.all_to_alls > mixture.all_to_alls:
            allowed = f"must be {mixture.all_to_alls} or less: the model has no more in a step"
            raise BadInput(f"{setting.field}.all_to_alls", self.all_to_alls, allowed)
        if self.parallelism is not None:
            layout = place(self.parallelism, fabric.domains, fabric.rails, f"{setting.field}.parallelism")
            check_experts(mixture, self.parallelism, f"{setting.field}.parallelism")
            tokens = _gpu_tokens(mixture, self.parallelism)
        else:
            model = load_model(self.model)
            if isinstance(model, MoeModel):
                expert = self._whole_groups(model, fabric.domains, fabric.rails, setting.field)
                tokens = model.tokens_per_gpu
            else:
                expert = gcd(mixture.experts, fabric.gpus)
                tokens = mixture.sequence
            layout = data_parallel(fabric.gpus, fabric.gpus, fabric.rails, expert)
        p = layout.parallelism
        gpu_experts = max(1, mixture.experts // p.expert)
        real_all_to_alls = _longest_stage(mixture, p)
        if real is not None:
            gpu_experts = max(1, mixture.experts // real.placement.parallelism.expert)
            real_all_to_alls = real.all_to_alls
        step = 2 * p.pipeline * p.virtual_stages
        if p.pipeline * p.micro_batches > 1 and self.all_to_alls % step:
            allowed = f"must be a multiple of {step}: as many forward as backward in each chunk of a stage"
            raise BadInput(f"{setting.field}.all_to_alls", self.all_to_alls, allowed)
        all_to_alls = self.all_to_alls // p.pipeline
        return moe_job(
            mixture,
            self.label(),
            layout,
            all_to_alls,
            tokens,
            gpu_experts,
            self._flops(setting),
            real_all_to_alls=real_all_to_alls,
        )

    def _whole_groups(self, model: MoeModel, domains: int, rails: int, field: str) -> int:
        """Return the GPUs of a group: one for each expert, or all. BadInput if groups would be unequal."""
        gpus = domains * rails
        expert = min(model.experts, gpus)
        if gpus % expert:
            allowed = (
                f"has {model.experts} experts, which must divide the {gpus} GPUs of {domains} domains x {rails} rails"
            )
            raise BadInput(f"{field}.model", self.model, allowed)
        return expert

    def _shape(self, setting: Setting, job: MoeJob, real: MoeJob | None) -> dict[str, Factor]:
        """Return the counts in which the job differs from the real one; none without a real one."""
        if real is None:
            return {}
        mixture = self._mixture(setting)
        emulated = job.placement.parallelism
        published = real.placement.parallelism
        gpu_experts = max(1, mixture.experts // published.expert)
        shape = {
            "gpus": Factor(published.gpus, emulated.gpus),
            "experts": Factor(mixture.experts, emulated.expert * gpu_experts),
            "domain_gpus": Factor(real.placement.rails, job.placement.rails),
            "all_to_alls": Factor(mixture.all_to_alls, self.all_to_alls),
        }
        if self.parallelism is not None:
            for name in ("expert", "tensor", "pipeline", "virtual_stages", "data", "micro_batches"):
                shape[name] = Factor(getattr(published, name), getattr(emulated, name))
        return shape
