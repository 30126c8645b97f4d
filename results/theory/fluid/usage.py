"""Use of ports in a fluid simulation: bytes and busy intervals of each job, and who shared a port when.

Jobs are any groups of tasks, by number: the caller says of which group each task is. Bytes of payload, seconds, bytes a
second.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from railyard.results.theory.fluid.routes import Amounts, Numbers, Port
from railyard.results.theory.fluid.simulation import FluidRun

# gaps between intervals that are errors of rounding
SAME_TIME: Final = 1 + 1e-9
Intervals = tuple[tuple[float, float], ...]


class PortUse(NamedTuple):
    """Use of a port by one job. `intervals`: when any of its transfers crosses the port, in order, merged."""

    port: Port
    job: int
    bytes: float
    intervals: Intervals


class _Crossings(NamedTuple):
    """Pieces of transfers at the ports that they cross, in arrays of one length."""

    port: Numbers
    job: Numbers
    start_s: Amounts
    end_s: Amounts
    rate: Amounts

    def rows(self, numbers: Numbers) -> "_Crossings":
        """Return these rows."""
        return _Crossings(
            port=self.port[numbers],
            job=self.job[numbers],
            start_s=self.start_s[numbers],
            end_s=self.end_s[numbers],
            rate=self.rate[numbers],
        )


def port_uses(run: FluidRun, jobs: Numbers) -> list[PortUse]:
    """Return the use of each port by each job that sends over it, in the order of ports. `jobs`: of each task."""
    crossings = _crossings(run, jobs)
    crossings = crossings.rows(np.lexsort((crossings.start_s, crossings.job, crossings.port)))
    is_new = (np.diff(crossings.port, prepend=-1) != 0) | (np.diff(crossings.job, prepend=-1) != 0)
    firsts = np.flatnonzero(is_new)
    uses: list[PortUse] = []
    for rows in np.split(np.arange(len(is_new)), firsts[1:]):
        if len(rows):
            part = crossings.rows(rows)
            size = float((part.rate * (part.end_s - part.start_s)).sum())
            port = run.routes.ports[part.port[0]]
            uses.append(PortUse(port, int(part.job[0]), size, _merged(part.start_s, part.end_s)))
    return uses


def _crossings(run: FluidRun, jobs: Numbers) -> _Crossings:
    """Return a row for each piece and port."""
    flow = run.flow[run.pieces.task]
    share = run.routes.shares[flow]
    piece, place = np.nonzero(share)
    task = run.pieces.task[piece]
    return _Crossings(
        port=run.routes.crossed[flow[piece], place],
        job=jobs[task],
        start_s=run.pieces.start_s[piece],
        end_s=run.pieces.end_s[piece],
        rate=run.pieces.rate[piece] * share[piece, place],
    )


def _merged(start_s: Amounts, end_s: Amounts) -> Intervals:
    """Return intervals with those joined that overlap or touch. `start_s`: in order."""
    # an interval may lie within an earlier one that is longer
    latest_s = np.maximum.accumulate(end_s)
    begins = np.flatnonzero(np.append(True, start_s[1:] > latest_s[:-1] * SAME_TIME))
    ends = np.append(begins[1:], len(start_s)) - 1
    return tuple(zip(start_s[begins].tolist(), latest_s[ends].tolist(), strict=True))


class Sharing(NamedTuple):
    """Time in which several jobs cross a port: which jobs, and from when to when, s."""

    port: Port
    jobs: tuple[int, ...]
    start_s: float
    end_s: float


def shared_times(uses: list[PortUse]) -> Iterator[Sharing]:
    """Yield when jobs share ports, port by port in order of time. `uses`: of `port_uses`."""
    by_port: dict[Port, list[PortUse]] = {}
    for use in uses:
        by_port.setdefault(use.port, []).append(use)
    for port, uses_of_port in by_port.items():
        if len(uses_of_port) > 1:
            yield from _shared(port, uses_of_port)


def _shared(port: Port, uses: list[PortUse]) -> Iterator[Sharing]:
    """Yield when several of these jobs, which use a port, are there at the same time."""
    events: list[tuple[float, bool, int]] = []
    for use in uses:
        for start_s, end_s in use.intervals:
            events += [(start_s, True, use.job), (end_s, False, use.job)]
    present: set[int] = set()
    since_s = 0.0
    # ends sort before starts of the same time: jobs that only touch share nothing
    for time_s, is_start, job in sorted(events):
        if len(present) > 1 and time_s > since_s * SAME_TIME:
            yield Sharing(port, tuple(sorted(present)), since_s, time_s)
        since_s = time_s
        if is_start:
            present.add(job)
        else:
            present.discard(job)
