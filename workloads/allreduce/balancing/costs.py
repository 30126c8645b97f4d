"""A rail as the engine and the balancer see it: rate, set-up latency, CPU cost, kind.

Source: Nezha section 2.3, Eq. 2 (`T_setup` is paid for each message). Units: bytes, seconds, bytes per second. The
paper's rails: topologies/rail_kind.py.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.topologies.rail_kind import RAIL_KINDS


def size_class(size: int) -> int:
    """Return 0 for empty; k + 1 for sizes from 2^(k-1) + 1 to 2^k bytes."""
    return 0 if size <= 0 else (size - 1).bit_length() + 1


@dataclass(frozen=True, slots=True)
class Rail:
    """One network that every node has a NIC on.

    `rate` in bytes per second and direction, `setup_s` for each message that waits for the one before,
    `cpu_s_per_byte` for each byte that a node sends while it receives another. `nominal`: rate of
    its data sheet, bytes per second, which is all that MRIB uses; `rate` where 0.
    """

    name: str
    kind: str
    rate: float
    setup_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    nominal: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in RAIL_KINDS:
            raise BadInput(f"rails.{self.name}.kind", self.kind, unknown_name_hint(self.kind, RAIL_KINDS))
        if not 0 < self.rate < math.inf:
            raise BadInput(
                f"rails.{self.name}.rate", self.rate, "must be above 0: a rail without a rate carries nothing"
            )
        for name in ("setup_s", "cpu_s_per_byte", "nominal"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise BadInput(f"rails.{self.name}.{name}", value, "must be 0 or more")

    @property
    def sums_in_network(self) -> bool:
        """Whether the rail's switch sums, so that an allreduce is a tree and not a ring."""
        return RAIL_KINDS[self.kind].sums_in_network

    @property
    def s_per_byte(self) -> float:
        """Seconds per byte on the wire: chunks are pipelined, so the slower of link and CPU sets it (Fig. 13)."""
        return max(1 / self.rate, self.cpu_s_per_byte)


def scaled(rail: Rail, factor: float) -> Rail:
    """A rail that is `factor` times slower, in bytes: with sizes divided by it too, all times stay as they were.
    Its data sheet is the same."""
    if not 0 < factor < math.inf:
        raise ValueError(f"factor: {factor} must be above 0")
    return replace(rail, rate=rail.rate / factor, cpu_s_per_byte=rail.cpu_s_per_byte * factor)


def combined_rail(rails: Sequence[Rail]) -> Rail:
    """What MPTCP makes of them: as fast as all together, with what a message costs on the first."""
    cpus = [rail.cpu_s_per_byte for rail in rails]
    cpu = 1 / sum(1 / cost for cost in cpus) if all(cpus) else 0.0
    return Rail("mptcp", "tcp", sum(rail.rate for rail in rails), rails[0].setup_s, cpu)


def paper_rail(kind: str) -> Rail:
    """Return a rail of a kind at its full rate."""
    found = RAIL_KINDS[kind]
    return Rail(kind, kind, found.rate_bps / 8, found.setup_s, found.cpu_s_per_byte)


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


_DECAY: Final = 0.8
_PRIOR: Final = 0.01  # of a measured window's weight
_PRIOR_BYTES: Final = 2.0**20
_MAX_BYTE_SLOWDOWN: Final = 2.0
_MIN_S: Final = 1e-7
_MIN_S_PER_BYTE: Final = 1e-13


@dataclass
class _Sums:
    """Weighted sums of 1, x, y, xx, xy."""

    terms: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, size: float, seconds: float, weight: float) -> None:
        share = weight / max(seconds, _MIN_S) ** 2
        for index, term in enumerate((1.0, size, seconds, size * size, size * seconds)):
            self.terms[index] += share * term


def slowed_cost(nominal: Cost, size: float, factor: float) -> Cost:
    """The line that takes `factor` times as long at `size` bytes. Rates are better known than what a message costs a
    machine, so the bytes are up to `_MAX_BYTE_SLOWDOWN` times slower, and the rest is set-up."""
    s_per_byte = nominal.s_per_byte * min(factor, _MAX_BYTE_SLOWDOWN)
    return Cost(max(0.0, factor * nominal.seconds(size) - s_per_byte * size), s_per_byte)


