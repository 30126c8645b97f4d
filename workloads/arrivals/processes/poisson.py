"""Arrival process `poisson`: jobs begin one after the other, after times drawn by the seed."""

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Annotated, ClassVar

from pydantic import Field

from railyard.workloads.arrivals.definition import ARRIVALS, ArrivalProcess


@ARRIVALS.register("poisson")
class Poisson(ArrivalProcess):
    """A job begins `rate` times a second on average; the first one at once, and each after the start that it states."""

    pace_key: ClassVar[str] = "rate"
    remedy: ClassVar[str] = "a larger rate, or fewer jobs"

    # less than one job in 1000 s is later than a start may be
    rate: Annotated[float, Field(ge=0.001, allow_inf_nan=False, strict=False)]

    def start_times(self, starts_s: Sequence[float], seed: int, field: str) -> tuple[float, ...]:
        """Return drawn times, in the order of the jobs."""
        rng = Random(seed)
        gaps_s = [0.0]
        gaps_s += [rng.expovariate(self.rate) for _ in starts_s[1:]]
        times_s = accumulate(gaps_s[: len(starts_s)])
        return tuple(time_s + start_s for time_s, start_s in zip(times_s, starts_s, strict=True))
