"""Several jobs in one schedule: their tasks, the order of iterations, and the times of each."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import collective_schedule
from railyard.workloads.combined import PlacedJob, combined
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.placement.layout import relabelled
from railyard.workloads.schedule import Rates, Schedule
from tests.unit.workloads.schedules import schedules

FABRIC = FabricSpec(kind="rail-only", domains=4, rails=4)
RATES = Rates(hb=4e6, rail=1e6)
LEFT = (0, 1, 4, 5)
RIGHT = (10, 11, 14, 15)


def placed(name: str, gpus: tuple[int, ...], collective: str = "all-reduce-ring", **more: float) -> PlacedJob:
    """A job of 2 x 2 GPUs on these of FABRIC."""
    schedule = relabelled(collective_schedule(collective, 2, 2, 100_000), gpus, 16, 4)
    return replace(PlacedJob(name, schedule, gpus), **more)  # type: ignore[arg-type]


@given(iterations=st.integers(1, 3), schedule=schedules())
def test_each_gpu_ends_an_iteration_before_the_next(iterations: int, schedule: Schedule) -> None:
    gpus = (0, 1, 4, 5, 8, 9)[: schedule.gpus]
    job = PlacedJob("a", relabelled(schedule, gpus, 16, 4), gpus, iterations)
    both = combined([placed("b", RIGHT), job])
    both.schedule.check()
    columns = both.schedule.columns
    before = [set[int]() for _ in range(len(columns))]
    for number, task in enumerate(columns):
        for earlier in task.after:
            before[number] |= before[earlier] | {earlier}
    for number in np.flatnonzero((both.job_of_task == 1) & ~both.is_gate).tolist():
        iteration = both.iteration_of_task[number]
        ends_here = (columns.src == columns.src[number]) | (columns.dst == columns.src[number])
        earlier = (both.job_of_task == 1) & (both.iteration_of_task < iteration) & ends_here
        assert set(np.flatnonzero(earlier).tolist()) <= before[number]


def test_tasks_of_a_job_keep_their_bytes_phases_and_gpus() -> None:
    both = combined([placed("a", LEFT, iterations=3), placed("b", RIGHT, "all-to-all")])
    columns = both.schedule.columns
    for number, job in enumerate(both.jobs):
        own = (both.job_of_task == number) & ~both.is_gate
        assert columns.bytes[own].sum() == job.iterations * job.schedule.columns.bytes.sum()
        assert set(columns.src[own].tolist()) == set(job.gpus)
        names = {both.schedule.phases[phase].name for phase in columns.phase[own].tolist()}
        assert names == {f"{job.name}: {phase.name}" for phase in job.schedule.phases}
    assert both.job_of_gpu == dict.fromkeys(LEFT, 0) | dict.fromkeys(RIGHT, 1)


@given(iterations=st.integers(1, 4), start_s=st.floats(0, 2))
def test_disjoint_jobs_take_their_own_times_at_line_rate(iterations: int, start_s: float) -> None:
    jobs = [placed("a", LEFT, iterations=iterations, start_s=start_s), placed("b", RIGHT)]
    alone_s = line_rate_duration_s(jobs[0].schedule, RATES, FABRIC)
    both = combined(jobs)
    total_s = line_rate_duration_s(both.schedule, RATES, FABRIC)
    assert total_s == pytest.approx(max(start_s + iterations * alone_s, alone_s))
    assert both.alone(0).jobs[0].start_s == 0


def test_iterations_are_timed_from_end_to_end() -> None:
    both = combined([placed("a", LEFT, iterations=2, start_s=1.0), placed("b", RIGHT, start_s=0.5)])
    ends = np.zeros(len(both.schedule.tasks))
    for block, end in zip(both.blocks, (3.0, 7.5, 2.0), strict=True):
        ends[block.end - 1] = end
    assert both.iteration_seconds(ends) == ((2.0, 4.5), (1.5,))
    ends[both.blocks[1].begin] = np.nan
    assert np.isnan(both.iteration_seconds(ends)[0][1])


def test_jobs_that_share_a_gpu_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a and b are both on GPU 1"):
        combined([placed("a", LEFT), placed("b", (1, 2, 8, 9))])
