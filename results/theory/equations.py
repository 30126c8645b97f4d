"""Rail-only's equations of an iteration, Eq. 7 to 10, one function each; Eq. 1, 2, 3 and 11 are in
`railyard.workloads.collectives`, each beside its algorithm.

Times in seconds, data in bytes, bandwidths in bytes a second. `hb` is C_F and `rail` C_S, per GPU and direction. All
take arrays too, as the search over strategies needs them. The equations print transmission alone; what latency adds,
which the paper says it counts too, is a function of its own beside each.
"""

from railyard.workloads.collectives.all_gather import N


def all_gather_latency_s(x: N, y: N, hb_latency_s: float, rail_latency_s: float) -> N:
    """Latency added to Eq. 1: a ring of y has y - 1 steps, one after the other, and each waits for a hop."""
    return (y - 1) * rail_latency_s + (x - 1) * hb_latency_s


def bubble_compute_s(stages: N, virtual_stages: N, compute_s: N) -> N:
    """Rail-only Eq. 7: computing while the pipeline fills and drains; `compute_s` is t(b)."""
    return (stages - 1) * compute_s / virtual_stages


def bubble_network_s(
    boundary_bytes: N, stages_network: N, stages_hb: N, hb_bytes_per_s: float, rail_bytes_per_s: float
) -> N:
    """Rail-only Eq. 8: activations and gradients passed on while the pipeline fills and drains.

    The paper prints p_s and p_f, which nothing defines; meant are p_l (`stages_network`) and p_h (`stages_hb`) of its
    Table III. `boundary_bytes`: a micro-batch's 2 b h s / t.
    """
    over_rails = 2 * (stages_network - 1) * boundary_bytes / rail_bytes_per_s
    in_domains = 2 * stages_network * (stages_hb - 1) * boundary_bytes / hb_bytes_per_s
    return over_rails + in_domains


def bubble_latency_s(stages_network: N, stages_hb: N, hb_latency_s: float, rail_latency_s: float) -> N:
    """Latency added to Eq. 8: a hop for every boundary, filling and draining."""
    return 2 * (stages_network - 1) * rail_latency_s + 2 * stages_network * (stages_hb - 1) * hb_latency_s


def last_stage_compute_s(micro_batches: N, compute_s: N) -> N:
    """Rail-only Eq. 9: the last stage computes on every micro-batch; `compute_s` is t(b)."""
    return micro_batches * compute_s


def last_stage_network_s(micro_batches: N, collectives_s: N, virtual_stages: N, boundary_bytes: N, bytes_per_s: N) -> N:
    """Rail-only Eq. 10: collectives and pipeline traffic of the last stage.

    `collectives_s`: those of one micro-batch at a stage (8 l AGtime / p with tensor parallelism). `bytes_per_s` is C_*:
    C_S where the pipeline spans HB domains, else C_F. `boundary_bytes` is 0 where there is no pipeline.
    """
    collectives = micro_batches * collectives_s
    pipeline = 2 * micro_batches * virtual_stages * boundary_bytes / bytes_per_s
    return collectives + pipeline
