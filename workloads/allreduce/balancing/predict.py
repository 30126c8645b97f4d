"""How long an allreduce takes on one rail, and on several at once.

Source: Nezha Eq. 1 to 6. On one rail the time is a straight line in the bytes, `Cost`; what several rails do follows
from their lines alone. Units: bytes of the buffer (not of the wire), seconds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from railyard.workloads.allreduce.balancing.rails import Rail

TAU: Final = 5.0
"""Nezha section 2.3.1: beyond this ratio of throughputs, what a split gains is lost again in waiting."""
_LARGEST: Final = 2.0**60


@dataclass(frozen=True, slots=True)
class Cost:
    """`setup_s + size * s_per_byte`: the line of one rail."""

    setup_s: float
    s_per_byte: float

    def __post_init__(self) -> None:
        if not (self.setup_s >= 0 and self.s_per_byte > 0):
            raise ValueError(f"{self}: a rail's set-up is 0 or more, its time per byte above 0")

    def seconds(self, size: float) -> float:
        return self.setup_s + size * self.s_per_byte


def allreduce_cost(rail: Rail, nodes: int) -> Cost:
    """A ring has 2(N-1) messages in a row and moves 2(N-1)/N of the buffer (Eq. 1); a tree has two, and moves it once.

    Up and down the tree overlap: chunks stream through the aggregator while the link is full duplex.
    """
    if nodes < 2:
        raise ValueError(f"nodes: {nodes} must be 2 or more; one node has nothing to send")
    if rail.sums_in_network:
        return Cost(2 * rail.setup_s, rail.s_per_byte)
    return Cost(2 * (nodes - 1) * rail.setup_s, 2 * (nodes - 1) / nodes * rail.s_per_byte)


def network_efficiency(cost: Cost, size: float) -> float:
    """Eq. 2: the share of the time in which bytes move, 0 to 1."""
    return size * cost.s_per_byte / cost.seconds(size) if size else 0.0


def fastest_rail(costs: Sequence[Cost], size: float, alive: Iterable[int] | None = None) -> int:
    """Eq. 4: the rail that takes the whole buffer in the least time; a tie goes to the first."""
    return min(range(len(costs)) if alive is None else alive, key=lambda rail: costs[rail].seconds(size))


def split_seconds(costs: Sequence[Cost], shares: Sequence[float], size: float) -> float:
    """Eq. 5: the slowest of the rails that have a share."""
    return max(cost.seconds(share * size) for cost, share in zip(costs, shares, strict=True) if share > 0)


def equal_finish_s(costs: Sequence[Cost], size: float) -> float:
    """The least that Eq. 5 can be: the time at which all rails that take part end together.

    A rail takes part if its set-up alone is less than that. (Water that finds its level in vessels of unlike depth.)
    """
    ordered = sorted(costs, key=lambda cost: cost.setup_s)
    speed = setup_bytes = 0.0
    best = math.inf
    for cost in ordered:
        if cost.setup_s >= best:
            break
        speed += 1 / cost.s_per_byte
        setup_bytes += cost.setup_s / cost.s_per_byte
        best = (size + setup_bytes) / speed
    return best


def ideal_shares(costs: Sequence[Cost], size: float) -> tuple[float, ...]:
    """The shares that reach `equal_finish_s`; they sum to one."""
    if size <= 0:
        first = fastest_rail(costs, 0)
        return tuple(float(rail == first) for rail in range(len(costs)))
    end = equal_finish_s(costs, size)
    bytes_of = [max(0.0, (end - cost.setup_s) / cost.s_per_byte) for cost in costs]
    return tuple(part / sum(bytes_of) for part in bytes_of)


def threshold(costs: Sequence[Cost], gain: float = 0.0) -> float | None:
    """Eq. 6: bytes up to which the best split gains no more than the part `gain` of its time over one rail.

    None where no size gains as much: a single rail, or rails too unlike. By itself (`gain` 0) it has like rails split
    from the first byte on. Unlike rails may gain in a band of sizes below, which isn't looked for.
    """
    if len(costs) < 2:
        return None
    low, high = 0.0, 1.0
    while not _split_pays(costs, high, gain):
        low, high = high, high * 2
        if high > _LARGEST:
            return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _split_pays(costs, middle, gain) else (middle, high)
    return low


def _split_pays(costs: Sequence[Cost], size: float, gain: float) -> bool:
    return costs[fastest_rail(costs, size)].seconds(size) > equal_finish_s(costs, size) * (1 + gain + 1e-12)


def efficiency_ratio(costs: Sequence[Cost], size: float) -> tuple[float, ...]:
    """Eq. 3: by how much the fastest rail's throughput exceeds each rail's, with the buffer shared out evenly.

    The paper's `S_i * delta_i / T_i` is bytes by the time they really take, since delta is the ideal by the real one.
    """
    seconds = [cost.seconds(size / len(costs)) for cost in costs]
    fastest_s = min(seconds)
    return tuple(1.0 if time == fastest_s else time / fastest_s if fastest_s else math.inf for time in seconds)


def rails_to_split(costs: Sequence[Cost], size: float, gain: float = 0.0) -> tuple[int, ...]:
    """The rails to share `size` bytes: those within `TAU` of the fastest, if the best split takes less time than one
    alone, by the part `gain` of the split's time; else none."""
    if len(costs) < 2 or size <= 0:
        return ()
    candidates = tuple(rail for rail, ratio in enumerate(efficiency_ratio(costs, size)) if ratio <= TAU)
    if len(candidates) < 2 or not _split_pays([costs[rail] for rail in candidates], size, gain):
        return ()
    return candidates
