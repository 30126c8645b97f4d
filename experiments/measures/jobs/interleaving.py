"""Interleaving of jobs: found by the simulation, then run on packets, with the bursts of the jobs before and after."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.links import direction, port_name
from railyard.experiments.measures.jobs.records import JobBurst, JobShift
from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.shift import Interleaving
from railyard.results.theory.fluid.spread import PredictedJob
from railyard.results.theory.fluid.usage import Intervals, PortUse
from railyard.workloads.combined import CombinedSchedule

MIN_GAP_S = 0.02
"""Gaps within a burst, which is several steps of a collective: shorter ones are no pause between bursts."""


def busiest_shared_port(interleaving: Interleaving) -> Port | None:
    """Return the port over which several jobs send most; None if jobs share none."""
    return next(iter(interleaving.before.shared_ports), None)


def job_shifts(
    interval: IntervalId, interleaving: Interleaving, before: Sequence[PredictedJob], after: Sequence[PredictedJob]
) -> Iterator[JobShift]:
    """Yield the shift of each job, and what it is predicted to change. `before`, `after`: predictions of all jobs."""
    compatibility_before, compatibility_after = interleaving.compatibility
    for shift_s, together, interleaved in zip(interleaving.shifts_s, before, after, strict=True):
        yield JobShift(
            interval=interval,
            job=together.name,
            shift_s=shift_s,
            slow_down_before=together.slow_down.mean,
            slow_down_after=interleaved.slow_down.mean,
            compatibility_before=compatibility_before,
            compatibility_after=compatibility_after,
        )


def job_bursts(
    interval: IntervalId, mode: str, port: Port, uses: list[PortUse], jobs: CombinedSchedule
) -> Iterator[JobBurst]:
    """Yield the bursts of each job at a port, by the measured times of transfers. `uses`: of all ports."""
    intervals: defaultdict[int, Intervals] = defaultdict(tuple)
    # other ports have the same bursts, or parts of them
    for use in uses:
        if use.port == port:
            intervals[use.job] += use.intervals
    for job, times in sorted(intervals.items()):
        for start_s, end_s in _without_gaps(times):
            where = (port_name(port), direction(port), jobs.jobs[job].name)
            yield JobBurst(interval, mode, *where, start_s, end_s)


def _without_gaps(intervals: Intervals) -> Iterator[tuple[float, float]]:
    """Yield intervals with short gaps closed."""
    begin_s, until_s = intervals[0]
    for start_s, end_s in intervals[1:]:
        if start_s - until_s > MIN_GAP_S:
            yield begin_s, until_s
            begin_s = start_s
        until_s = max(until_s, end_s)
    yield begin_s, until_s
