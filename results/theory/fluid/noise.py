"""Noise of iterations as measured on packets, and jobs whose computing takes longer or shorter by it."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from railyard.core.installation import data_file
from railyard.results.theory.fluid.routes import Amounts
from railyard.workloads.combined import CombinedSchedule

NOISE: Final = data_file("results/theory/fluid/iteration_noise.csv")


@cache
def measured_noise() -> Amounts:
    """Return by how much measured iterations of a healthy job took longer than their median, as a part of it.

    They are in the order in which they ran.
    """
    lines = [line for line in NOISE.read_text().splitlines() if not line.startswith("#")]
    return np.array([float(row["deviation"]) for row in csv.DictReader(lines)])


def drawn_factors(jobs: CombinedSchedule, noise: Amounts, rng: np.random.Generator) -> list[Amounts]:
    """Return for each job how many times as long each of its iterations computes.

    `noise`: as of `measured_noise`. A job gets the noise of iterations that were measured one after the other, from a
    random one on: what disturbs one iteration often disturbs the next ones, so that single draws would drift less.
    """
    factors: list[Amounts] = []
    for job in jobs.jobs:
        first = int(rng.integers(len(noise)))
        places = (first + np.arange(job.iterations)) % len(noise)
        factors.append(1 + noise[places])
    return factors


def computing_seconds(jobs: CombinedSchedule) -> Amounts:
    """Return for how long each task computes, s: 0 for transfers, and for the time until the start of a job."""
    columns = jobs.schedule.columns
    seconds = columns.seconds.copy()
    # the first gates of a job also have the time until its start
    for number, job in enumerate(jobs.jobs):
        is_gate = jobs.is_gate & (jobs.job_of_task == number)
        seconds[is_gate] = job.compute_seconds(columns.src[is_gate])
    return seconds


def with_factors(jobs: CombinedSchedule, factors: Sequence[Amounts]) -> CombinedSchedule:
    """Return the same jobs with all computing of each iteration so many times as long. Their start times stay.

    `factors`: as of `drawn_factors`.
    """
    columns = jobs.schedule.columns
    factor = np.ones(len(columns))
    for number, factors_of_job in enumerate(factors):
        is_of_job = jobs.job_of_task == number
        factor[is_of_job] = factors_of_job[jobs.iteration_of_task[is_of_job]]
    tasks = replace(columns, seconds=columns.seconds + (factor - 1) * computing_seconds(jobs))
    return replace(jobs, schedule=replace(jobs.schedule, tasks=tasks))
