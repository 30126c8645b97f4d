"""One training iteration of a GPT in the manner of Megatron: TP in the HB domain, PP and DP on rails; all in 16 bits.

Per layer and micro-batch 4 AllGather and 4 ReduceScatter in the tensor-parallel group (half of them forward), with
sequence parallelism (Korthikanti et al. 2022); b s h / t elements between stages, forward and back; AllReduce of the
gradients at the end. A pass (a micro-batch through a stage's layers, one way) merges the collectives of its layers into
`pairs_per_pass`. Stages take micro-batches in 1F1B order, plain or interleaved (Narayanan et al. 2021, section 2.2,
Fig. 4: each group of p through one of v model chunks after the other).
"""

from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationInfo, field_validator

from railyard.core.errors import BadInput
from railyard.core.input_paths import NameOrPath
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import run, whole_phase
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.models.catalogue import FP16_BYTES, Dense, GptModel, check_dense, check_heads, load_dense
from railyard.workloads.pipeline import Pass, emit_pipeline
from railyard.workloads.placement.layout import Layout, Parallelism, place
from railyard.workloads.scale import Factor, Scale
from railyard.workloads.schedule import Iteration, Phase, Program, Schedule
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Count, Job, Setting, TrafficKind, Training

MICRO_BATCHES: Final = 4
TENSOR_COLLECTIVES: Final = ("all-gather", "reduce-scatter")
# AllGather and ReduceScatter pairs of a layer in one pass: one around attention, one around the MLP.
PAIRS_PER_LAYER: Final = 2


TRAFFIC_KINDS.add("TP", TrafficKind(is_dense=True, is_headline=False))
TRAFFIC_KINDS.add("PP", TrafficKind(is_dense=True, is_headline=False))


@dataclass(frozen=True)
class GptJob(Job):
    """An iteration, in bytes and seconds.

    `gather_bytes`: D of each (merged) AllGather and ReduceScatter.
    `boundary_bytes`: a GPU's part of a stage's output.
    `sync_bytes`: D of the gradients' AllReduce.
    `compute_s`: t(b), forward and backward of a micro-batch at a stage.
    """

    name: str
    placement: Layout
    pairs_per_pass: int
    gather_bytes: float
    boundary_bytes: float
    sync_bytes: float

    def shape(self, layers_per_stage: int) -> dict[str, int]:
        """Return the counts in which a job may differ from the published one."""
        p = self.placement.parallelism
        return {
            "gpus": p.gpus,
            "domain_gpus": self.placement.rails,
            "tensor": p.tensor,
            "pipeline": p.pipeline,
            "data": p.data,
            "virtual_stages": p.virtual_stages,
            "layers": layers_per_stage * p.pipeline,
            "layers_per_stage": layers_per_stage,
            "micro_batches": p.micro_batches,
            "collectives_per_stage_and_micro_batch": 4 * p.virtual_stages * self.pairs_per_pass,
        }


def gpt_job(
    model: Dense, name: str, placement: Layout, layers: int, flops_per_s: float, pairs_per_pass: int | None = None
) -> GptJob:
    """The job in real bytes and seconds, with `layers` at a stage, on GPUs that achieve `flops_per_s`.

    No `pairs_per_pass`: nothing is merged.
    """
    p = placement.parallelism
    layers_per_pass = layers / p.virtual_stages
    # merged, since small messages would measure the machine's latency
    pairs = pairs_per_pass
    if pairs is None:
        pairs = round(PAIRS_PER_LAYER * layers_per_pass)
    gather_bytes = model.gathered_bytes(p.micro_batch) * PAIRS_PER_LAYER * layers_per_pass / pairs
    boundary_bytes = model.gathered_bytes(p.micro_batch) / p.tensor
    sync_bytes = FP16_BYTES * layers * model.layer_parameters / p.tensor
    compute_s = layers * model.layer_flops(p.micro_batch) / p.tensor / flops_per_s
    return GptJob(name, placement, pairs, gather_bytes, boundary_bytes, sync_bytes, compute_s=compute_s)


