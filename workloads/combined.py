"""Several jobs in one schedule, so that the same few replay processes play them all at once.

A job is a schedule of one iteration on its GPUs of the fabric, which repeats. Its tasks of an iteration are a block:
first a gate for each of its GPUs, a computation of the job's computing time (in the first iteration: after its start
time), then the iteration's own tasks. A GPU begins an iteration when all that ends at it in the iteration before has
ended; no GPU waits for the others of its job, as these don't in reality either. Jobs share links, and no GPU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from railyard.workloads.columns import Columns, Numbers
from railyard.workloads.schedule import Phase, Schedule

GATE: Final = "start"
"""The phase of gates, after the job's name; it sends nothing."""
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PlacedJob:
    """A job on its GPUs of a fabric.

    `schedule`: one iteration, on the fabric (placement.layout.relabelled). `gpus`: the GPU of each of its ranks, by
    number on the fabric. `start_s`: after which it begins. `compute_s`: for which each GPU computes at the beginning of
    each iteration, before what the schedule has. `compute_factors`: how many times as long the GPU of each rank
    computes then; empty if all are alike.
    """

    name: str
    schedule: Schedule
    gpus: tuple[int, ...]
    iterations: int = 1
    start_s: float = 0.0
    compute_s: float = 0.0
    compute_factors: tuple[float, ...] = ()

    def compute_seconds(self, gpus: Numbers) -> Seconds:
        """Return for how long each of these GPUs of the job computes at the beginning of an iteration, s."""
        seconds = np.full(len(gpus), self.compute_s)
        if self.compute_factors:
            factors = dict(zip(self.gpus, self.compute_factors, strict=True))
            seconds *= np.array([factors[gpu] for gpu in gpus.tolist()])
        return seconds


class Block(NamedTuple):
    """The tasks of a job's iteration in the combined schedule: gates from `first`, own tasks from `begin` to `end`."""

    job: int
    iteration: int
    first: int
    begin: int
    end: int


@dataclass(frozen=True)
class CombinedSchedule:
    """Jobs and their joined schedule, whose phases are named `job: phase`. `blocks`: job by job, in order."""

    jobs: tuple[PlacedJob, ...]
    schedule: Schedule
    blocks: tuple[Block, ...]

    @cached_property
    def job_of_task(self) -> Numbers:
        """The number of the job of each task."""
        blocks = np.array(self.blocks, dtype=np.int64).reshape(-1, len(Block._fields))
        return np.repeat(blocks[:, 0], blocks[:, 4] - blocks[:, 2])

    @cached_property
    def iteration_of_task(self) -> Numbers:
        """The iteration of each task, from 0."""
        blocks = np.array(self.blocks, dtype=np.int64).reshape(-1, len(Block._fields))
        return np.repeat(blocks[:, 1], blocks[:, 4] - blocks[:, 2])

    @cached_property
    def is_gate(self) -> npt.NDArray[np.bool_]:
        """Whether each task is a gate, and none of the job's own."""
        result = np.zeros(len(self.schedule.tasks), dtype=bool)
        for block in self.blocks:
            result[block.first : block.begin] = True
        return result

    @cached_property
    def job_of_gpu(self) -> dict[int, int]:
        """The number of the job on each GPU that has one."""
        jobs: dict[int, int] = {}
        for number, job in enumerate(self.jobs):
            jobs.update(dict.fromkeys(job.gpus, number))
        return jobs

    def alone(self, job: int) -> "CombinedSchedule":
        """Return a job, by its number, without the others and from time 0 on."""
        return combined([replace(self.jobs[job], start_s=0.0)])

    def iteration_seconds(self, ends: Seconds) -> tuple[tuple[float, ...], ...]:
        """Return how long each iteration of each job takes, s, from the end of the one before.

        `ends`: of each task, s from the start of the schedule; NaN for a task that never ended.
        """
        seconds: list[list[float]] = [[] for _ in self.jobs]
        previous_end = 0.0
        for block in self.blocks:
            if block.iteration == 0:
                previous_end = self.jobs[block.job].start_s
            end = float(np.max(ends[block.first : block.end]))
            seconds[block.job].append(end - previous_end)
            previous_end = end
        return tuple(map(tuple, seconds))


def combined(jobs: Sequence[PlacedJob], name: str = "jobs") -> CombinedSchedule:
    """Return all jobs in one schedule. ValueError if two of them have a GPU, or are on different fabrics."""
    _check(jobs)
    parts: list[Columns] = []
    phases: list[Phase] = []
    blocks: list[Block] = []
    first = 0
    for number, job in enumerate(jobs):
        # iterations differ in their numbers alone, so the work per task is done once
        template = _Template.of(job.schedule)
        for iteration in range(job.iterations):
            gate_s = job.compute_seconds(template.gates)
            if iteration == 0:
                gate_s += job.start_s
            part = template.block(first, len(phases), iteration > 0, gate_s)
            parts.append(part)
            phases += _named_phases(job)
            blocks.append(Block(number, iteration, first, first + len(template.gates), first + len(part)))
            first += len(part)
    fabric = jobs[0].schedule
    schedule = Schedule(name, fabric.gpus, fabric.rails, tuple(phases), Columns.joined(parts))
    return CombinedSchedule(tuple(jobs), schedule, tuple(blocks))


