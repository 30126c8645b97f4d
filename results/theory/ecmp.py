"""ECMP: how unevenly flows load the uplinks of rail switches, as hashed or assigned, and as measured.

A rail switch hashes each flow (a pair of GPUs) to one of its uplinks, so flows collide while other uplinks are idle:
balls into bins, whose fullest bin is well above the mean where flows are few. The papers' equations assume even shares.
Source: Raab and Steger, "Balls into Bins: A Simple and Tight Analysis", RANDOM 1998.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import Numbers, Sizes
from railyard.workloads.matrix.traffic_matrix import Way, rail_of_gpus

Spread = Literal["even", "expected"] | float
"""Loads of a switch's uplinks: even, the mean over hashes, or a measured `imbalance`. Where the policy assigns uplinks,
`expected` is what it assigns."""
HASH_DRAWS: Final = 1024
"""How many hashes an expectation is the mean of: all there are, if not more; a standard error of 1% or less."""
MOST_DRAWN: Final = 2**22  # flows, in all draws together


def imbalance(loads: NDArray[Any]) -> float:
    """Return the load of the busiest uplink over the mean of the switch that sends, or receives, most: 1 is even.

    `loads`: bytes, a row for each rail switch and direction, a column for each uplink.
    """
    if not loads.any():
        return 1.0
    return float(loads.max()) / float(loads.mean(axis=1).max())


def is_hashed(fabric: FabricSpec) -> bool:
    """Return whether rail switches have several uplinks and a hash decides which of them a flow takes."""
    if fabric.spine_count < 2:
        return False
    if fabric.rail_of_rank:
        # no policy that assigns uplinks is allowed there
        return True
    other_gpus = fabric.domains * (fabric.rails - 1)
    fewest_uplinks = min(len(fabric.uplinks(rank)) for rank in range(fabric.rails))
    return fewest_uplinks < other_gpus


def has_choice(fabric: FabricSpec) -> bool:
    """Return whether switches have several ways to a GPU, from which a hash or the policy chooses one for each flow."""
    if fabric.definition.is_graph:
        return fabric.graph.is_hashed
    return fabric.spine_count > 1


def hashes(flows: int, uplinks: int) -> Iterator[Numbers]:
    """Yield the uplink of each flow, for all hashes if they are few, else for random ones from a fixed seed."""
    if uplinks**flows <= HASH_DRAWS:
        yield from map(np.array, product(range(uplinks), repeat=flows))
    else:
        rng = np.random.default_rng(0)
        for _ in range(max(8, min(HASH_DRAWS, MOST_DRAWN // flows))):
            yield rng.integers(uplinks, size=flows)


def uplink_imbalance(
    routed: Sequence[tuple[Sizes, Sequence[Way]]], x: int, y: int, fabric: FabricSpec, spread: Spread
) -> float | None:
    """Return the `imbalance` of uplinks by pairs with these paths, among x GPUs of each of y domains.

    A pair is one flow. The fabric's other groups of x times y GPUs do the same at the same time. None where no bytes
    cross spines, or there are fewer than two.
    """
    uplinks = fabric.spine_count
    gpus = x * y
    pairs, sizes = _flows_over_spines(routed, x, gpus, fabric)
    if not len(pairs) or uplinks < 2:
        return None
    if spread == "even":
        return 1.0
    if isinstance(spread, float):
        return spread
    policy = FORWARDING_POLICIES[fabric.chosen_policy]
    shape = Fabric(fabric.kind, y, x, fabric.rail_of_rank[:x])
    distinct_pairs, entry = np.unique(pairs // gpus % x * gpus + pairs % gpus, return_inverse=True)
    assigned = [policy.uplink(pair // gpus, Gpu(*divmod(pair % gpus, x)), shape) for pair in distinct_pairs.tolist()]
    # groups in other domains use the same switches, groups on other rails use others
    groups = max(1, fabric.domains // y)
    columns = max(1, fabric.rails // x)
    first_rails = np.repeat(x * np.arange(columns), len(pairs))
    src = np.tile(rail_of_gpus(np.tile(pairs // gpus % x, columns) + first_rails, x * columns, fabric), groups)
    dst = np.tile(rail_of_gpus(np.tile(pairs % gpus % x, columns) + first_rails, x * columns, fabric), groups)
    switches = 2 * x * columns
    flow_bytes = np.tile(sizes, groups * columns)
    ends = np.concatenate([src, dst + x * columns]) * uplinks
    bytes_at_ends = np.tile(flow_bytes, 2)

    def imbalance_of(chosen: Numbers) -> float:
        """Return the imbalance with these uplinks, one for each flow."""
        loads = np.bincount(ends + np.tile(chosen, 2), bytes_at_ends, switches * uplinks)
        return imbalance(loads.reshape(switches, uplinks))

    if None not in assigned:
        return imbalance_of(np.tile(np.array(assigned, dtype=np.int64)[entry] % uplinks, groups * columns))
    return fmean(map(imbalance_of, hashes(len(flow_bytes), uplinks)))


def _flows_over_spines(
    routed: Sequence[tuple[Sizes, Sequence[Way]]], x: int, gpus: int, fabric: FabricSpec
) -> tuple[Numbers, NDArray[np.float64]]:
    """Return the pairs whose bytes cross spines, as sender times `gpus` plus receiver, and the bytes of each.

    A pair is one flow, however many stages use it.
    """
    keys = [np.empty(0, np.int64)]
    sizes = [np.empty(0)]
    for stage, ways in routed:
        for way in ways:
            crosses = rail_of_gpus(way.enter, x, fabric) != rail_of_gpus(way.leave, x, fabric)
            keys.append((stage.src * gpus + stage.dst)[crosses])
            sizes.append((way.share * stage.bytes)[crosses])
    pairs, place = np.unique(np.concatenate(keys), return_inverse=True)
    weights = np.concatenate(sizes)
    return pairs, np.bincount(place, weights, len(pairs)).astype(np.float64)