def gpt_iteration(job: GptJob) -> Iteration:
    """Return the iteration as Eq. 6-11 need it, and as its tasks are. Data of a ring is rounded up to whole bytes."""
    p = job.placement.parallelism
    runs = 2 * job.placement.parallelism.virtual_stages * job.pairs_per_pass
    tensor, data, _ = job.placement.splits.values()
    form = "ring" if tensor.network == 1 else "hierarchical"
    reducing = "all-reduce-ring" if data.hb == 1 else "all-reduce-hierarchical"
    each_micro_batch: list[Phase] = []
    for op in TENSOR_COLLECTIVES:
        phase = whole_phase(f"tp-{op}", "TP", f"{op}-{form}", *tensor, job.gather_bytes)
        each_micro_batch.append(replace(phase, repeats=runs))
    boundary = None
    if p.pipeline > 1:
        boundary = whole_phase("pp", "PP", "point-to-point", 1, 2, job.boundary_bytes)
    sync: list[Phase] = []
    if p.data > 1:
        sync.append(whole_phase("dp-all-reduce", "DP", reducing, *data, job.sync_bytes))
    return Iteration(
        stages=p.pipeline,
        micro_batches=p.micro_batches,
        virtual_stages=p.virtual_stages,
        compute_s=job.compute_s,
        each_micro_batch=tuple(each_micro_batch),
        boundary=boundary,
        sync=tuple(sync),
    )


def gpt_schedule(job: GptJob) -> Schedule:
    """The iteration: every stage of every replica takes its passes in 1F1B order, then the replicas sum gradients."""
    place = job.placement
    p = job.placement.parallelism
    program = Program(place.domains, place.rails)
    iteration = gpt_iteration(job)
    # before any task is made, since as many as are allowed take seconds
    pair = Program(place.domains, place.rails)
    for phase in iteration.each_micro_batch:
        run(pair, phase, place.tensor_grid(0, 0))
    tasks = pair.count
    if iteration.compute_s > 0:
        tasks += p.tensor
    pairs = 2 * p.pipeline * p.virtual_stages * p.micro_batches * p.data * job.pairs_per_pass
    program.check_count(pairs * tasks)
    program.check_runs(pairs * len(iteration.each_micro_batch))
    for replica in range(p.data):
        _emit_replica(program, iteration, job, replica)
    for phase in iteration.sync:
        for stage in range(p.pipeline):
            named = replace(phase, stage=f"stage {stage}", step="gradients")
            grids = [place.data_grid(stage, rank) for rank in range(p.tensor)]
            run(program, named, *grids)
    return program.schedule(job.name, iteration)


def _emit_replica(program: Program, iteration: Iteration, job: GptJob, replica: int) -> None:
    """Emit a replica's passes: in each, its AllGather and ReduceScatter by turns, with computing between them."""
    all_gather, reduce_scatter = [replace(phase, repeats=1) for phase in iteration.each_micro_batch]
    groups = job.placement.gpus[:, replica].tolist()
    grids = [job.placement.tensor_grid(stage, replica) for stage in range(iteration.stages)]

    def run_pass(stage: int, step: Pass, compute_s: float) -> None:
        where = f"stage {stage}, replica {replica}"
        gather = replace(all_gather, stage=where, step=step.name)
        scatter = replace(reduce_scatter, stage=where, step=step.name)
        for _ in range(job.pairs_per_pass):
            run(program, gather, grids[stage])
            # the computing counts to the phase of the ReduceScatter
            run(program, scatter, grids[stage], compute_s=compute_s / job.pairs_per_pass)

    emit_pipeline(program, iteration, groups, run_pass, backward=2.0)


