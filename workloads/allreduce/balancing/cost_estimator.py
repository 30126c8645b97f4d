"""Rails' cost lines, learnt from what was measured.

Relative least squares over (bytes, seconds) with older windows fading, and two faint points of the nominal line,
slowed down to what was measured: they decide until two unlike sizes were seen, and keep set-up and rate apart when only
one size ever comes. (As it is, a nominal set-up far below what a machine can do would outweigh all that is measured.)
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from railyard.workloads.allreduce.balancing.predict import Cost, cold_rail

_FADE: Final = 0.8
_PRIOR: Final = 0.01  # of a measured window's weight
_PRIOR_BYTES: Final = 2.0**20
_MOST_PACE: Final = 2.0
_LEAST_S: Final = 1e-7
_LEAST_PACE: Final = 1e-13


@dataclass
class _Sums:
    """Weighted sums of 1, x, y, xx, xy."""

    of: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, size: float, seconds: float, weight: float) -> None:
        share = weight / max(seconds, _LEAST_S) ** 2
        for place, term in enumerate((1.0, size, seconds, size * size, size * seconds)):
            self.of[place] += share * term


def slowed(nominal: Cost, size: float, factor: float) -> Cost:
    """The line that takes `factor` times as long at `size` bytes. Rates are better known than what a message costs a
    machine, so the bytes are up to `_MOST_PACE` times slower, and the rest is set-up."""
    pace = nominal.s_per_byte * min(factor, _MOST_PACE)
    return Cost(max(0.0, factor * nominal.seconds(size) - pace * size), pace)


class Estimate:
    """`cost` is the line as it is known now."""

    def __init__(self, nominal: Cost) -> None:
        self.nominal = self.cost = nominal
        self._seen = _Sums()
        self._slower = self._weight = 0.0
        self._least = math.inf

    def known(self, size: float) -> bool:
        """Whether anything of `size` bytes or fewer was measured: what a message costs a machine is no part of how long
        large ones take, so their line says nothing of small ones."""
        return size >= self._least

    def measured(self, size: float, seconds: float) -> None:
        """One window's median; what says nothing (no bytes, no time) is left out."""
        if size <= 0 or seconds <= 0:
            return
        self._seen.of = [_FADE * term for term in self._seen.of]
        self._seen.add(size, seconds, 1.0)
        self._least = min(self._least, size)
        self._slower = _FADE * self._slower + seconds / self.nominal.seconds(size)
        self._weight = _FADE * self._weight + 1.0
        w, x, _, _, _ = self._seen.of
        prior = slowed(self.nominal, x / w, self._slower / self._weight)
        both = _Sums(list(self._seen.of))
        for point in (0.0, _PRIOR_BYTES):
            both.add(point, prior.seconds(point), _PRIOR)
        w, x, y, xx, xy = both.of
        spread = w * xx - x * x
        pace = (w * xy - x * y) / spread if spread > 0 else 0.0
        setup = (y - pace * x) / w
        if setup < 0:
            setup, pace = 0.0, xy / xx
        self.cost = Cost(max(0.0, setup), max(pace, _LEAST_PACE))


class Lines:
    """All rails' lines."""

    def __init__(self, nominal: Sequence[Cost]) -> None:
        self._estimates = [Estimate(cost) for cost in nominal]

    @property
    def known(self) -> tuple[Cost, ...]:
        return tuple(estimate.cost for estimate in self._estimates)

    def measured(self, rail: int, size: float, seconds: float) -> None:
        """One window's median of `size` bytes on this rail."""
        self._estimates[rail].measured(size, seconds)

    def forget(self, rail: int) -> None:
        """It is nominal again."""
        self._estimates[rail] = Estimate(self._estimates[rail].nominal)

    def restart(self, rail: int, size: float, seconds: float) -> None:
        """It isn't as it was: what was learnt of it is forgotten but for this window's median."""
        self.forget(rail)
        self.measured(rail, size, seconds)

    def at(self, size: float, doubted: Collection[int] = ()) -> tuple[Cost, ...]:
        """What is known of each rail at `size`, or to be expected. Those never measured at such sizes are as slow as
        elsewhere, or as much slower than nominal as the best of those that were: whichever takes longer. Else a machine
        that makes every message slow would make all rails but the one in use look fast. Of rails in doubt only the name
        counts."""
        estimates = [Estimate(each.nominal) if rail in doubted else each for rail, each in enumerate(self._estimates)]
        known = [each for each in estimates if each.known(size)]
        slower = min((each.cost.seconds(size) / each.nominal.seconds(size) for each in known), default=1.0)
        return tuple(
            each.cost
            if each.known(size)
            else max(each.cost, slowed(each.nominal, size, slower), key=lambda cost: cost.seconds(size))
            for each in estimates
        )

    def best(self, size: float, among: Collection[int]) -> int:
        """Eq. 4, of these rails."""
        return cold_rail(self.at(size), size, sorted(among))
