"""Cost of an allreduce on one rail and on several: as predicted, as measured, and the shares that follow from it.

Source: Nezha Eq. 1 to 8; the paper's rails are in topologies/rail_kind.py. On one rail the time is a straight line in
the bytes, `Cost`. Units: bytes of the buffer (not of the wire), seconds, bytes per second.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.topologies.rail_kind import RAIL_KINDS

# Nezha section 2.3.1: beyond this ratio of throughputs, what a split gains is lost again in waiting
TAU: Final = 5.0
# part of the buffer: a smaller change of shares counts as none, and a smaller share is not given
MIN_SHARE_CHANGE: Final = 0.01
# bytes up to which a threshold is searched: no buffer is larger
_LARGEST: Final = 2.0**60
_DECAY: Final = 0.8
_PRIOR: Final = 0.01  # of a measured window's weight
_PRIOR_BYTES: Final = 2.0**20
_MAX_BYTE_SLOWDOWN: Final = 2.0
_MIN_S: Final = 1e-7
_MIN_S_PER_BYTE: Final = 1e-13


def size_class(size: int) -> int:
    """Return 0 for empty; k + 1 for sizes from 2^(k-1) + 1 to 2^k bytes."""
    if size <= 0:
        return 0
    return (size - 1).bit_length() + 1


@dataclass(frozen=True, slots=True)
class Rail:
    """Network that every node has a NIC on (Nezha section 2.3). `rate` in bytes per second and direction.

    `setup_s` for each message that waits for the one before, `cpu_s_per_byte` for each byte that a node sends while it
    receives another. `nominal`: rate of its data sheet, which is all that MRIB uses; `rate` where 0.
    """

    name: str
    kind: str
    rate: float
    setup_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    nominal: float = 0.0

    def __post_init__(self) -> None:
        field = f"rails.{self.name}"
        if self.kind not in RAIL_KINDS:
            raise BadInput(f"{field}.kind", self.kind, unknown_name_hint(self.kind, RAIL_KINDS))
        if not 0 < self.rate < math.inf:
            raise BadInput(f"{field}.rate", self.rate, "must be above 0: a rail without a rate carries nothing")
        for name in ("setup_s", "cpu_s_per_byte", "nominal"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise BadInput(f"{field}.{name}", value, "must be 0 or more")

    @property
    def sums_in_network(self) -> bool:
        """True if the rail's switch sums, so that an allreduce is a tree and not a ring."""
        return RAIL_KINDS[self.kind].sums_in_network

    @property
    def s_per_byte(self) -> float:
        """Seconds per byte on the wire."""
        # chunks are pipelined, so link and CPU work at the same time and the slower one counts (Fig. 13)
        return max(1 / self.rate, self.cpu_s_per_byte)


def scaled(rail: Rail, factor: float) -> Rail:
    """Return a rail that is `factor` times slower per byte, with the same data sheet.

    With sizes divided by the factor too, all times stay as they were.
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"factor: {factor} must be above 0")
    return replace(rail, rate=rail.rate / factor, cpu_s_per_byte=rail.cpu_s_per_byte * factor)


def combined_rail(rails: Sequence[Rail]) -> Rail:
    """Return the rail that MPTCP makes of several: as fast as all together, with the set-up of the first."""
    rate = sum(rail.rate for rail in rails)
    cpu_s_per_byte = 0.0
    # a rail that costs no CPU time takes all of it from the others
    if all(rail.cpu_s_per_byte for rail in rails):
        cpu_s_per_byte = 1 / sum(1 / rail.cpu_s_per_byte for rail in rails)
    return Rail("mptcp", "tcp", rate, rails[0].setup_s, cpu_s_per_byte)


def paper_rail(kind: str) -> Rail:
    """Return a rail of a kind at its full rate."""
    definition = RAIL_KINDS[kind]
    return Rail(kind, kind, definition.rate_bps / 8, definition.setup_s, definition.cpu_s_per_byte)


def paper_rails(mix: str) -> list[Rail]:
    """Return the rails of a mix such as `tcp+sharp` at full rate, with the names that a fabric gives: tcp0, sharp1."""
    return [replace(paper_rail(kind), name=f"{kind}{number}") for number, kind in enumerate(mix.split("+"))]


@dataclass(frozen=True, slots=True)
class Cost:
    """Line of one rail's times: `setup_s + size * s_per_byte`."""

    setup_s: float
    s_per_byte: float

    def __post_init__(self) -> None:
        if not (self.setup_s >= 0 and self.s_per_byte > 0):
            raise ValueError(f"{self}: a rail's set-up is 0 or more, its time per byte above 0")

    def seconds(self, size: float) -> float:
        """Return the seconds of `size` bytes."""
        return self.setup_s + size * self.s_per_byte


