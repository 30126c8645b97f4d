"""The rates that GPUs and links reach in training, by platform and number format.

`matmul_share`: share of the format's peak that large matmuls with parameters reach. In bf16 it is the same share of the
platform's fastest matmul on all platforms, fitted on nine published times of A100s. The low-precision shares of
efficiency.yaml were chosen on the releases 25.09 and 25.11 of Megatron-Bridge alone (calibration.py does it again).
"""

from dataclasses import dataclass
from functools import cache
from math import ceil
from statistics import NormalDist
from typing import Final

import yaml

from railyard.core.errors import BadInput, nearest_multiples, unknown_name_hint
from railyard.core.installation import data_file
from railyard.results.theory.collectives.fit import platform_constants
from railyard.results.theory.iteration.iteration_time import A100
from railyard.topologies.platforms import PLATFORMS, Precision

EFFICIENCY: Final = data_file("results/theory/step/efficiency.yaml")


@dataclass(frozen=True, slots=True)
class Hardware:
    """GPUs in HB domains. Rates per GPU and direction, in bytes/s; peaks in FLOP/s; latencies and times in s.

    precision: number format of matmuls with parameters; attention and the output layer stay in bf16
    bf16_flops, precise_flops: peaks in bf16 and in the number format of matmuls with parameters
    matmul_share, bf16_share: shares that matmuls with parameters in that format, and bf16 matmuls, reach of their peaks
    attention_share, attention_share_2022: shares of the bf16 peak that fused attention reaches today, and by its first
        kernels
    expert_share: share of `matmul_share` that matmuls of routed experts reach, being many and small
    pass_s: time of a layer's pass that doesn't depend on its size (launches, ramps and tails of kernels)
    moe_layer_s: the same of routing and permuting, for a MoE layer and micro-batch, all passes together
    moe_graph_s: the same where kernels are launched as CUDA graphs
    hb_bytes_per_s, rail_bytes_per_s: rates of HB links and of the NIC by the data sheet
    hb_share, rail_share: shares of these that large collectives get
    small_group: a ring of n GPUs in a domain gets 1/(1 + small_group/n) of that
    memory_share: share of the HBM's rate that all other kernels reach
    speed_spread: standard deviation of the speed of GPUs of a type, over the mean
    domain_sizes: GPUs of each HB domain that a job of several domains on this platform may take
    """

    gpus: int
    domain_gpus: int
    precision: Precision
    bf16_flops: float
    precise_flops: float
    hb_bytes_per_s: float
    rail_bytes_per_s: float
    hb_share: float
    rail_share: float
    small_group: float
    memory_bytes: float
    memory_bytes_per_s: float
    matmul_share: float
    bf16_share: float
    attention_share: float
    attention_share_2022: float
    expert_share: float
    memory_share: float
    pass_s: float
    moe_layer_s: float
    moe_graph_s: float
    hb_latency_s: float
    rail_latency_s: float
    speed_spread: float
    domain_sizes: tuple[int, ...]

    @property
    def waiting(self) -> float:
        """Time that the slowest of the GPUs computes, over the time of an average one. All GPUs wait for it in a step.

        The expected largest of as many normally distributed values (Blom 1958, Statistical Estimates and Transformed
        Beta-Variables).
        """
        if self.gpus == 1:
            return 1.0
        quantile = (self.gpus - 0.375) / (self.gpus + 0.25)
        return 1 + self.speed_spread * NormalDist().inv_cdf(quantile)

    @property
    def hb_rate(self) -> float:
        """Rate that large collectives get of HB links, bytes/s."""
        return self.hb_share * self.hb_bytes_per_s

    @property
    def rail_rate(self) -> float:
        """Rate that large collectives get of a NIC, bytes/s."""
        return self.rail_share * self.rail_bytes_per_s


@cache
def efficiency() -> dict[str, dict[str, float]]:
    """Return the shares by platform, and those of every platform under `all`."""
    shares: dict[str, dict[str, float]] = yaml.safe_load(EFFICIENCY.read_text("utf-8"))
    return shares


