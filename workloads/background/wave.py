"""When something is on: a square wave, and where a clock that runs only while it is on stands. All in seconds."""

import math
from dataclasses import dataclass
from typing import Final

EDGE_S: Final = 1e-9
"""Sums of decimal fractions fall short of an edge by less than this; at an edge, what begins there counts."""


@dataclass(frozen=True, slots=True)
class Wave:
    """On in [first + n every, first + n every + lasts); without `every` once, without `lasts` for ever."""

    first: float = 0.0
    lasts: float | None = None
    every: float | None = None

    def is_on(self, at: float) -> bool:
        since = at - self.first + EDGE_S
        if since < 0 or self.lasts is None:
            return since >= 0
        return (since % self.every if self.every else since) < self.lasts

    def on_s(self, at: float) -> float:
        """How long it has been on until `at`."""
        since = max(0.0, at - self.first)
        if self.lasts is None:
            return since
        whole, rest = divmod(since, self.every) if self.every else (0.0, since)
        return whole * self.lasts + min(rest, self.lasts)

    def moment(self, on: float) -> float:
        """When it has been on for `on`: the inverse of `on_s`; infinite if never."""
        if self.lasts is None:
            return self.first + on
        if self.every is None:
            return self.first + on if on <= self.lasts else math.inf
        whole, rest = divmod(on, self.lasts)
        return self.first + whole * self.every + rest
