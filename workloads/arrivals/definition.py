"""Arrival processes: when the jobs of an experiment begin. Built-in ones are in the folder `processes`."""

from collections.abc import Sequence
from math import isfinite
from typing import ClassVar, Final

from railyard.core.config import ConfigModel, parse_by_kind
from railyard.core.errors import BadInput
from railyard.core.registry import Registry
from railyard.core.units import format_time

MAX_START_S: Final = 600.0
"""Of the last job: a run waits for it."""


class ArrivalProcess(ConfigModel):
    """Base of arrival processes: a kind has the keys that a user writes.

    `pace_key`: the key that decides how late the last job begins. `remedy`: what lets it begin sooner.
    """

    required: ClassVar[tuple[str, ...]] = ("start_times(starts_s, seed, field)",)
    pace_key: ClassVar[str] = "kind"
    remedy: ClassVar[str] = "earlier times, or fewer jobs"

    kind: str

    def start_times(self, starts_s: Sequence[float], seed: int, field: str) -> tuple[float, ...]:
        """Return when each job begins, s after the first may.

        `starts_s`: the start that each job states itself, 0 for one that states none. BadInput names fields below
        `field`.
        """
        raise NotImplementedError


ARRIVALS: Final = Registry[type[ArrivalProcess]](
    "arrival process",
    "railyard.workloads.arrivals.processes",
    ArrivalProcess,
    ["start_times(starts_s, seed, field)"],
    holds_classes=True,
)


def parse_arrivals(data: object, field: str = "arrivals") -> ArrivalProcess:
    """Read an arrival process from plain data. BadInput names the first field that is wrong."""
    return parse_by_kind(data, dict(ARRIVALS.items()), field)


def checked_starts(
    process: ArrivalProcess, starts_s: Sequence[float], seed: int, field: str = "arrivals"
) -> tuple[float, ...]:
    """Return when each job begins. BadInput if the last one begins too late."""
    times_s = process.start_times(starts_s, seed, field)
    # a plugin's may return anything
    if len(times_s) != len(starts_s) or not all(isfinite(time_s) and time_s >= 0 for time_s in times_s):
        wrong = f"gives {list(times_s)} for {len(starts_s)} jobs: its start_times() must return a time >= 0 for each"
        raise BadInput(f"{field}.kind", process.kind, wrong)
    last_s = max(times_s, default=0.0)
    if last_s > MAX_START_S:
        key = process.pace_key
        too_late = f"lets the last of {len(times_s)} jobs begin after {format_time(last_s)}"
        allowed = f"{format_time(MAX_START_S)} or less are allowed: give {process.remedy}"
        raise BadInput(f"{field}.{key}", getattr(process, key), f"{too_late}, and {allowed}")
    return times_s
