"""From a workload's spec to its schedule on a fabric, with the record of what was scaled down for it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from railyard.core.errors import BadInput
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import collective_schedule
from railyard.workloads.collectives.stages import whole_bytes
from railyard.workloads.jobs.data_parallel import (
    DataParallelJob,
    buckets,
    data_parallel_iteration,
    data_parallel_schedule,
)
from railyard.workloads.jobs.gpt import GptJob, gpt_iteration, gpt_job
from railyard.workloads.jobs.gpt_tasks import gpt_schedule
from railyard.workloads.jobs.moe import MoeJob, moe_iteration, moe_job, moe_schedule, zipf_shares
from railyard.workloads.jobs.transfers import pairs, transfers_schedule
from railyard.workloads.matrix.pace import line_rate_duration_s
from railyard.workloads.models.catalogue import GptModel, MoeModel, check_heads, load_gpt, load_layers, load_moe
from railyard.workloads.placement.parallelism import Parallelism, Placement, place
from railyard.workloads.scale import Factor, Rates, Scale, payload_rates, real_rates
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import (
    CollectiveSpec,
    DataParallelSpec,
    GptSpec,
    MoeSpec,
    TraceSpec,
    TransfersSpec,
    Workload,
    auto_all_to_all,
)
from railyard.workloads.traces.build import lowered_trace
from railyard.workloads.traces.lower import Lowered

MICRO_BATCHES: Final = 4
PROBE_BYTES: Final = 10**9


def build(
    spec: Workload, fabric: FabricSpec, rail_bps: int, hb_bps: int, field: str = "workload", seed: int = 0
) -> tuple[Schedule, Scale]:
    """The schedule on a fabric with these link rates (bit/s), and its scale; BadInput names fields below `field`.

    Two fabrics of the same size and rates get the same bytes, whatever their kinds. The seed decides who sends to whom
    in shuffled `transfers`, and which experts of a `moe` are popular, and nothing else.
    """
    emulated = payload_rates(hb_bps, rail_bps, fabric.mtu)
    real = real_rates(PLATFORMS[fabric.platform], emulated)
    if isinstance(spec, GptSpec):
        return _gpt(spec, fabric, real, emulated, field)
    if isinstance(spec, MoeSpec):
        return _moe(spec, fabric, real, emulated, field, seed)
    if isinstance(spec, DataParallelSpec):
        return _data_parallel(spec, fabric, real, emulated, field)
    if isinstance(spec, TraceSpec):
        lowered, scale = build_trace(spec, fabric, rail_bps, hb_bps, field)
        return lowered.schedule, scale
    if isinstance(spec, TransfersSpec):
        return _transfers(spec, fabric, real, emulated, field, seed)
    return _collective(spec, fabric, real, emulated)


def build_trace(
    spec: TraceSpec, fabric: FabricSpec, rail_bps: int, hb_bps: int, field: str = "workload"
) -> tuple[Lowered, Scale]:
    """As `build`, with the trace itself and which tasks each of its operations became."""
    emulated = payload_rates(hb_bps, rail_bps, fabric.mtu)
    return lowered_trace(spec, fabric, real_rates(PLATFORMS[fabric.platform], emulated), emulated, field)


def _bytes_factor(
    spec: GptSpec | MoeSpec | DataParallelSpec | CollectiveSpec,
    unscaled_bytes: float,
    unscaled: Callable[[], Schedule],
    real: Rates,
    emulated: Rates,
) -> float:
    """Emulated over unscaled bytes: as the spec says, or such that the whole takes the wished-for time."""
    if spec.bytes is not None:
        return spec.bytes / unscaled_bytes
    time_factor = spec.target_duration_s / line_rate_duration_s(unscaled(), real, "dr")
    return time_factor * emulated.rail / real.rail


def _collective(spec: CollectiveSpec, fabric: FabricSpec, real: Rates, emulated: Rates) -> tuple[Schedule, Scale]:
    """A collective has no size of its own: the same bytes are projected to the real platform."""
    chosen = spec.resolve_algorithm(fabric)
    sizing_collective = "all-to-all-two-phase" if chosen == "all-to-all" else chosen
    m, k = fabric.domains, fabric.rails
    factor = _bytes_factor(
        spec,
        PROBE_BYTES,
        lambda: collective_schedule(sizing_collective, m, k, PROBE_BYTES, spec.in_flight),
        real,
        emulated,
    )
    schedule = collective_schedule(chosen, m, k, PROBE_BYTES * factor, spec.in_flight)
    return schedule, Scale(chosen, fabric.platform, real, emulated, bytes_factor=1.0)


def _transfers(
    spec: TransfersSpec, fabric: FabricSpec, real: Rates, emulated: Rates, field: str, seed: int
) -> tuple[Schedule, Scale]:
    """As of a collective, the same bytes are projected to the real platform."""
    chosen = pairs(spec, fabric, seed, field)
    size = spec.bytes or whole_bytes(spec.target_duration_s * emulated.rail)
    schedule = transfers_schedule(fabric.domains, fabric.rails, chosen, size, spec.stripes, spec.rounds)
    return schedule, Scale(spec.kind, fabric.platform, real, emulated, bytes_factor=1.0)


def _gpt(spec: GptSpec, fabric: FabricSpec, real: Rates, emulated: Rates, field: str) -> tuple[Schedule, Scale]:
    model = load_gpt(spec.model, f"{field}.model")
    chosen = spec.parallelism or _default_parallelism(model, fabric, spec.global_batch)
    placement_field = f"{field}.parallelism" if spec.global_batch is None else field
    placement = place(chosen, fabric.domains, fabric.rails, placement_field)
    check_heads(model, chosen.tensor, f"{field}.parallelism")
    published_layers = model.layers // model.training.pipeline
    layers = spec.layers_per_stage or published_layers
    if layers % chosen.virtual_stages:
        allowed = f"must divide the {layers} layers of a stage"
        raise BadInput(f"{field}.parallelism.virtual_stages", chosen.virtual_stages, allowed)
    flops = PLATFORMS[fabric.platform].flops * spec.efficiency
    emulated_job = gpt_job(model, spec.model, placement, layers, flops, spec.pairs_per_pass)
    emulated_job = replace(emulated_job, compute_s=emulated_job.compute_s * spec.compute)
    published_job = gpt_job(model, spec.model, _published(model, f"{field}.model"), published_layers, flops)
    published_job = replace(published_job, compute_s=published_job.compute_s * spec.compute)
    factor = _bytes_factor(spec, emulated_job.gather_bytes, lambda: gpt_schedule(emulated_job), real, emulated)
    scale = Scale(
        workload=spec.model,
        platform=fabric.platform,
        real_rates=real,
        emulated_rates=emulated,
        bytes_factor=factor,
        shape=_gpt_shape(published_job, published_layers, emulated_job, layers),
        compute_kept=spec.compute,
        real=gpt_iteration(published_job),
    )
    return gpt_schedule(emulated_job.scaled(factor, scale.time_factor)), scale


def _published(model: GptModel, field: str) -> Placement:
    """Where the published job put its ranks."""
    return place(model.training, model.training.gpus // model.domain_gpus, model.domain_gpus, f"{field}: training")


def _default_parallelism(model: GptModel, fabric: FabricSpec, global_batch: int | None) -> Parallelism:
    """See `GptSpec`."""
    pipeline = next(p for p in range(2, fabric.domains + 1) if fabric.domains % p == 0)
    data = fabric.domains // pipeline
    micro_batch = model.training.micro_batch
    return Parallelism(
        tensor=fabric.rails,
        pipeline=pipeline,
        data=data,
        micro_batch=micro_batch,
        global_batch=global_batch or MICRO_BATCHES * data * micro_batch,
    )


def _gpt_shape(
    published_job: GptJob, published_stage_layers: int, emulated_job: GptJob, layers: int
) -> dict[str, Factor]:
    """Step 1 of a scale: what the emulated job has fewer of."""

    def counts(job: GptJob, layers_per_stage: int) -> dict[str, int]:
        p = job.placement.parallelism
        return {
            "gpus": p.gpus,
            "domain_gpus": job.placement.rails,
            "tensor": p.tensor,
            "pipeline": p.pipeline,
            "data": p.data,
            "virtual_stages": p.virtual_stages,
            "layers": layers_per_stage * p.pipeline,
            "layers_per_stage": layers_per_stage,
            "micro_batches": p.micro_batches,
            "collectives_per_stage_and_micro_batch": 4 * p.virtual_stages * job.pairs_per_pass,
        }

    real, emulated = counts(published_job, published_stage_layers), counts(emulated_job, layers)
    return {name: Factor(real[name], emulated[name]) for name in real}


def _moe(
    spec: MoeSpec, fabric: FabricSpec, real: Rates, emulated: Rates, field: str, seed: int
) -> tuple[Schedule, Scale]:
    model = load_moe(spec.model, f"{field}.model")
    if spec.all_to_alls > model.all_to_alls:
        allowed = f"must be {model.all_to_alls} or less: the model has no more in a step"
        raise BadInput(f"{field}.all_to_alls", spec.all_to_alls, allowed)
    chosen = auto_all_to_all(fabric) if spec.algorithm == "auto" else spec.algorithm
    flops = PLATFORMS[fabric.platform].flops * spec.efficiency
    emulated_job = _moe_job(spec, model, fabric.domains, fabric.rails, spec.all_to_alls, flops)
    published_job = _moe_job(spec, model, model.gpus // model.domain_gpus, model.domain_gpus, model.all_to_alls, flops)
    factor = _bytes_factor(spec, emulated_job.pair_bytes, lambda: moe_schedule(emulated_job), real, emulated)

    def with_algorithm(job: MoeJob) -> MoeJob:
        if spec.skew:
            return replace(job, two_phase=False, shares=zipf_shares(job.domains * job.rails, spec.skew, seed))
        return replace(job, two_phase=chosen == "two-phase")

    scale = Scale(
        workload=spec.model,
        platform=fabric.platform,
        real_rates=real,
        emulated_rates=emulated,
        bytes_factor=factor,
        shape={
            "gpus": Factor(model.gpus, fabric.gpus),
            "experts": Factor(model.experts, fabric.gpus),
            "domain_gpus": Factor(model.domain_gpus, fabric.rails),
            "all_to_alls": Factor(model.all_to_alls, spec.all_to_alls),
        },
        compute_kept=spec.compute,
        real=moe_iteration(with_algorithm(published_job)),
    )
    return moe_schedule(with_algorithm(emulated_job).scaled(factor, scale.time_factor)), scale


def _moe_job(spec: MoeSpec, model: MoeModel, domains: int, rails: int, all_to_alls: int, flops_per_s: float) -> MoeJob:
    """Two-phase, for sizing; the caller says what really runs."""
    job = moe_job(model, spec.model, domains, rails, True, all_to_alls, flops_per_s)
    return replace(job, compute_s=job.compute_s * spec.compute)


def _data_parallel(
    spec: DataParallelSpec, fabric: FabricSpec, real: Rates, emulated: Rates, field: str
) -> tuple[Schedule, Scale]:
    """The model says nothing of a cluster: it is projected to the real platform with as many GPUs as are emulated."""
    model = load_layers(spec.model, f"{field}.model")
    job = DataParallelJob(spec.model, fabric.domains, fabric.rails, buckets(model, spec.bucket))
    factor = _bytes_factor(spec, max(job.bucket_bytes), lambda: data_parallel_schedule(job), real, emulated)
    scale = Scale(spec.model, fabric.platform, real, emulated, factor, real=data_parallel_iteration(job))
    return data_parallel_schedule(job.scaled(factor)), scale