def allreduce_cost(rail: Rail, nodes: int) -> Cost:
    """Return the cost of an allreduce on one rail: a ring (Nezha Eq. 1), or a tree if the rail sums."""
    if nodes < 2:
        raise ValueError(f"nodes: {nodes} must be 2 or more; one node has nothing to send")
    if rail.sums_in_network:
        # a tree has two messages in a row and moves the buffer once: up and down overlap, since chunks stream through
        # the aggregator and the link is full duplex
        return Cost(2 * rail.setup_s, rail.s_per_byte)
    # a ring has 2(N-1) messages in a row, each of a part of N
    return Cost(2 * (nodes - 1) * rail.setup_s, 2 * (nodes - 1) / nodes * rail.s_per_byte)


def fastest_rail(costs: Sequence[Cost], size: float, alive: Iterable[int] | None = None) -> int:
    """Return the rail that takes the whole buffer in the least time (Eq. 4), the first of equal ones."""
    if alive is None:
        alive = range(len(costs))
    return min(alive, key=lambda rail: costs[rail].seconds(size))


def equal_finish_s(costs: Sequence[Cost], size: float) -> float:
    """Return the least that Eq. 5 can be: the time at which all rails that take part end together."""
    speed = 0.0
    setup_bytes = 0.0
    best = math.inf
    for cost in sorted(costs, key=lambda cost: cost.setup_s):
        # a rail whose set-up alone takes as long as the others need for everything is of no use, nor are slower ones
        if cost.setup_s >= best:
            break
        speed += 1 / cost.s_per_byte
        setup_bytes += cost.setup_s / cost.s_per_byte
        best = (size + setup_bytes) / speed
    return best


def ideal_shares(costs: Sequence[Cost], size: float) -> tuple[float, ...]:
    """Return the shares that reach `equal_finish_s`; they sum to one."""
    if size <= 0:
        first = fastest_rail(costs, 0)
        return tuple(float(rail == first) for rail in range(len(costs)))
    end = equal_finish_s(costs, size)
    rail_bytes = [max(0.0, (end - cost.setup_s) / cost.s_per_byte) for cost in costs]
    total_bytes = sum(rail_bytes)
    return tuple(part / total_bytes for part in rail_bytes)


def threshold(costs: Sequence[Cost], gain: float = 0.0) -> float | None:
    """Return the bytes up to which the best split gains no more than the part `gain` of its time over one rail (Eq. 6).

    None where no size gains as much.
    """
    if len(costs) < 2:
        return None
    # unlike rails may also gain in a band of sizes below, which is ignored
    low = 0.0
    high = 1.0
    while not _split_pays(costs, high, gain):
        low = high
        high *= 2
        if high > _LARGEST:
            return None
    for _ in range(60):
        middle = (low + high) / 2
        if _split_pays(costs, middle, gain):
            high = middle
        else:
            low = middle
    return low


def _split_pays(costs: Sequence[Cost], size: float, gain: float) -> bool:
    alone_s = costs[fastest_rail(costs, size)].seconds(size)
    # more than rounding errors, so that a rail by itself never gains
    return alone_s > equal_finish_s(costs, size) * (1 + gain + 1e-12)


def rails_within_tau(costs: Sequence[Cost], size: float) -> list[int]:
    """Return the rails whose throughput of even shares is a `TAU`th of the fastest one's or more (Eq. 3)."""
    # `S_i * delta_i / T_i` of Eq. 3 is bytes by the time they really take, since the paper's delta is the ideal time by
    # the real one. Shares are equal, so ratios of times are those of throughputs.
    seconds = [cost.seconds(size / len(costs)) for cost in costs]
    fastest_s = min(seconds)
    rails: list[int] = []
    for rail, time in enumerate(seconds):
        # a time of 0 has no ratios
        if time == fastest_s or (fastest_s and time / fastest_s <= TAU):
            rails.append(rail)
    return rails


def rails_to_split(costs: Sequence[Cost], size: float, gain: float = 0.0) -> tuple[int, ...]:
    """Return the rails to share `size` bytes, those within `TAU` of the fastest; none if a split does not pay.

    It pays if the best split takes less time than one rail, by the part `gain` of the split's time.
    """
    if len(costs) < 2 or size <= 0:
        return ()
    candidates = rails_within_tau(costs, size)
    if len(candidates) < 2 or not _split_pays([costs[rail] for rail in candidates], size, gain):
        return ()
    return tuple(candidates)