@WORKLOADS.register("gpt")
class GptSpec(Training):
    """An iteration of a dense model. `bytes` is D of each AllGather and ReduceScatter as merged.

    Left out: t = the GPUs of an HB domain, p = the smallest divisor of the number of domains above 1, d = the rest,
    four micro-batches of the model's own size (or of `micro_batch` sequences; as many as `global_batch` has, whatever
    d); as many layers at a stage as in the published job. A pass (a micro-batch through a stage, one way) has
    `pairs_per_pass` AllGather and ReduceScatter, which carry the bytes of all its layers.

    A model of kind transformer has no published job: at full size it is this fabric's job with all layers of the model.
    """

    model: NameOrPath = "gpt-145.6b"
    parallelism: Parallelism | None = None
    global_batch: Count | None = None
    micro_batch: Count | None = None
    layers_per_stage: Count | None = None
    pairs_per_pass: Count = 1

    @field_validator("global_batch", "micro_batch")
    @classmethod
    def _check_batch(cls, batch: int | None, info: ValidationInfo) -> int | None:
        if batch is not None and info.data.get("parallelism") is not None:
            raise ValueError("can't be given together with parallelism, which has its own")
        return batch

    def traits(self) -> dict[str, str]:
        traits = {"global_batch": "", "micro_batch": ""}
        if self.global_batch:
            traits["global_batch"] = f"batch {self.global_batch}"
        if self.micro_batch:
            traits["micro_batch"] = f"micro-batch {self.micro_batch}"
        return traits

    def state_parameters(self, scale: Scale) -> float:
        layers = scale.shape["layers_per_stage"].emulated
        tensor = scale.shape["tensor"].emulated
        return layers * load_dense(self.model).layer_parameters / tensor

    def build(self, setting: Setting) -> Built:
        model = load_dense(self.model, f"{setting.field}.model")
        fabric = setting.fabric
        field = setting.field
        chosen = self.parallelism or _default_parallelism(model, fabric, self.global_batch, self.micro_batch)
        placement_field = f"{field}.parallelism" if self.global_batch is None else field
        placement = place(chosen, fabric.domains, fabric.rails, placement_field)
        check_heads(model, chosen, f"{field}.parallelism")
        check_dense(chosen, f"{field}.parallelism")
        published_layers = model.layers // chosen.pipeline
        published = placement
        if isinstance(model, GptModel):
            published_layers = model.layers // model.training.pipeline
            published_domains = model.training.gpus // model.domain_gpus
            published = place(model.training, published_domains, model.domain_gpus, f"{field}.model: training")
        if not published_layers:
            allowed = f"must be at most the {model.layers} layers of the model"
            raise BadInput(f"{field}.parallelism.pipeline", chosen.pipeline, allowed)
        layers = self.layers_per_stage or published_layers
        if layers % chosen.virtual_stages:
            allowed = f"must divide the {layers} layers of a stage"
            raise BadInput(f"{field}.parallelism.virtual_stages", chosen.virtual_stages, allowed)

        def job(placement: Layout, layers: int, pairs_per_pass: int | None = None) -> GptJob:
            flops = setting.platform.flops * self.efficiency
            whole_job = gpt_job(model, self.label(), placement, layers, flops, pairs_per_pass)
            return replace(whole_job, compute_s=whole_job.compute_s * self.compute)

        emulated_job = job(placement, layers, self.pairs_per_pass)
        published_job = job(published, published_layers)
        factor = self.bytes_factor(
            setting, emulated_job.gather_bytes, lambda rates: line_rate_duration_s(gpt_schedule(emulated_job), rates)
        )
        real = published_job.shape(published_layers)
        emulated = emulated_job.shape(layers)
        shape = {name: Factor(real[name], emulated[name]) for name in real}
        iteration = gpt_iteration(published_job)
        flops = setting.platform.flops * self.efficiency
        full_s = gpt_job(model, self.label(), published, published_layers, flops).compute_s
        kept = {"compute_kept": self.compute, "full_compute_s": full_s}
        scale = setting.scale(self.label(), factor, shape=shape, real=iteration, **kept)
        return Built(gpt_schedule(emulated_job.scaled(factor, scale.time_factor)), scale)


def _default_parallelism(
    model: Dense, fabric: FabricSpec, global_batch: int | None, micro_batch: int | None
) -> Parallelism:
    pipeline = next(p for p in range(2, fabric.domains + 1) if fabric.domains % p == 0)
    data = fabric.domains // pipeline
    micro = micro_batch or (model.training.micro_batch if isinstance(model, GptModel) else 1)
    batch = global_batch or MICRO_BATCHES * data * micro
    return Parallelism(tensor=fabric.rails, pipeline=pipeline, data=data, micro_batch=micro, global_batch=batch)
