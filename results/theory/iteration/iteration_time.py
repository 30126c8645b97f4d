"""Rail-only Eq. 6 to 11 with latency, for many strategies at once."""

from dataclasses import dataclass

import numpy as np

from railyard.results.theory import equations as eq
from railyard.results.theory.iteration.arrays import FloatArray, Strategies
from railyard.results.theory.iteration.efficiency import ComputeParts, micro_batch_parts, optimizer_parts
from railyard.results.theory.iteration.job import Job
from railyard.results.theory.iteration.memory import stage_parameters
from railyard.workloads.collectives.all_gather import all_gather_s
from railyard.workloads.collectives.all_reduce import all_reduce_s
from railyard.workloads.models.catalogue import FP16_BYTES


@dataclass(frozen=True)
class IterationTime:
    """The terms of Rail-only Eq. 6, and the optimizer's step, which it leaves out; seconds, an array each."""

    bubble_compute_s: FloatArray
    bubble_network_s: FloatArray
    last_stage_compute_s: FloatArray
    last_stage_network_s: FloatArray
    sync_s: FloatArray
    optimizer_s: FloatArray

    @property
    def compute_s(self) -> FloatArray:
        return self.bubble_compute_s + self.last_stage_compute_s + self.optimizer_s

    @property
    def network_s(self) -> FloatArray:
        return self.bubble_network_s + self.last_stage_network_s + self.sync_s

    @property
    def total_s(self) -> FloatArray:
        return self.compute_s + self.network_s


def iteration_time(job: Job, s: Strategies) -> IterationTime:
    """Rail-only Eq. 6: bubble (7, 8), last stage (9, 10), synchronisation (11)."""
    c, m, p, v = job.cluster.constants, s.micro_batches, s.pipeline, s.virtual_stages
    t_b = micro_batch_parts(job, s).seconds(c)
    boundary = np.where(p > 1, FP16_BYTES * s.micro_batch * job.model.hidden * job.model.sequence / s.tensor, 0.0)
    return IterationTime(
        bubble_compute_s=eq.bubble_compute_s(p, v, t_b),
        bubble_network_s=_bubble_network_s(job, s, boundary),
        last_stage_compute_s=eq.last_stage_compute_s(m, t_b),
        last_stage_network_s=_last_stage_network_s(job, s, boundary),
        sync_s=_sync_s(job, s),
        optimizer_s=optimizer_parts(job, stage_parameters(job, s)).seconds(c),
    )


def compute_parts(job: Job, s: Strategies) -> ComputeParts:
    """All computing of an iteration: (m + (p - 1)/v) t(b) and the optimizer's step, before any constant."""
    one, step = micro_batch_parts(job, s), optimizer_parts(job, stage_parameters(job, s))
    times = s.micro_batches + (s.pipeline - 1) / s.virtual_stages
    return ComputeParts(
        times * one.matmul_s + step.matmul_s,
        times * one.memory_s + step.memory_s,
        times * one.pass_s + step.pass_s,
    )


def _bubble_network_s(job: Job, s: Strategies, boundary: FloatArray) -> FloatArray:
    k = job.cluster
    sent = eq.bubble_network_s(boundary, s.pipeline_network, s.pipeline_hb, k.hb_bytes_per_s, k.rail_bytes_per_s)
    hb, rail = k.constants.hb_latency_s, k.constants.rail_latency_s
    return sent + eq.bubble_latency_s(s.pipeline_network, s.pipeline_hb, hb, rail)


def _last_stage_network_s(job: Job, s: Strategies, boundary: FloatArray) -> FloatArray:
    k, m, v = job.cluster, s.micro_batches, s.virtual_stages
    gathered = FP16_BYTES * s.micro_batch * job.model.hidden * job.model.sequence
    gather = all_gather_s(gathered, s.tensor_hb, s.tensor_network, k.hb_bytes_per_s, k.rail_bytes_per_s)
    late = eq.all_gather_latency_s(s.tensor_hb, s.tensor_network, k.constants.hb_latency_s, k.constants.rail_latency_s)
    # Eq. 10 has 4 AllGather and 4 ReduceScatter; a forward that is done again has 2 + 2 more
    gathers = 12 if job.recipe.recompute == "full" else 8
    collectives = gathers * job.model.layers / s.pipeline * (gather + late)
    leaves = s.pipeline_network > 1
    bytes_per_s = np.where(leaves, k.rail_bytes_per_s, k.hb_bytes_per_s)
    sent = eq.last_stage_network_s(m, collectives, v, boundary, bytes_per_s)
    hop = np.where(leaves, k.constants.rail_latency_s, k.constants.hb_latency_s)
    return sent + np.where(s.pipeline > 1, 2 * m * v * hop, 0.0)


def _sync_s(job: Job, s: Strategies) -> FloatArray:
    """Eq. 11, with the first stage's embedding among its parameters."""
    k = job.cluster
    size = job.recipe.gradient_bytes * stage_parameters(job, s)
    sent = all_reduce_s(size, s.data_hb, s.data_network, k.hb_bytes_per_s, k.rail_bytes_per_s)
    late = eq.all_gather_latency_s(s.data_hb, s.data_network, k.constants.hb_latency_s, k.constants.rail_latency_s)
    return sent + 2 * late
