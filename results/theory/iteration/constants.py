"""What a GPU reaches of its data sheet: the few constants of the compute model, one set for each platform.

The A100's `matmul_efficiency`, `memory_efficiency` and `overhead_flops` are fitted, by `python -m
railyard.results.theory.iteration.fit`, on the rows of measured.csv marked `fit`; never on those held out. No measured
iteration of another GPU was at hand: those take the shape of the A100's efficiency with their own peaks, which is an
assumption. So does a platform of the user's, but for what its file gives; HBM bandwidth too is the A100's where the
file has none.

Latencies are per hop of a ring or message, and assumed: 1 us in an HB domain and 2 us over a rail, as in calculon's
A100 and H100 systems (Isaev et al. 2023), whose approach Rail-only follows; it counts latency without saying how much.
"""

from dataclasses import dataclass, fields, replace
from typing import Final

from railyard.topologies.platforms import Platform


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


def constants_of(platform: Platform) -> Constants:
    """What its file gives, and the A100's for the rest."""
    return replace(A100, **{name: value for name in _NAMES if (value := getattr(platform, name)) is not None})


def taken_from_a100(platform: Platform) -> tuple[str, ...]:
    """The constants that the platform's file leaves open."""
    return tuple(name for name in _NAMES if getattr(platform, name) is None)


_NAMES: Final = tuple(field.name for field in fields(Constants))
