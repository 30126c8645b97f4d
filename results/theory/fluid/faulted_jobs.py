"""Predicted slow-downs of jobs by a fault: in the whole run, while the fault lasts, and of each job alone.

Detours are taken to be there at once, and transfers to go on without loss: both add to an iteration on packets, and
are over within a second.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from statistics import fmean
from typing import NamedTuple

import numpy as np

from railyard.results.theory.fluid.jobs import JobsPrediction, predict_jobs
from railyard.results.theory.fluid.outage import DeadParts
from railyard.results.theory.fluid.routes import Numbers, Port, is_hashed, routes_of
from railyard.results.theory.fluid.simulation import Conditions, FluidRun, Outage, RateChange, simulate
from railyard.results.theory.fluid.spread import DRAWS_OF_NOISE, Spread, draw_count
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.schedule import Rates


@dataclass(frozen=True)
class Degradation:
    """Dead parts of a fabric, if there are any, and the part of its rate that each slow port has."""

    dead: DeadParts | None = None
    slow_ports: Mapping[Port, float] = field(default_factory=dict)

    def conditions(self, healthy: Conditions, start_s: float = 0.0, end_s: float = inf) -> Conditions:
        """Return the conditions of a simulation in which it begins and ends at these times. `healthy`: without it."""
        changes: list[RateChange] = []
        for port, factor in self.slow_ports.items():
            changes += [RateChange(start_s, port, factor), RateChange(end_s, port, 1.0)]
        outage = None
        if self.dead is not None:
            outage = Outage(self.dead, start_s, end_s)
        return replace(healthy, changes=tuple(changes), outage=outage)


class FaultedJob(NamedTuple):
    """Predictions of a job and a fault, as ratios of its mean iterations with and without the fault.

    `at_its_times`: of the whole job together with the others, while the fault begins and ends at its times. `together`:
    of the time in which the fault lasts (`slow_down_meanwhile`); None if the job does nothing in it. `alone`: of a job
    without the others, with a fault that lasts for all of it; infinite if it then has no path.
    """

    name: str
    at_its_times: Spread
    alone: Spread
    together: Spread | None

    @property
    def has_path(self) -> bool:
        """True if all of its transfers have a path while the fault lasts."""
        return isfinite(self.alone.mean)


@dataclass(frozen=True, eq=False)
class FaultedJobs:
    """Predictions of all jobs and a fault. `run`: with the fault at its times; None where a hash chooses links."""

    jobs: tuple[FaultedJob, ...]
    run: FluidRun | None


class _Ratios(NamedTuple):
    """The ratios of a job in one simulation."""

    at_its_times: float
    alone: float
    together: float | None


def predict_faulted(
    healthy: JobsPrediction, degradation: Degradation, start_s: float, end_s: float, rates: Rates, fabric: FabricSpec
) -> FaultedJobs:
    """Simulate jobs with a fault, without noise. Where a hash chooses links, the jobs are simulated with several.

    `healthy`: the jobs without the fault, with even shares. `start_s`, `end_s`: of the fault.
    """
    jobs = healthy.combined
    conditions = healthy.conditions
    if not _has_hash(healthy, degradation.dead, rates, fabric):
        run = simulate(jobs.schedule, rates, fabric, degradation.conditions(conditions, start_s, end_s))
        alone_s = _lasting_alone_s(jobs, degradation.conditions(conditions), rates, fabric)
        return FaultedJobs(_faulted_jobs(jobs, [_ratios(healthy, run, (start_s, end_s), alone_s)]), run)
    draws: list[list[_Ratios]] = []
    for draw in range(draw_count(DRAWS_OF_NOISE, jobs)):
        # a simulation uses a seed for all jobs together, and the next ones for each job alone
        conditions = replace(healthy.conditions, hash_seed=draw * (1 + len(jobs.jobs)))
        hashed = predict_jobs(jobs, rates, fabric, conditions)
        run = simulate(jobs.schedule, rates, fabric, degradation.conditions(conditions, start_s, end_s))
        alone_s = _lasting_alone_s(jobs, degradation.conditions(conditions), rates, fabric)
        draws.append(_ratios(hashed, run, (start_s, end_s), alone_s))
    return FaultedJobs(_faulted_jobs(jobs, draws), None)


def slow_down_meanwhile(job: tuple[float, float], fault: tuple[float, float], healthy_s: float) -> float | None:
    """Return how many times as long a job takes, while a fault lasts, for what it does meanwhile; None if for nothing.

    `job`, `fault`: when each begins and ends, s. `healthy_s`: time of the whole job without the fault. Before and after
    the fault, the job is taken to be as fast as without it.
    """
    job_s = job[1] - job[0]
    fault_s = min(job[1], fault[1]) - max(job[0], fault[0])
    done_s = healthy_s - (job_s - fault_s)
    # a job without an end has no time, and is neither above 0 nor below
    if fault_s > 0 and done_s > 0:
        return fault_s / done_s
    return None


def _has_hash(healthy: JobsPrediction, dead: DeadParts | None, rates: Rates, fabric: FabricSpec) -> bool:
    """Return whether a hash chooses links of any transfer, on the intact fabric or around dead parts."""
    src, dst = _ends(healthy)
    return any(is_hashed(routes_of(src, dst, rates, fabric, dead=parts), fabric) for parts in (None, dead))


def _ends(healthy: JobsPrediction) -> tuple[Numbers, Numbers]:
    """Return the sources and the destinations of all pairs that send, by GPU number."""
    pairs = np.array(list(healthy.combined.schedule.matrix), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def jobs_apart_from(
    ports: Collection[Port], healthy: JobsPrediction, rates: Rates, fabric: FabricSpec
) -> tuple[FaultedJob, ...]:
    """Return the jobs that do not depend on what happens at these ports, with ratios of 1.

    Neither their transfers nor acknowledgements cross them, and they share no link with a job of which any do, not even
    through further jobs.
    """
    touched = _jobs_at(ports, healthy, rates, fabric)
    users: defaultdict[Port, set[int]] = defaultdict(set)
    for use in healthy.uses:
        users[use.port].add(use.job)
    jobs_before = -1
    while len(touched) > jobs_before:
        jobs_before = len(touched)
        for jobs in users.values():
            if not jobs.isdisjoint(touched):
                touched |= jobs
    same = Spread.point(1.0)
    jobs_apart: list[FaultedJob] = []
    for number, job in enumerate(healthy.combined.jobs):
        if number not in touched:
            jobs_apart.append(FaultedJob(job.name, same, same, same))
    return tuple(jobs_apart)


def _jobs_at(ports: Collection[Port], healthy: JobsPrediction, rates: Rates, fabric: FabricSpec) -> set[int]:
    """Return the numbers of the jobs whose transfers, or their acknowledgements, may cross any of these ports."""
    jobs: set[int] = set()
    # with even shares, all planes are one port
    all_planes = {port._replace(plane=0) for port in ports}
    src, dst = _ends(healthy)
    for near, far in ((src, dst), (dst, src)):
        routes = routes_of(near, far, rates, fabric)
        numbers = [number for number, port in enumerate(routes.ports) if port in all_planes]
        is_crossing = (np.isin(routes.crossed, numbers) & (routes.shares > 0)).any(axis=1)
        jobs.update(healthy.combined.job_of_gpu[gpu] for gpu in near[is_crossing].tolist())
    return jobs


def _lasting_alone_s(jobs: CombinedSchedule, conditions: Conditions, rates: Rates, fabric: FabricSpec) -> list[float]:
    """Return the mean iteration of each job without the others, with a fault that lasts for all of it, s.

    `conditions`: with the fault.
    """
    means_s: list[float] = []
    for number in range(len(jobs.jobs)):
        lone_job = jobs.alone(number)
        of_job = conditions
        if conditions.hash_seed is not None:
            of_job = replace(conditions, hash_seed=conditions.hash_seed + 1 + number)
        run = simulate(lone_job.schedule, rates, fabric, of_job)
        (seconds,) = lone_job.iteration_seconds(run.end_s)
        means_s.append(_mean(seconds))
    return means_s


def _ratios(
    healthy: JobsPrediction, run: FluidRun, fault: tuple[float, float], alone_s: Sequence[float]
) -> list[_Ratios]:
    """Return the ratios of each job.

    `run`: with the fault at its times, which are `fault`. `alone_s`: mean iterations alone, with a lasting fault.
    """
    ratios: list[_Ratios] = []
    faulted_s = healthy.combined.iteration_seconds(run.end_s)
    for number, job in enumerate(healthy.combined.jobs):
        times = healthy.times[number]
        span = (job.start_s, job.start_s + sum(faulted_s[number]))
        row = _Ratios(
            at_its_times=_mean(faulted_s[number]) / fmean(times.together_s),
            alone=alone_s[number] / fmean(times.alone_s),
            together=slow_down_meanwhile(span, fault, sum(times.together_s)),
        )
        ratios.append(row)
    return ratios


def _mean(seconds: Sequence[float]) -> float:
    """Return the mean of iterations; infinite if the job never ends."""
    mean_s = fmean(seconds)
    # the iteration after one that never ends has no length
    return mean_s if isfinite(mean_s) else inf


def _faulted_jobs(jobs: CombinedSchedule, draws: Sequence[Sequence[_Ratios]]) -> tuple[FaultedJob, ...]:
    """Return the predictions of all jobs. `draws`: the ratios of each, in each simulation."""
    faulted: list[FaultedJob] = []
    for number, job in enumerate(jobs.jobs):
        drawn = [draw[number] for draw in draws]
        together = [row.together for row in drawn if row.together is not None]
        faulted_job = FaultedJob(
            name=job.name,
            at_its_times=Spread.of([row.at_its_times for row in drawn]),
            alone=Spread.of([row.alone for row in drawn]),
            together=Spread.of(together) if len(together) == len(drawn) else None,
        )
        faulted.append(faulted_job)
    return tuple(faulted)