def _check(jobs: Sequence[PlacedJob]) -> None:
    owners: dict[int, str] = {}
    for job in jobs:
        if (job.schedule.gpus, job.schedule.rails) != (jobs[0].schedule.gpus, jobs[0].schedule.rails):
            raise ValueError(f"{job.name} and {jobs[0].name} are on different fabrics")
        for gpu in job.gpus:
            if gpu in owners:
                raise ValueError(f"{owners[gpu]} and {job.name} are both on GPU {gpu}")
            owners[gpu] = job.name


def _named_phases(job: PlacedJob) -> Iterator[Phase]:
    """Yield the phase of gates, then those of an iteration, with the job's name."""
    yield Phase(f"{job.name}: {GATE}", GATE, "", 1, 1, 0.0)
    for phase in job.schedule.phases:
        yield replace(phase, name=f"{job.name}: {phase.name}")


@dataclass(frozen=True)
class _Template:
    """A job's iteration, with numbers from its first gate on.

    `gates`: the GPU of each gate. `last`: the tasks that each gate waits for in the iteration before, gate by gate, and
    `last_end`, where those of each gate end in it.
    """

    gates: Numbers
    last: Numbers
    last_end: Numbers
    tasks: Columns

    @classmethod
    def of(cls, schedule: Schedule) -> "_Template":
        """Return the template of a job's iteration."""
        columns = schedule.columns
        gates = np.unique(columns.src)
        waiting = np.repeat(np.arange(len(columns)), np.diff(columns.after_end, prepend=0))
        # with a task of its own GPU before it, a task comes after the gate already
        follows_own = np.zeros(len(columns), dtype=bool)
        follows_own[waiting[columns.src[columns.after] == columns.src[waiting]]] = True
        entry_gate = np.searchsorted(gates, columns.src)
        last, last_end = _last_tasks(columns, gates, waiting)
        tasks = _behind_gates(columns, ~follows_own, entry_gate, len(gates))
        return cls(gates, last + len(gates), last_end, tasks)

    def block(self, first: int, first_phase: int, is_later: bool, gate_s: Seconds) -> Columns:
        """Return the columns of an iteration whose first gate is task number `first`.

        `is_later`: an iteration of the job comes before it, directly. `gate_s`: seconds of each of its gates.
        """
        count = len(self.gates)
        size = count + len(self.tasks)
        nothing = np.zeros(count, dtype=np.int64)
        gates = Columns(
            src=self.gates,
            dst=self.gates,
            bytes=nothing,
            seconds=gate_s,
            is_compute=np.ones(count, dtype=bool),
            phase=np.full(count, first_phase),
            stripe=nothing,
            after_end=self.last_end if is_later else nothing,
            after=self.last + (first - size) if is_later else nothing[:0],
        )
        tasks = self.tasks
        own = replace(tasks, phase=tasks.phase + (first_phase + 1), after=tasks.after + first)
        return Columns.joined([gates, own])


def _last_tasks(columns: Columns, gates: Numbers, waiting: Numbers) -> tuple[Numbers, Numbers]:
    """Return the tasks that end at each GPU of `gates` and that no task of the GPU waits for, and where each's end.

    `waiting`: the task that each number of `columns.after` is for.
    """
    number = np.arange(len(columns))
    transfers = number[~columns.is_compute]
    ended = np.concatenate((number, transfers))
    gpu = np.concatenate((columns.src, columns.dst[transfers]))
    span = int(max(columns.src.max(initial=0), columns.dst.max(initial=0))) + 1
    awaited = columns.after * span + columns.src[waiting]
    is_last = ~np.isin(ended * span + gpu, awaited) & np.isin(gpu, gates)
    ended = ended[is_last]
    gate = np.searchsorted(gates, gpu[is_last])
    order = np.lexsort((ended, gate))
    return ended[order], np.cumsum(np.bincount(gate, minlength=len(gates)))


def _behind_gates(columns: Columns, is_entry: npt.NDArray[np.bool_], gate: Numbers, gates: int) -> Columns:
    """Return tasks with numbers from behind the gates on, of which entries wait for the gate of their GPU too."""
    counts = np.diff(columns.after_end, prepend=0)
    after_end = np.cumsum(counts + is_entry)
    after = np.empty(int(after_end[-1]) if len(after_end) else 0, dtype=np.int64)
    gate_place = (after_end - counts - 1)[is_entry]
    is_own = np.ones(len(after), dtype=bool)
    is_own[gate_place] = False
    after[gate_place] = gate[is_entry]
    after[is_own] = columns.after + gates
    return replace(columns, after_end=after_end, after=after)
