"""What a GPU reaches of its data sheet: the few constants of the compute model, one set for each platform.

The A100's `matmul_efficiency`, `memory_efficiency` and `overhead_flops` are fitted, by `python -m
results.iteration.fit`, on the rows of measured.csv marked `fit`; never on those held out. No measured iteration of
another GPU was at hand: those take the shape of the A100's efficiency with their own peaks, which is an assumption.

Latencies are per hop of a ring or message, and assumed: 1 us in an HB domain and 2 us over a rail, as in calculon's
A100 and H100 systems (Isaev et al. 2023), whose approach Rail-only follows; it counts latency without saying how much.
"""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Constants:
    """Of one GPU. `memory_bytes_per_s` is the data sheet's; efficiencies are shares of the peak.

    `overhead_flops`: what a layer's pass takes beside its size (launches, ramps and tails of kernels), as FLOPs on top
    of its own. So matmuls reach `matmul_efficiency` x F/(F + overhead_flops) of the peak in a pass of F FLOPs.
    """

    matmul_efficiency: float
    memory_efficiency: float
    overhead_flops: float
    memory_bytes_per_s: float
    hb_latency_s: float = 1e-6
    rail_latency_s: float = 2e-6


A100: Final = Constants(
    matmul_efficiency=0.7013,
    memory_efficiency=0.8701,
    overhead_flops=1.151e11,
    memory_bytes_per_s=2039e9,  # A100 80 GB data sheet
)
CONSTANTS: Final = {
    "a100": A100,
    "h100": replace(A100, memory_bytes_per_s=3350e9),  # H100 SXM data sheet
    "gh200": replace(A100, memory_bytes_per_s=3350e9),  # Rail-only V-B: H100 GPUs, joined as in a DGX GH200
    "gb200-nvl72": replace(A100, memory_bytes_per_s=8000e9),  # GB200 NVL72 data sheet
    "mi300x": replace(A100, memory_bytes_per_s=5300e9),  # MI300X data sheet
}
"""By the name of topologies.platforms.PLATFORMS."""