def slowed_cost(nominal: Cost, size: float, factor: float) -> Cost:
    """Return the line that takes `factor` times as long at `size` bytes."""
    # a rail's rate is more certain than its set-up time, so what exceeds this factor is set-up
    s_per_byte = nominal.s_per_byte * min(factor, _MAX_BYTE_SLOWDOWN)
    return Cost(max(0.0, factor * nominal.seconds(size) - s_per_byte * size), s_per_byte)


class CostEstimator:
    """Cost line of a rail, learned from measured windows by relative least squares over (bytes, seconds).

    `cost`: the present line. Older windows fade.
    """

    def __init__(self, nominal: Cost) -> None:
        self.nominal = nominal
        self.cost = nominal
        # weighted sums of 1, x, y, xx, xy
        self._terms = [0.0] * 5
        self._slowdown_sum = 0.0
        self._weight = 0.0
        self._min_size = math.inf

    def covers(self, size: float) -> bool:
        """Return whether `size` bytes or fewer were measured."""
        # the set-up is no part of how long large messages take, so their line says nothing about small ones
        return size >= self._min_size

    def measured(self, size: float, seconds: float) -> None:
        """Take one window's median; without bytes or time it is ignored."""
        if size <= 0 or seconds <= 0:
            return
        self._terms = _plus([_DECAY * term for term in self._terms], size, seconds, 1.0)
        self._min_size = min(self._min_size, size)
        self._slowdown_sum = _DECAY * self._slowdown_sum + seconds / self.nominal.seconds(size)
        self._weight = _DECAY * self._weight + 1.0
        # Two faint points of the nominal line, slowed down to what was measured: they decide until two unlike sizes
        # were measured, and keep set-up and rate apart.
        mean_size = self._terms[1] / self._terms[0]
        prior = slowed_cost(self.nominal, mean_size, self._slowdown_sum / self._weight)
        terms = self._terms
        for point in (0.0, _PRIOR_BYTES):
            terms = _plus(terms, point, prior.seconds(point), _PRIOR)
        w, x, y, xx, xy = terms
        determinant = w * xx - x * x
        s_per_byte = (w * xy - x * y) / determinant if determinant > 0 else 0.0
        setup = (y - s_per_byte * x) / w
        # a set-up below 0 is impossible: the best line through the origin takes its place
        if setup < 0:
            setup = 0.0
            s_per_byte = xy / xx
        self.cost = Cost(max(0.0, setup), max(s_per_byte, _MIN_S_PER_BYTE))


def _plus(terms: list[float], size: float, seconds: float, weight: float) -> list[float]:
    # errors are relative to the time: otherwise the largest size alone would decide
    share = weight / max(seconds, _MIN_S) ** 2
    point = (1.0, size, seconds, size * size, size * seconds)
    return [term + share * each for term, each in zip(terms, point, strict=True)]


def spread(seconds: Iterable[float]) -> float:
    """Return by what part of the slowest time the fastest was shorter; 0 for fewer than two."""
    times = list(seconds)
    longest = max(times, default=0.0)
    if longest <= 0:
        return 0.0
    return (longest - min(times)) / longest


def initial_shares(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return the first shares by the times that even shares took (Eq. 8)."""
    rails = len(seconds)
    total = sum(seconds)
    if rails == 1 or total <= 0:
        return (1 / rails,) * rails
    # the paper divides by the nodes less one, an error: only with the rails less one do the shares add up to one
    return tuple((total - time) / (total * (rails - 1)) for time in seconds)


def update_shares(shares: Sequence[float], seconds: Sequence[float], slopes: Sequence[float]) -> tuple[float, ...]:
    """Return the shares after one step towards the time at which all rails end together (Eq. 7).

    `slopes`: dT/dalpha by rail. A rail whose share runs out gets none.
    """
    weights = [1 / slope for slope in slopes]
    target_s = sum(weight * time for weight, time in zip(weights, seconds, strict=True)) / sum(weights)
    new_shares = []
    for share, time, weight in zip(shares, seconds, weights, strict=True):
        # a step by the rail's own slope: shares keep adding up to one, and one step is enough if the slopes are right
        new_share = share - (time - target_s) * weight
        if new_share < MIN_SHARE_CHANGE:
            new_share = 0.0
        new_shares.append(new_share)
    total = sum(new_shares)
    return tuple(share / total for share in new_shares)


def without_rail(shares: Sequence[float], index: int) -> tuple[float, ...]:
    """Return shares in which one rail has none, and the others its share in proportion to theirs."""
    remaining = sum(shares) - shares[index]
    new_shares = [share / remaining for share in shares]
    new_shares[index] = 0.0
    return tuple(new_shares)
