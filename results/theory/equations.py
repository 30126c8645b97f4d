"""Rail-only's equations, one function each. Times in seconds, data in bytes, bandwidths in bytes a second.

`hb` is C_F and `rail` C_S, per GPU and direction; a grid has x GPUs of each of y HB domains (Tables I and III).
Eq. 1 and 7 to 11 also take arrays, as the search over strategies needs them. The equations print transmission alone;
what latency adds, which the paper says it counts too, is a function of its own beside each.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

N = TypeVar("N", float, NDArray[np.float64])
"""A number, or an array of them; all arguments of a call alike."""


def all_gather_s(data_bytes: N, x: N, y: N, hb_bytes_per_s: float, rail_bytes_per_s: float) -> N:
    """Rail-only Eq. 1: hierarchical AllGather of `data_bytes` (the whole gathered data); ReduceScatter takes as long.

    With x = 1 it is a ring on a rail, with y = 1 a ring in an HB domain.
    """
    on_rails = (y - 1) * data_bytes / (x * y * rail_bytes_per_s)
    in_domains = (x - 1) * data_bytes / (x * hb_bytes_per_s)
    return on_rails + in_domains


def all_gather_latency_s(x: N, y: N, hb_latency_s: float, rail_latency_s: float) -> N:
    """What latency adds to Eq. 1: a ring of y has y - 1 steps, one after the other, and each waits for a hop."""
    return (y - 1) * rail_latency_s + (x - 1) * hb_latency_s


def all_reduce_s(data_bytes: N, x: N, y: N, hb_bytes_per_s: float, rail_bytes_per_s: float) -> N:
    """Rail-only Eq. 11: AllReduce as ReduceScatter and AllGather, twice Eq. 1."""
    return 2 * all_gather_s(data_bytes, x, y, hb_bytes_per_s, rail_bytes_per_s)


def all_to_all_direct_s(pair_bytes: float, x: int, y: int, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
    """Rail-only Eq. 2: uniform all-to-all on rail-optimized, each GPU straight to all others at full bisection."""
    in_domain = (x - 1) * pair_bytes / hb_bytes_per_s
    on_rails = x * (y - 1) * pair_bytes / rail_bytes_per_s
    return max(in_domain, on_rails)


def all_to_all_two_phase_s(pair_bytes: float, x: int, y: int, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
    """Rail-only Eq. 3, as printed: uniform all-to-all on rail-only, HB domains first, then rails.

    Over Eq. 2 (where rails decide that) it costs exactly the share y (x-1) C_S / (x (y-1) C_F), which
    `forwarding_share` gives; the paper's C_S/C_F is the limit for x = y.
    """
    forwarding = y * (x - 1) * pair_bytes / hb_bytes_per_s
    on_rails = x * (y - 1) * pair_bytes / rail_bytes_per_s
    return forwarding + on_rails


def forwarding_share(x: int, y: int, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
    """Rail-only section IV-B: what Eq. 3 adds to Eq. 2, as a share of Eq. 2.

    The text says 8.2% and 11.2% for A100 and H100; at x = 8, y = 16 it is 7.78% and 10.37%, and C_S/C_F 8.33% and
    11.11%.
    """
    direct = all_to_all_direct_s(1.0, x, y, hb_bytes_per_s, rail_bytes_per_s)
    return all_to_all_two_phase_s(1.0, x, y, hb_bytes_per_s, rail_bytes_per_s) / direct - 1


def all_to_all_in_rail_s(pair_bytes: float, y: int, rail_bytes_per_s: float) -> float:
    """The second term of Rail-only Eq. 3 for `pair_bytes` between each two GPUs of a rail."""
    return (y - 1) * pair_bytes / rail_bytes_per_s


def all_to_all_forwarded_s(pair_bytes: float, x: int, y: int, hb_bytes_per_s: float, rail_bytes_per_s: float) -> float:
    """Our own lower bound: direct all-to-all whose cross-rail packets are forwarded on the way (dr, rd, pxn).

    A GPU's HB port carries (x-1) D to its own domain and (x-1)(y-1) D to be forwarded, its rail port x (y-1) D. Both
    run at the same time, so what takes longer bounds it: the larger term of Eq. 3, where two phases take their sum.
    """
    through_hb = ((x - 1) + (x - 1) * (y - 1)) * pair_bytes / hb_bytes_per_s
    on_rails = x * (y - 1) * pair_bytes / rail_bytes_per_s
    return max(through_hb, on_rails)


def all_to_all_thinned_s(pair_bytes: float, x: int, y: int, uplink_bytes_per_s: float) -> float:
    """Our own lower bound for direct all-to-all over thin spines: what crosses rails, through a rail's uplinks.

    `uplink_bytes_per_s`: of all uplinks of one rail switch together, one direction. Each of a rail's y GPUs sends
    (x-1)(y-1) D to other rails. Even load over the spines is assumed, which hashing doesn't promise.
    """
    return y * (x - 1) * (y - 1) * pair_bytes / uplink_bytes_per_s


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
    """What latency adds to Eq. 8: a hop for every boundary, filling and draining."""
    return 2 * (stages_network - 1) * rail_latency_s + 2 * stages_network * (stages_hb - 1) * hb_latency_s


def last_stage_compute_s(micro_batches: N, compute_s: N) -> N:
    """Rail-only Eq. 9: the last stage computes on every micro-batch; `compute_s` is t(b)."""
    return micro_batches * compute_s


def last_stage_network_s(
    micro_batches: N,
    collectives_s: N,
    virtual_stages: N,
    boundary_bytes: N,
    bytes_per_s: N,
) -> N:
    """Rail-only Eq. 10: collectives and pipeline traffic of the last stage.

    `collectives_s`: those of one micro-batch at a stage (8 l AGtime / p with tensor parallelism). `bytes_per_s` is C_*:
    C_S where the pipeline spans HB domains, else C_F. `boundary_bytes` is 0 where there is no pipeline.
    """
    collectives = micro_batches * collectives_s
    pipeline = 2 * micro_batches * virtual_stages * boundary_bytes / bytes_per_s
    return collectives + pipeline
