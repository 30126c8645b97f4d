"""An arrival process: jobs begin in waves of several at once.

In an experiment's file: `arrivals: {kind: waves, size: 4, every: 30s}`.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from railyard.core.units import Time, time_between
from railyard.workloads.arrivals.definition import ARRIVALS, ArrivalProcess


@ARRIVALS.register("waves")
class Waves(ArrivalProcess):
    """`size` jobs begin at once, and the next `size` jobs `every` later."""

    pace_key: ClassVar[str] = "every"
    remedy: ClassVar[str] = "less time between waves, larger waves, or fewer jobs"

    size: Annotated[int, Field(ge=1)] = 2
    every: Annotated[Time, time_between(0.001, 600)] = 10.0

    def start_times(self, starts_s: Sequence[float], seed: int, field: str) -> tuple[float, ...]:
        times_s: list[float] = []
        for number, start_s in enumerate(starts_s):
            wave = number // self.size
            times_s.append(wave * self.every + start_s)
        return tuple(times_s)
