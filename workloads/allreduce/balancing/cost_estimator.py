"""Rails' cost lines, learnt from what was measured.

Relative least squares over (bytes, seconds) with older windows fading, and two faint points of the nominal line,
slowed down to what was measured: they decide until two unlike sizes were seen, and keep set-up and rate apart when only
one size ever comes. (As it is, a nominal set-up far below what a machine can do would outweigh all that is measured.)
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from railyard.workloads.allreduce.balancing.predict import Cost, fastest_rail

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
