"""One training iteration of a GPT in the manner of Megatron: TP in the HB domain, PP and DP on rails.

For each layer and micro-batch 4 AllGather and 4 ReduceScatter in the tensor-parallel group (half of them forward),
with sequence parallelism (Korthikanti et al. 2022); b s h / t elements from stage to stage, forward and back;
AllReduce of the gradients when the last micro-batch is through. All in 16 bits. A rank doesn't compute while it
communicates, as in the appendix of Rail-only.

Small messages would measure the machine's latency and not the network, so the collectives of consecutive layers can be
merged: a pass (one micro-batch through a stage's layers, one way) runs `pairs_per_pass` times AllGather, computing,
ReduceScatter, which carry what all the layers' 2 + 2 a pass would have carried.
"""

from dataclasses import dataclass, replace
from typing import Final

from railyard.workloads.collectives.stages import whole_bytes
from railyard.workloads.models.catalogue import FP16_BYTES, GptModel
from railyard.workloads.placement.parallelism import Placement
from railyard.workloads.schedule import Iteration, Phase

FORWARD: Final = 1 / 3
"""Share of the forward pass in t(b): a backward pass takes two times as long (Narayanan et al., section 2.2)."""
PAIRS_PER_LAYER: Final = 2
"""AllGather and ReduceScatter pairs of a layer in one pass: one around attention, one around the MLP."""


@dataclass(frozen=True)
class GptJob:
    """An iteration, in bytes and seconds.

    `gather_bytes`: D of each (merged) AllGather and ReduceScatter; `boundary_bytes`: a GPU's part of a stage's output;
    `sync_bytes`: D of the gradients' AllReduce; `compute_s`: t(b), forward and backward of a micro-batch at a stage.
    """

    name: str
    placement: Placement
    pairs_per_pass: int
    gather_bytes: float
    boundary_bytes: float
    sync_bytes: float
    compute_s: float

    def scaled(self, bytes_factor: float, time_factor: float) -> "GptJob":
        """The same job with fewer bytes and other gaps."""
        return replace(
            self,
            gather_bytes=self.gather_bytes * bytes_factor,
            boundary_bytes=self.boundary_bytes * bytes_factor,
            sync_bytes=self.sync_bytes * bytes_factor,
            compute_s=self.compute_s * time_factor,
        )


def gpt_job(
    model: GptModel,
    name: str,
    placement: Placement,
    layers_per_stage: int,
    flops_per_s: float,
    pairs_per_pass: int | None = None,
) -> GptJob:
    """The job in real bytes and seconds, on GPUs that achieve `flops_per_s`. No `pairs_per_pass`: nothing is merged."""
    p = placement.parallelism
    layers_per_pass = layers_per_stage / p.virtual_stages
    pairs = round(PAIRS_PER_LAYER * layers_per_pass) if pairs_per_pass is None else pairs_per_pass
    return GptJob(
        name=name,
        placement=placement,
        pairs_per_pass=pairs,
        gather_bytes=model.gathered_bytes(p.micro_batch) * PAIRS_PER_LAYER * layers_per_pass / pairs,
        boundary_bytes=model.gathered_bytes(p.micro_batch) / p.tensor,
        sync_bytes=FP16_BYTES * layers_per_stage * model.layer_parameters / p.tensor,
        compute_s=layers_per_stage * model.layer_flops(p.micro_batch) / p.tensor / flops_per_s,
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """The job's steps as phases that carry whole bytes: what its tasks and its `Iteration` must agree on."""

    all_gather: Phase
    reduce_scatter: Phase
    point_to_point: Phase
    all_reduce: Phase


def steps(job: GptJob) -> Steps:
    """Data of a ring is rounded up to whole bytes a GPU."""
    place, t = job.placement, job.placement.parallelism.tensor
    gathered_size = t * whole_bytes(job.gather_bytes / t)
    x, y = place.data_hb, place.data_network
    t_h, t_l = place.tensor_hb, place.tensor_network
    gather_collective = "all-gather-ring" if t_l == 1 else "all-gather-hierarchical"
    scatter_collective = "reduce-scatter-ring" if t_l == 1 else "reduce-scatter-hierarchical"
    reduced_size = x * y * whole_bytes(job.sync_bytes / (x * y))
    boundary = whole_bytes(job.boundary_bytes)
    return Steps(
        all_gather=Phase("tp-all-gather", "TP", gather_collective, t_h, t_l, gathered_size),
        reduce_scatter=Phase("tp-reduce-scatter", "TP", scatter_collective, t_h, t_l, gathered_size),
        point_to_point=Phase("pp", "PP", "point-to-point", 1, 2, boundary),
        all_reduce=Phase(
            "dp-all-reduce", "DP", "all-reduce-ring" if x == 1 else "all-reduce-hierarchical", x, y, reduced_size
        ),
    )


def gpt_iteration(job: GptJob) -> Iteration:
    """What Eq. 6-11 need of it."""
    p, step = job.placement.parallelism, steps(job)
    runs = 2 * p.virtual_stages * job.pairs_per_pass
    return Iteration(
        stages=p.pipeline,
        micro_batches=p.micro_batches,
        virtual_stages=p.virtual_stages,
        compute_s=job.compute_s,
        each_micro_batch=(replace(step.all_gather, repeats=runs), replace(step.reduce_scatter, repeats=runs)),
        boundary=step.point_to_point if p.pipeline > 1 else None,
        sync=(step.all_reduce,) if p.data > 1 else (),
    )