def make_hardware(platform: str, gpus: int, domain_gpus: int | None = None, precision: Precision = "bf16") -> Hardware:
    """Return the cluster. BadInput for an unknown platform, a part of an HB domain, or a format without a peak.

    platform: its name, or its file's path
    domain_gpus: GPUs of an HB domain; the platform's, or the largest number below it that divides `gpus`
    """
    if platform not in PLATFORMS:
        raise BadInput("platform", platform, f"{unknown_name_hint(platform, PLATFORMS)}, or the path of a .yaml file")
    p = PLATFORMS[platform]
    size = domain_gpus or largest_domain(gpus, p.domain_gpus)
    if gpus % size:
        # the nearest numbers that work are what the user needs next
        allowed = f"must be a multiple of the {size:,} GPUs of an HB domain: {nearest_multiples(gpus, size)}"
        fewest = _fewest_used(size)
        if not domain_gpus and fewest < size:
            allowed = f"must take {fewest:,} to {size:,} GPUs of each HB domain: {_nearest_evenly_used(gpus, size)}"
        raise BadInput("gpus", gpus, allowed)
    hb_share, rail_share, small_group = link_shares(p.name)
    shares = efficiency()["all"] | efficiency().get(p.name, {})
    bf16_share = p.matmul_efficiency or shares["training"] * shares["large_matmul"]
    overhead_flops = _or_default(p.overhead_flops, shares["overhead_flops"])
    return Hardware(
        gpus=gpus,
        domain_gpus=size,
        precision=precision,
        bf16_flops=p.flops,
        precise_flops=p.peak_flops(precision),
        hb_bytes_per_s=p.hb_bps / 8,
        rail_bytes_per_s=p.rail_bps / 8,
        hb_share=hb_share,
        rail_share=rail_share,
        small_group=small_group,
        memory_bytes=float(p.memory_bytes),
        memory_bytes_per_s=p.memory_bytes_per_s or A100.memory_bytes_per_s,
        matmul_share={**shares, "bf16": bf16_share}[precision],
        bf16_share=bf16_share,
        attention_share=shares["attention"],
        attention_share_2022=shares["attention_2022"],
        expert_share=shares["experts"],
        memory_share=p.memory_efficiency or shares["memory"],
        pass_s=overhead_flops / bf16_share / p.flops,
        moe_layer_s=shares["moe_layer_s"],
        moe_graph_s=shares["moe_graph_s"],
        hb_latency_s=_or_default(p.hb_latency_s, A100.hb_latency_s),
        rail_latency_s=_or_default(p.rail_latency_s, A100.rail_latency_s),
        speed_spread=shares["speed_spread"],
        domain_sizes=(size,) if domain_gpus else tuple(range(_fewest_used(p.domain_gpus), p.domain_gpus + 1)),
    )


def _nearest_evenly_used(gpus: int, domain_gpus: int) -> str:
    """Return the next numbers of GPUs that use as many of each HB domain, as `largest_domain` has it."""
    lower = next(n for n in range(gpus, 0, -1) if n % largest_domain(n, domain_gpus) == 0)
    higher = next(n for n in range(gpus, 2 * gpus + domain_gpus) if n % largest_domain(n, domain_gpus) == 0)
    return f"{lower:,} or {higher:,}"


def _or_default(value: float | None, default: float) -> float:
    """Return a value of a platform's file, which may be 0, or the default where the file leaves it out."""
    return default if value is None else value


def link_shares(platform: str) -> tuple[float, float, float]:
    """Return the shares of the data sheet's rates that collectives get of HB links and of NICs, and `small_group`.

    As measured with nccl-tests (results/theory/collectives).
    """
    constants = platform_constants(platform)
    return constants.ring_efficiency, constants.rail_efficiency, constants.small_group


def _fewest_used(domain_gpus: int) -> int:
    """Return the fewest GPUs of an HB domain that a job of several takes: 8 in 9, such as 64 of an NVL72."""
    return ceil(8 * domain_gpus / 9)


def largest_domain(gpus: int, domain_gpus: int) -> int:
    """Return how many GPUs of each HB domain a job of `gpus` uses: as many of its `domain_gpus` as divide `gpus`.

    A job of 256 GPUs takes 64 of the 72 of an NVL72. Fewer than 8 in 9 are never chosen: then the domain's own size is
    returned, which `make_hardware` refuses.
    """
    if gpus <= domain_gpus:
        return gpus
    for size in range(domain_gpus, _fewest_used(domain_gpus) - 1, -1):
        if gpus % size == 0:
            return size
    return domain_gpus
