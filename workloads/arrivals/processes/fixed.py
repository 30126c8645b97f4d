"""Arrival process `fixed`: each job begins when it says."""

from collections.abc import Sequence

from railyard.workloads.arrivals.definition import ARRIVALS, ArrivalProcess


@ARRIVALS.register("fixed")
class Fixed(ArrivalProcess):
    """Each job begins at its own `start`."""

    kind: str = "fixed"

    def start_times(self, starts_s: Sequence[float], seed: int, field: str) -> tuple[float, ...]:
        """Return the start of each job."""
        return tuple(starts_s)
