"""Arrival process `trace`: jobs begin at given times, such as the submissions of a cluster's log."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from railyard.core.errors import BadInput
from railyard.workloads.arrivals.definition import ARRIVALS, ArrivalProcess

# seconds since 1970 fit, and no time is longer than a message can show
TraceTime = Annotated[float, Field(ge=0, le=1e10, strict=False)]


@ARRIVALS.register("trace")
class Trace(ArrivalProcess):
    """A time in seconds for each job, in `times`: counted from the first of them, and multiplied by `factor`."""

    pace_key: ClassVar[str] = "factor"
    remedy: ClassVar[str] = "a smaller factor, earlier times, or fewer jobs"

    times: Annotated[tuple[TraceTime, ...], Field(min_length=1, strict=False)]
    factor: Annotated[float, Field(gt=0, le=1e6, strict=False)] = 1.0

    def start_times(self, starts_s: Sequence[float], seed: int, field: str) -> tuple[float, ...]:
        """Return the times of the trace, and the start that each job states after its own."""
        if len(self.times) < len(starts_s):
            allowed = f"has {len(self.times)} times for {len(starts_s)} jobs: give each job one"
            raise BadInput(f"{field}.times", list(self.times), allowed)
        first = min(self.times)
        times = zip(self.times, starts_s, strict=False)
        return tuple((time - first) * self.factor + start_s for time, start_s in times)
