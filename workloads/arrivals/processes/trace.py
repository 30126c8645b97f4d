"""Arrival process `trace`: jobs begin at given times, such as the submissions of a cluster's log."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from railyard.core.errors import BadInput
from railyard.workloads.arrivals.definition import ARRIVALS, ArrivalProcess

TraceTime = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]


@ARRIVALS.register("trace")
class Trace(ArrivalProcess):
    """A time in seconds for each job, in `times`: counted from the first of them, and multiplied by `factor`."""

    times: Annotated[tuple[TraceTime, ...], Field(min_length=1, strict=False)]
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)] = 1.0

    def start_times(self, starts_s: Sequence[float], seed: int, field: str) -> tuple[float, ...]:
        """Return the times of the trace, and the start that each job states after its own."""
        if len(self.times) < len(starts_s):
            allowed = f"has {len(self.times)} times, fewer than the {len(starts_s)} jobs"
            raise BadInput(f"{field}.times", list(self.times), allowed)
        first = min(self.times)
        times = zip(self.times, starts_s, strict=False)
        return tuple((time - first) * self.factor + start_s for time, start_s in times)
