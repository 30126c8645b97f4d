"""CPU time of the programs on this machine by name, apart from our own: what would disturb a run.

Only names are kept: command lines and users are private. Inside a sandbox nothing of this is visible.
"""

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

import psutil

from railyard.core.errors import printable
from railyard.core.host_load import FOREIGN_LIMIT

WATCHED_S: Final = 1.0
Sample = Mapping[tuple[int, float], tuple[str, float]]
"""Of each process, by its pid and start: its name, and its CPU seconds until now."""


class OtherPrograms(NamedTuple):
    """Shares of the usable cores, 0 to 1, that other programs use;

    `busiest`: the name of the one that uses most.
    """

    share: float
    busiest: str
    busiest_share: float

    @property
    def disturb(self) -> bool:
        """True if intervals that are measured now would be degraded."""
        return self.share > FOREIGN_LIMIT

    @property
    def amount(self) -> str:
        """Share of all cores, and the busiest program's."""
        most = f", most of it {self.busiest} ({self.busiest_share:.0%})" if self.busiest else ""
        return f"{self.share:.0%} of all cores{most}"

    def __str__(self) -> str:
        if not self.disturb:
            return f"use {self.amount}: no run is disturbed"
        return f"use {self.amount}: runs would be disturbed until they end"


class Watch:
    """Watch of the programs that run at its begin and its end; those of a run in a sandbox have ended by then."""

    def __init__(self, cores: float) -> None:
        self._cores, self._started = cores, time.monotonic()
        self._before = _sample()

    def end(self) -> OtherPrograms:
        """Return what they used since the begin."""
        return between(self._before, _sample(), time.monotonic() - self._started, self._cores)


def watch(cores: float, seconds: float = WATCHED_S) -> OtherPrograms:
    """Return what other programs use of the cores, watched for so many seconds."""
    watched = Watch(cores)
    time.sleep(seconds)
    return watched.end()


def between(before: Sample, after: Sample, seconds: float, cores: float) -> OtherPrograms:
    """Return what was used between two samples: programs of the same name together."""
    spent = defaultdict[str, float](float)
    for process, (name, cpu_s) in after.items():
        _, earlier_s = before.get(process, (name, 0.0))
        spent[name] += max(0.0, cpu_s - earlier_s)
    name = max(spent, key=spent.__getitem__, default="")
    most_s = spent[name] if name else 0.0
    available_s = seconds * cores
    share = min(1.0, sum(spent.values()) / available_s)
    return OtherPrograms(share, name if most_s else "", min(1.0, most_s / available_s))


def _sample() -> Sample:
    """Read all processes but this one, which is what measures."""
    sample = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times", "create_time"]):
        information = process.info
        times = information["cpu_times"]
        if times is None or process.pid == os.getpid():
            continue
        key = (process.pid, information["create_time"])
        sample[key] = (printable(information["name"] or ""), times.user + times.system)
    return sample
