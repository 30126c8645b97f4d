"""Shifts of jobs in time, so that their bursts on shared ports fall between one another: CASSINI's interleaving.

Each job's demand for a port, alone, is periodic with its iteration time: a circle. On a circle whose perimeter is a
multiple of all iteration times, one job is turned against the other. The compatibility of a shift is 1 less the mean
excess of the demands over the port's rate, as a share of that rate: 1 if the jobs never want more than there is. Of the
shifts that are most compatible, the one is best with which simulations with noise slow the jobs least on average.

Source: Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters", NSDI 2024, section 3
(geometric abstraction, unified circle, compatibility score). Bytes of payload, seconds, bytes a second.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from railyard.results.theory.fluid.jobs import JobsPrediction, predict_jobs
from railyard.results.theory.fluid.noisy_trials import NoisyTrials
from railyard.results.theory.fluid.routes import Amounts, Port
from railyard.results.theory.fluid.simulation import Conditions, FluidRun
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule, combined
from railyard.workloads.schedule import Rates

POINTS: Final = 72
"""Parts of an iteration: a shift is a whole number of them (5 degrees, as in the paper)."""
TRIED: Final = 6  # of the most compatible shifts, those that are simulated
MOST_TURNS: Final = 8  # of a job on the unified circle
MOST_PASSES: Final = 8  # over all jobs, in which each is shifted anew beside the others
EQUAL_SCORES: Final = 1e-6  # compatibilities that differ by less are equal
# of a part of a period, so that a time on an edge falls into the later part
ROUNDING: Final = 1e-6
# slow-downs that differ by less are equal: then the more compatible shift is better, or the one farther from collisions
EQUAL_SLOW_DOWNS: Final = 1e-3


@dataclass(frozen=True, eq=False)
class Demand:
    """Demand of a job for shared ports in an iteration alone. `rate`: a row for each port, a column for each part."""

    period_s: float
    rate: Amounts


class Interleaving(NamedTuple):
    """Shifts of jobs that let their bursts alternate, and what they are predicted to change.

    `shifts_s`: of each job, to be added to its start. `compatibility`: before and after.
    """

    shifts_s: tuple[float, ...]
    compatibility: tuple[float, float]
    before: JobsPrediction
    after: JobsPrediction

    @property
    def worst(self) -> tuple[float, float]:
        """The largest slow-down of a job before and after."""
        return _worst(self.before), _worst(self.after)


def interleaved(jobs: CombinedSchedule, shifts_s: Sequence[float]) -> CombinedSchedule:
    """Return the jobs with their starts delayed by these shifts."""
    placed = zip(jobs.jobs, shifts_s, strict=True)
    return combined([replace(job, start_s=job.start_s + shift_s) for job, shift_s in placed], jobs.schedule.name)


def best_interleaving(
    jobs: CombinedSchedule, rates: Rates, fabric: FabricSpec, conditions: Conditions | None = None
) -> Interleaving:
    """Find the shift of each job after the first that slows the jobs least. `rates`, `conditions`: as of `simulate`."""
    before = predict_jobs(jobs, rates, fabric, conditions)
    ports = before.shared_ports
    nothing = tuple(0.0 for _ in jobs.jobs)
    if not ports:
        return Interleaving(nothing, (1.0, 1.0), before, before)
    demands = [demand_of(run, before, number, ports) for number, run in enumerate(before.alone)]
    capacity = np.array([before.together.routes.rates[before.together.routes.number(port)] for port in ports])
    starts_s = [job.start_s for job in jobs.jobs]
    shifts_s = compatible_shifts(demands, starts_s, capacity)
    noisy = NoisyTrials(jobs, rates, fabric, conditions or Conditions(), TRIED * (len(demands) - 1))
    for number in range(1, len(demands)):
        neighbours = [neighbour for neighbour in range(len(demands)) if neighbour != number]
        candidates = _ranked_shifts(demands, starts_s, shifts_s, number, neighbours, capacity)[:TRIED]
        trials: list[float] = []
        for shift_s in candidates:
            tried_s = [*shifts_s[:number], shift_s, *shifts_s[number + 1 :]]
            shifted = interleaved(jobs, tried_s)
            trials.append(noisy.slow_down(shifted))
        least = min(trials)
        best = next(place for place, worst in enumerate(trials) if worst <= least + EQUAL_SLOW_DOWNS)
        shifts_s[number] = candidates[best]
    after = predict_jobs(interleaved(jobs, shifts_s), rates, fabric, conditions)
    scores_before = compatibility(list(zip(demands, starts_s, strict=True)), capacity)
    scores_after = compatibility(list(zip(demands, np.add(starts_s, shifts_s).tolist(), strict=True)), capacity)
    return Interleaving(tuple(shifts_s), (scores_before, scores_after), before, after)


def compatible_shifts(demands: Sequence[Demand], starts_s: Sequence[float], capacity: Amounts) -> list[float]:
    """Return shifts, s, with which jobs are compatible by their demands alone. The first job keeps its start.

    `starts_s`: of each job without a shift. `capacity`: of each port.
    """
    # only differences of shifts matter, so the first job has none
    shifts_s = [0.0] * len(demands)
    for number in range(1, len(demands)):
        shifts_s[number] = _ranked_shifts(demands, starts_s, shifts_s, number, range(number), capacity)[0]
    # a job in the middle between others may leave no room for the next one, until it moves too
    for _ in range(MOST_PASSES):
        previous_s = list(shifts_s)
        for number in range(1, len(demands)):
            neighbours = [neighbour for neighbour in range(len(demands)) if neighbour != number]
            shifts_s[number] = _ranked_shifts(demands, starts_s, shifts_s, number, neighbours, capacity)[0]
        if shifts_s == previous_s:
            break
    return shifts_s


def _ranked_shifts(
    demands: Sequence[Demand],
    starts_s: Sequence[float],
    shifts_s: Sequence[float],
    number: int,
    neighbours: Sequence[int],
    capacity: Amounts,
) -> list[float]:
    """Return all shifts of a job, by its number, beside those of its neighbours: the most compatible first, s."""
    placed = [(demands[neighbour], starts_s[neighbour] + shifts_s[neighbour]) for neighbour in neighbours]
    scores = scores_of_shifts(placed, demands[number], starts_s[number], capacity)
    step_s = demands[number].period_s / POINTS
    return [place * step_s for place in _by_compatibility(scores)]


def demand_of(run: FluidRun, prediction: JobsPrediction, number: int, ports: Sequence[Port]) -> Demand:
    """Return what a job that runs alone wants of these ports in its last iteration. `number`: of the job."""
    seconds = prediction.times[number].alone_s
    period_s = seconds[-1]
    begin_s = sum(seconds[:-1])
    # the first iteration may differ, as jobs fill their pipelines in it
    edges_s = begin_s + period_s * np.arange(POINTS + 1) / POINTS
    rows = [sent_in_parts(run, port, edges_s) for port in ports]
    return Demand(period_s, np.array(rows) * (POINTS / period_s))


def sent_in_parts(run: FluidRun, port: Port, edges_s: Amounts) -> Amounts:
    """Return the bytes that cross a port from each of these times to the next."""
    if port not in run.routes.ports:
        return np.zeros(len(edges_s) - 1)
    pieces = run.pieces
    flow = run.flow[pieces.task]
    share = (run.routes.shares[flow] * (run.routes.crossed[flow] == run.routes.number(port))).sum(axis=1)
    # pieces of other iterations would be most of the work
    used = np.flatnonzero((share > 0) & (pieces.end_s > edges_s[0]) & (pieces.start_s < edges_s[-1]))
    start_s = pieces.start_s[used][:, None]
    end_s = pieces.end_s[used][:, None]
    rate = (pieces.rate[used] * share[used])[:, None]
    crossed = (rate * np.clip(edges_s - start_s, 0.0, end_s - start_s)).sum(axis=0)
    parts: Amounts = np.diff(crossed)
    return parts


def compatibility(placed: Sequence[tuple[Demand, float]], capacity: Amounts) -> float:
    """Return the compatibility of jobs at the worst of their shared ports.

    `placed`: the demand of each job, and its start, s. `capacity`: of each port.
    """
    first, _ = placed[0]
    times_s = _times_on_circle([demand for demand, _ in placed])
    total = np.zeros((len(first.rate), len(times_s)))
    for demand, start_s in placed:
        total += _rate_at(demand, times_s - start_s)
    return float(_scores(total, capacity))


def scores_of_shifts(
    placed: Sequence[tuple[Demand, float]], demand: Demand, start_s: float, capacity: Amounts
) -> Amounts:
    """Return the compatibility with each shift of another job, by parts of its iteration.

    `placed`, `capacity`: as of `compatibility`. `start_s`: of the other job without a shift.
    """
    times_s = _times_on_circle([*(earlier for earlier, _ in placed), demand])
    total = np.zeros((len(demand.rate), len(times_s)))
    for earlier, earlier_s in placed:
        total += _rate_at(earlier, times_s - earlier_s)
    scores: list[float] = []
    for place in range(POINTS):
        shift_s = place * demand.period_s / POINTS
        wanted = total + _rate_at(demand, times_s - start_s - shift_s)
        scores.append(_scores(wanted, capacity))
    return np.array(scores, dtype=np.float64)


def _scores(wanted: Amounts, capacity: Amounts) -> float:
    """Return the least compatibility of all ports, a row each."""
    excess = np.maximum(0.0, wanted / capacity[:, None] - 1).mean(axis=1)
    return float(1 - excess.max(initial=0.0))


def _times_on_circle(demands: Sequence[Demand]) -> Amounts:
    """Return times on a circle that is a multiple of all iteration times, or about one; in parts of the first job's."""
    first_s = demands[0].period_s
    turns = 1
    for demand in demands[1:]:
        ratio = Fraction(first_s / demand.period_s).limit_denominator(MOST_TURNS)
        # after so many turns of the first job, the other one has made a whole number of turns
        turns = min(MOST_TURNS, int(np.lcm(turns, ratio.denominator)))
    # the middle of a part, so that errors of rounding move no time to another one
    parts = np.arange(turns * POINTS, dtype=np.float64) + 0.5
    times_s: Amounts = parts * (first_s / POINTS)
    return times_s


def _rate_at(demand: Demand, times_s: Amounts) -> Amounts:
    """Return what a job that began at 0 wants at these times: a row for each port."""
    parts = np.floor(times_s / demand.period_s * POINTS + ROUNDING).astype(np.int64) % POINTS
    wanted: Amounts = demand.rate[:, parts]
    return wanted


def _by_compatibility(scores: Amounts) -> list[int]:
    """Return all shifts, the most compatible first; of equals, those in the middle of the most equals in a row."""
    order: list[tuple[float, int, int]] = []
    for place, score in enumerate(scores.tolist()):
        # how far a job may drift in both directions before the score becomes worse
        margin = 0
        while margin < POINTS // 2:
            neighbours = scores[[(place - margin - 1) % POINTS, (place + margin + 1) % POINTS]]
            if neighbours.min() < score - EQUAL_SCORES:
                break
            margin += 1
        order.append((-round(score, 6), -margin, place))
    return [place for _, _, place in sorted(order)]


def _worst(prediction: JobsPrediction) -> float:
    return max(times.slow_down for times in prediction.times)