class CostEstimator:
    """`cost` is the line as it is known now."""

    def __init__(self, nominal: Cost) -> None:
        self.nominal = self.cost = nominal
        self._sums = _Sums()
        self._slowdown_sum = self._weight = 0.0
        self._min_size = math.inf

    def known(self, size: float) -> bool:
        """Whether anything of `size` bytes or fewer was measured: what a message costs a machine is no part of how long
        large ones take, so their line says nothing of small ones."""
        return size >= self._min_size

    def measured(self, size: float, seconds: float) -> None:
        """One window's median; what says nothing (no bytes, no time) is left out."""
        if size <= 0 or seconds <= 0:
            return
        self._sums.terms = [_DECAY * term for term in self._sums.terms]
        self._sums.add(size, seconds, 1.0)
        self._min_size = min(self._min_size, size)
        self._slowdown_sum = _DECAY * self._slowdown_sum + seconds / self.nominal.seconds(size)
        self._weight = _DECAY * self._weight + 1.0
        w, x, _, _, _ = self._sums.terms
        prior = slowed_cost(self.nominal, x / w, self._slowdown_sum / self._weight)
        with_prior = _Sums(list(self._sums.terms))
        for point in (0.0, _PRIOR_BYTES):
            with_prior.add(point, prior.seconds(point), _PRIOR)
        w, x, y, xx, xy = with_prior.terms
        spread = w * xx - x * x
        s_per_byte = (w * xy - x * y) / spread if spread > 0 else 0.0
        setup = (y - s_per_byte * x) / w
        if setup < 0:
            setup, s_per_byte = 0.0, xy / xx
        self.cost = Cost(max(0.0, setup), max(s_per_byte, _MIN_S_PER_BYTE))


class CostEstimators:
    """All rails' lines."""

    def __init__(self, nominal: Sequence[Cost]) -> None:
        self._estimators = [CostEstimator(cost) for cost in nominal]

    @property
    def known(self) -> tuple[Cost, ...]:
        return tuple(estimator.cost for estimator in self._estimators)

    def measured(self, rail: int, size: float, seconds: float) -> None:
        """One window's median of `size` bytes on this rail."""
        self._estimators[rail].measured(size, seconds)

    def forget(self, rail: int) -> None:
        """It is nominal again."""
        self._estimators[rail] = CostEstimator(self._estimators[rail].nominal)

    def restart(self, rail: int, size: float, seconds: float) -> None:
        """It isn't as it was: what was learnt of it is forgotten but for this window's median."""
        self.forget(rail)
        self.measured(rail, size, seconds)

    def at(self, size: float, untrusted: Collection[int] = ()) -> tuple[Cost, ...]:
        """What is known of each rail at `size`, or to be expected. Those never measured at such sizes are as slow as
        elsewhere, or as much slower than nominal as the best of those that were: whichever takes longer. Else a machine
        that makes every message slow would make all rails but the one in use look fast. Of rails in doubt only the name
        counts."""
        estimators = [
            CostEstimator(each.nominal) if rail in untrusted else each for rail, each in enumerate(self._estimators)
        ]
        known = [each for each in estimators if each.known(size)]
        slowdown = min((each.cost.seconds(size) / each.nominal.seconds(size) for each in known), default=1.0)
        return tuple(
            each.cost
            if each.known(size)
            else max(each.cost, slowed_cost(each.nominal, size, slowdown), key=lambda cost: cost.seconds(size))
            for each in estimators
        )

    def best(self, size: float, among: Collection[int]) -> int:
        """Eq. 4, of these rails."""
        return fastest_rail(self.at(size), size, sorted(among))


MIN_SHARE_CHANGE: Final = 0.01
"""A step that moves no share by more than this part of the buffer is none, and a share that is less is none."""


def spread(seconds: Iterable[float]) -> float:
    """By what part of the slowest the fastest was earlier; 0 for fewer than two."""
    times = list(seconds)
    longest = max(times, default=0.0)
    return (longest - min(times)) / longest if longest > 0 else 0.0


def initial_shares(seconds: Sequence[float]) -> tuple[float, ...]:
    """Eq. 8, from the times that even shares took; N read as the number of rails."""
    total = sum(seconds)
    if len(seconds) == 1 or total <= 0:
        return tuple(1 / len(seconds) for _ in seconds)
    return tuple((total - time) / (total * (len(seconds) - 1)) for time in seconds)


def update_shares(shares: Sequence[float], seconds: Sequence[float], slopes: Sequence[float]) -> tuple[float, ...]:
    """Eq. 7, one step: towards the level at which all rails end together. A rail whose share runs out gets none."""
    weights = [1 / slope for slope in slopes]
    target_s = sum(w * t for w, t in zip(weights, seconds, strict=True)) / sum(weights)
    stepped = [a - (t - target_s) * w for a, t, w in zip(shares, seconds, weights, strict=True)]
    shares_kept = [share if share >= MIN_SHARE_CHANGE else 0.0 for share in stepped]
    return tuple(share / sum(shares_kept) for share in shares_kept)


def slope(share: float, seconds: float, expected: float) -> float:
    """dT/dalpha of a rail, in seconds for the whole buffer: `expected` by its line, but held between a fifth of T/alpha
    and all of it (set-up times are never negative), so that it errs on the slow side."""
    secant = max(seconds, 1e-9) / share
    return min(secant, max(secant / 5, expected))


def without_rail(shares: Sequence[float], index: int) -> tuple[float, ...]:
    """One gets nothing, and the others its share in proportion to theirs."""
    rest = sum(shares) - shares[index]
    return tuple(0.0 if other == index else share / rest for other, share in enumerate(shares))


def max_share_change(shares: Sequence[float], target: Sequence[float]) -> float:
    """The largest of the changes."""
    return max(abs(a - b) for a, b in zip(shares, target, strict=True))
