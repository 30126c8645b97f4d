"""One training step of a mixture of experts: all-to-alls between the experts' GPUs, AllReduce of the static part.

Source: Rail-only section III-C, DeepSpeed-MoE (Rajbhandari et al. 2022). One expert a GPU, tokens spread uniformly
unless the job has `shares`. Each MoE layer has two all-to-alls forward and two
backward: one to the experts, dispatch, and one back, combine; only where the spread is uneven is there a difference.
What isn't an expert is replicated on every GPU, and its gradients are summed at the end, hierarchically. A GPU's
computing is spread evenly before the all-to-alls, whatever its expert's share.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import cycle, islice

from railyard.workloads.collectives.algorithm import ALGORITHMS
from railyard.workloads.collectives.stages import whole_bytes
from railyard.workloads.models.catalogue import FP16_BYTES, MoeModel
from railyard.workloads.program import Program
from railyard.workloads.schedule import Iteration, Phase, Schedule


@dataclass(frozen=True)
class MoeJob:
    """A step on `domains` x `rails` GPUs, in bytes and seconds.

    `pair_bytes`: D of an all-to-all; `static_bytes`: D of the AllReduce; `compute_s`: all of a GPU's computing.
    `shares`: the part of all tokens that goes to each GPU's expert, straight; empty if they are spread uniformly.
    """

    name: str
    domains: int
    rails: int
    two_phase: bool
    all_to_alls: int
    pair_bytes: float
    static_bytes: float
    compute_s: float
    shares: tuple[float, ...] = ()

    def scaled(self, bytes_factor: float, time_factor: float) -> "MoeJob":
        """The same step with fewer bytes and other gaps."""
        return replace(
            self,
            pair_bytes=self.pair_bytes * bytes_factor,
            static_bytes=self.static_bytes * bytes_factor,
            compute_s=self.compute_s * time_factor,
        )


def moe_job(
    model: MoeModel, name: str, domains: int, rails: int, two_phase: bool, all_to_alls: int, flops_per_s: float
) -> MoeJob:
    """The step in real bytes and seconds, with as many experts as GPUs and the model's own tokens for each GPU.

    With fewer all-to-alls than the model's the whole step is shorter by the same share, as if it had fewer layers: so
    the AllReduce and the computing keep their proportion to an all-to-all.
    """
    share = all_to_alls / model.all_to_alls
    return MoeJob(
        name=name,
        domains=domains,
        rails=rails,
        two_phase=two_phase,
        all_to_alls=all_to_alls,
        pair_bytes=model.all_to_all_bytes / (domains * rails),
        static_bytes=share * FP16_BYTES * model.static_parameters,
        compute_s=share * model.gpu_flops / flops_per_s,
    )


def _exchanges(job: MoeJob) -> tuple[Phase, ...]:
    """The all-to-alls that take turns, with whole bytes."""
    x, y, pair = job.rails, job.domains, whole_bytes(job.pair_bytes)
    if job.shares:
        return (
            Phase("moe-dispatch", "EP", "all-to-all-dispatch", x, y, pair, shares=job.shares),
            Phase("moe-combine", "EP", "all-to-all-combine", x, y, pair, shares=job.shares),
        )
    return (Phase("moe-a2a", "EP", "all-to-all-two-phase" if job.two_phase else "all-to-all", x, y, pair),)


def _reduction(job: MoeJob) -> Phase:
    """The AllReduce, with whole bytes."""
    x, y = job.rails, job.domains
    reduced = x * y * whole_bytes(job.static_bytes / (x * y))
    return Phase("dp-all-reduce", "DP", "all-reduce-hierarchical", x, y, reduced)


def moe_iteration(job: MoeJob) -> Iteration:
    """The step as Eq. 6-11 see it: one stage, one micro-batch."""
    runs = Counter(islice(cycle(_exchanges(job)), job.all_to_alls))
    return Iteration(
        1, 1, 1, job.compute_s, tuple(replace(e, repeats=n) for e, n in runs.items()), None, (_reduction(job),)
    )


def moe_schedule(job: MoeJob) -> Schedule:
    """The step as tasks."""
    program = Program(job.domains, job.rails)
    for exchange in islice(cycle(_exchanges(job)), job.all_to_alls):
        number = program.phase(exchange)
        for gpu in range(job.domains * job.rails):
            program.compute(gpu, job.compute_s / job.all_to_alls, number)
        ALGORITHMS[exchange.collective].emit(program, exchange, number, program.grid)
    reduction = _reduction(job)
    number = program.phase(reduction)
    ALGORITHMS[reduction.collective].emit(program, reduction, number, program.grid)
    return program.schedule(job.name, moe_iteration(job))


def zipf_shares(experts: int, skew: float, seed: int) -> tuple[float, ...]:
    """Return the share of all tokens that each expert gets; the shares add up to 1.

    Popularity follows a Zipf law, a choice of ours: the n-th most popular expert gets tokens in proportion to 1/n^skew,
    and the seed decides which GPU's expert that is. Skew 0 is even. Routers with a capacity factor drop or pass on what
    exceeds an expert's share; nothing is capped here.
    """
    weights = [1 / n**skew for n in range(1, experts + 1)]
    random.Random(seed).shuffle(weights)
    total = sum(weights)
    return tuple(weight / total for weight in weights)
