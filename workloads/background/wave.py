"""When something is on: a square wave, and where a clock that runs only while it is on stands. All in seconds."""

import math
from dataclasses import dataclass
from typing import Final

EDGE_TOLERANCE_S: Final = 1e-9
"""Sums of decimal fractions fall short of an edge by less than this; at an edge, what begins there counts."""


@dataclass(frozen=True, slots=True)
class Wave:
    """On in [first + n every, first + n every + lasts); without `every` once, without `lasts` for ever."""

    first: float = 0.0
    lasts: float | None = None
    every: float | None = None

    def is_on(self, at: float) -> bool:
        elapsed = at - self.first + EDGE_TOLERANCE_S
        if elapsed < 0 or self.lasts is None:
            return elapsed >= 0
        return (elapsed % self.every if self.every else elapsed) < self.lasts

    def on_s(self, at: float) -> float:
        """How long it has been on until `at`."""
        elapsed = max(0.0, at - self.first)
        if self.lasts is None:
            return elapsed
        periods, remainder = divmod(elapsed, self.every) if self.every else (0.0, elapsed)
        return periods * self.lasts + min(remainder, self.lasts)

    def time_for_on_s(self, on_time: float) -> float:
        """When it has been on for `on_time`: the inverse of `on_s`; infinite if never."""
        if self.lasts is None:
            return self.first + on_time
        if self.every is None:
            return self.first + on_time if on_time <= self.lasts else math.inf
        periods, remainder = divmod(on_time, self.lasts)
        return self.first + periods * self.every + remainder
