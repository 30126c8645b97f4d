"""Times of collectives as libraries reach them: latency and bandwidth by size, group size and tier.

A group has x GPUs in each of y HB domains. Sizes are as nccl-tests counts them: of an AllReduce the buffer, of an
AllGather and a ReduceScatter the whole of all ranks, of an all-to-all what a GPU sends, its own part included, of a
Broadcast and a Reduce the buffer. The time is a sum of four parts:

- latency: `base_s`, `step_s` for each step of a ring in the domain, `rail_base_s` for each doubling of the domains;
- bytes on links: of the tier that takes longer, since NCCL sends on both at the same time; with `forwarding`, an
  all-to-all does one after the other (Rail-only Eq. 3);
- efficiency: what of a link's rate a large message gets, less in small groups (`small_group`);
- pipelining: a message is cut into chunks, and filling the pipeline with the best number of them takes time in
  proportion to the square root of the bytes: 2 sqrt(latency x time of the bytes).

`ideal_s` is the last bytes' part alone at the full rate. fit.py has the constants.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce"]
OPERATIONS: Final[tuple[Operation, ...]] = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce",
)  # fmt: skip
ROOTED: Final[tuple[Operation, ...]] = ("broadcast", "reduce")
"""Those from one GPU to all or from all to one, along a chain through all GPUs."""


@dataclass(frozen=True, slots=True)
class Links:
    """Rates of a GPU's links into its HB domain and to its rail, bytes/s in each direction."""

    hb_bytes_per_s: float
    rail_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class CollectiveConstants:
    """Latency, efficiency and pipelining of collectives on a platform. Efficiencies are shares of a link's rate.

    `hb_efficiency` may be above 1 for an AllReduce: switches of NVLink that add take half of its traffic away. Other
    operations get `ring_efficiency`. `hb_pipeline` and `rail_pipeline`: square root of seconds. An AllReduce of fewer
    than `tree_bytes` over several domains runs by NCCL's trees, whose messages get `tree_efficiency` of the NICs.
    """

    base_s: float
    step_s: float
    hb_efficiency: float
    ring_efficiency: float
    small_group: float
    hb_pipeline: float
    rail_base_s: float
    rail_efficiency: float
    rail_pipeline: float
    tree_bytes: float = 0.0
    tree_efficiency: float = 1.0


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Seconds that the bytes of a collective take on a GPU's links of either tier, at full rate, and the ring's steps.

    `in_turn`: the tiers work one after the other.
    """

    hb_s: FloatArray
    rail_s: FloatArray
    steps: FloatArray
    in_turn: bool = False


def link_times(operation: Operation, size: Any, x: Any, y: Any, links: Links, forwarding: bool = False) -> LinkTimes:
    """Return the times of `size` bytes on the links of a GPU, for numbers or arrays.

    Args:
        operation: the collective.
        size: bytes, as nccl-tests counts them.
        x: GPUs of the group in each HB domain.
        y: HB domains of the group.
        links: rates of a GPU's links.
        forwarding: an all-to-all goes through HB domains to the rail of its destination, as on rail-only.
    """
    size_bytes = np.asarray(size, dtype=np.float64)
    gpus = np.asarray(x, dtype=np.float64)
    domains = np.asarray(y, dtype=np.float64)
    in_domain = (gpus - 1) / gpus
    across = (domains - 1) / domains
    if operation == "all-to-all":
        hb_bytes = size_bytes * in_domain
        if not forwarding:
            hb_bytes = hb_bytes / domains
        return LinkTimes(
            hb_bytes / links.hb_bytes_per_s,
            size_bytes * across / links.rail_bytes_per_s,
            gpus - 1,
            in_turn=forwarding,
        )
    if operation in ROOTED:
        # every GPU but the last hands on all bytes; a chain for each NIC of a domain shares them out
        hb_bytes = np.where(gpus > 1, size_bytes, 0.0)
        rail_bytes = np.where(domains > 1, size_bytes / gpus, 0.0)
        return LinkTimes(hb_bytes / links.hb_bytes_per_s, rail_bytes / links.rail_bytes_per_s, gpus - 1)
    # an AllReduce is a ReduceScatter and an AllGather
    passes = 2 if operation == "all-reduce" else 1
    return LinkTimes(
        passes * size_bytes * in_domain / links.hb_bytes_per_s,
        passes * size_bytes / gpus * across / links.rail_bytes_per_s,
        passes * (gpus - 1),
    )


def collective_s(
    operation: Operation,
    size: Any,
    x: Any,
    y: Any,
    links: Links,
    constants: CollectiveConstants,
    forwarding: bool = False,
) -> FloatArray:
    """Return the seconds of a collective as libraries reach them; arguments as of `link_times`."""
    ideal = link_times(operation, size, x, y, links, forwarding)
    gpus = np.asarray(x, dtype=np.float64)
    domains = np.asarray(y, dtype=np.float64)
    # switches that add take traffic from an AllReduce alone
    efficiency = constants.hb_efficiency
    if operation != "all-reduce":
        efficiency = min(efficiency, constants.ring_efficiency)
    hb_s = ideal.hb_s * (1 + constants.small_group / gpus) / efficiency
    rail_efficiency = np.full_like(ideal.rail_s, constants.rail_efficiency)
    if operation == "all-reduce":
        rail_efficiency = np.where(size < constants.tree_bytes, constants.tree_efficiency, rail_efficiency)
    rail_s = ideal.rail_s / rail_efficiency
    # libraries send on both tiers at the same time, unless one hands its data to the other
    bytes_s = np.maximum(hb_s, rail_s)
    if ideal.in_turn:
        bytes_s = hb_s + rail_s
    latency_s = constants.base_s + constants.step_s * ideal.steps + constants.rail_base_s * np.log2(domains)
    pipeline_s = constants.hb_pipeline * np.sqrt(ideal.hb_s) + constants.rail_pipeline * np.sqrt(ideal.rail_s)
    # a group of one GPU has nothing to send, and needs no start either
    alone = gpus * domains == 1
    return np.asarray(np.where(alone, 0.0, latency_s + pipeline_s + bytes_s))


def ideal_s(operation: Operation, size: Any, x: Any, y: Any, links: Links, forwarding: bool = False) -> FloatArray:
    """Return the seconds of a collective's bytes at the full rate of the tier that takes longer."""
    ideal = link_times(operation, size, x, y, links, forwarding)
    if ideal.in_turn:
        return np.asarray(ideal.hb_s + ideal.rail_s)
    return np.asarray(np.maximum(ideal.hb_s, ideal.rail_s))


def bus_factor(operation: Operation, gpus: Any) -> FloatArray:
    """Return bus bandwidth x time / size (nccl-tests, doc/PERFORMANCE.md)."""
    ranks = np.asarray(gpus, dtype=np.float64)
    if operation in ROOTED:
        return np.ones_like(ranks)
    passes = 2 if operation == "all-reduce" else 1
    return np.asarray(passes * (ranks - 1) / ranks)
