"""One training step of a mixture of experts: all-to-alls between the experts' GPUs, AllReduce of the static part.

Source: Rail-only section III-C, DeepSpeed-MoE (Rajbhandari et al. 2022). One expert a GPU, tokens spread uniformly.
Each MoE layer has two all-to-alls forward and two backward. What isn't an expert is replicated on every GPU, and its
gradients are summed at the end, hierarchically. A GPU's computing is spread evenly before the all-to-alls.
"""

from dataclasses import dataclass, replace

from workloads.catalogue import HALF, MoeModel
from workloads.collectives import all_reduce, all_to_all_direct, all_to_all_two_phase, whole_bytes
from workloads.program import Program
from workloads.schedule import Iteration, Phase, Schedule


@dataclass(frozen=True)
class MoeJob:
    """A step on `domains` x `rails` GPUs, in bytes and seconds.

    `pair_bytes`: D of an all-to-all; `static_bytes`: D of the AllReduce; `compute_s`: all of a GPU's computing.
    """

    name: str
    domains: int
    rails: int
    two_phase: bool
    all_to_alls: int
    pair_bytes: float
    static_bytes: float
    compute_s: float

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
        static_bytes=share * HALF * model.static_parameters,
        compute_s=share * model.gpu_flops / flops_per_s,
    )


def _steps(job: MoeJob) -> tuple[Phase, Phase]:
    """The all-to-all and the AllReduce, with whole bytes."""
    x, y = job.rails, job.domains
    reduced = x * y * whole_bytes(job.static_bytes / (x * y))
    return (
        Phase(
            "moe-a2a",
            "EP",
            "all-to-all-two-phase" if job.two_phase else "all-to-all",
            x,
            y,
            whole_bytes(job.pair_bytes),
        ),
        Phase("dp-all-reduce", "DP", "all-reduce-hierarchical", x, y, reduced),
    )


def moe_iteration(job: MoeJob) -> Iteration:
    """The step as Eq. 6-11 see it: one stage, one micro-batch."""
    exchange, reduction = _steps(job)
    return Iteration(1, 1, 1, job.compute_s, (replace(exchange, repeats=job.all_to_alls),), None, (reduction,))


def moe_schedule(job: MoeJob) -> Schedule:
    """The step as tasks."""
    program = Program(job.domains, job.rails)
    exchange, reduction = _steps(job)
    all_to_all = all_to_all_two_phase if job.two_phase else all_to_all_direct
    for _ in range(job.all_to_alls):
        number = program.phase(exchange)
        for gpu in range(job.domains * job.rails):
            program.compute(gpu, job.compute_s / job.all_to_alls, number)
        all_to_all(program, program.grid, int(exchange.data_bytes), number)
    number = program.phase(reduction)
    all_reduce(program, program.grid, int(reduction.data_bytes) // (job.domains * job.rails), number)
    return program.schedule(job.name, moe_iteration(job))
