"""Jobs of an experiment on one fabric, planned before anything is built: their GPUs, their start, their schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments.measures.jobs.spec import JobSpec, faults_of, jobs_of, starts_of
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule, PlacedJob, combined
from railyard.workloads.placement.layout import relabelled
from railyard.workloads.placement.policy import (
    MIN_GPUS,
    PLACEMENT_POLICIES,
    FreeGpus,
    JobGrid,
    PlacementPolicy,
    largest_grid,
)
from railyard.workloads.schedule import Schedule, check_gpus, check_total
from railyard.workloads.spec import build
from railyard.workloads.stragglers import Stragglers, factors_of, jitter_factors, with_stragglers

# jobs of the same size would else draw the same GPUs and the same jitter
_SEED_STEP: Final = 1_000_003


@dataclass(frozen=True)
class PlannedJobs:
    """The jobs of a fabric in one schedule, `items` as the experiment has them. `numbers`: of each in its section."""

    items: tuple[JobSpec, ...]
    numbers: tuple[int, ...]
    combined: CombinedSchedule


def planned_jobs(spec: ExperimentSpec, fabric: int, plan: Plan) -> PlannedJobs:
    """Return the jobs on a fabric, by its number. BadInput for jobs that it can't have."""
    numbers: list[int] = []
    jobs: list[JobSpec] = []
    for number, job in enumerate(jobs_of(spec)):
        if job.is_on(fabric):
            numbers.append(number)
            jobs.append(job)
    placed = _placed(jobs, numbers, plan.spec, spec.seed)
    starts_s = starts_of(spec, jobs)
    tasks = 0
    placed_jobs: list[PlacedJob] = []
    for number, job, gpus, start_s in zip(numbers, jobs, placed, starts_s, strict=True):
        schedule = _schedule(job, f"jobs.{number}.workload", gpus, plan, spec.seed)
        # each iteration has a gate for each of the GPUs
        tasks += job.iterations * (len(schedule.tasks) + len(gpus))
        check_total(tasks, plan.spec.gpus, f"jobs.{number}.iterations", job.iterations)
        placed_job = PlacedJob(job.name, schedule, gpus, job.iterations, start_s, job.compute or 0.0)
        if job.stragglers is not None:
            grid = job.grid(plan.spec)
            seed = spec.seed + _SEED_STEP * number
            placed_job = _with_stragglers(placed_job, job.stragglers, grid, seed, f"jobs.{number}.stragglers")
        placed_jobs.append(placed_job)
    return PlannedJobs(tuple(jobs), tuple(numbers), combined(placed_jobs))


def check_jobs(spec: ExperimentSpec) -> None:
    """Raise BadInput for jobs that a fabric can't have."""
    for number, fabric in enumerate(spec.gpu_fabrics):
        if any(job.is_on(number) for job in jobs_of(spec)):
            check_gpus(fabric.domains, fabric.rails, f"fabrics.{number}.domains")
            # sizes and places don't depend on rates
            planned_jobs(spec, number, nominal_plan(fabric))
            _check_faults(spec, nominal_plan(fabric))


def _check_faults(spec: ExperimentSpec, plan: Plan) -> None:
    """Raise BadInput for a fault whose target the fabric hasn't."""
    for number, fault in enumerate(faults_of(spec)):
        problem = fault.fault.definition.target_problem(plan, fault.target)
        if problem:
            raise BadInput(f"job_faults.{number}.target", fault.target, problem)


def _schedule(job: JobSpec, field: str, gpus: tuple[int, ...], plan: Plan, seed: int) -> Schedule:
    """Return an iteration of a job, built for its own grid, on its GPUs of the fabric."""
    grid = job.grid(plan.spec)
    # the job knows nothing of the rest of the fabric, and not which of its GPUs share NICs
    size = {"domains": grid.domains, "rails": grid.rails, "gpus_per_nic": None, "nics": None, "optical": None}
    own_fabric = plan.spec.model_copy(update=size)
    built = build(job.workload, own_fabric, plan.rail_bps, plan.hb_bps, field, seed)
    return relabelled(built.schedule, gpus, plan.spec.gpus, plan.spec.rails)


def _with_stragglers(placed: PlacedJob, stragglers: Stragglers, grid: JobGrid, seed: int, field: str) -> PlacedJob:
    """Return a job whose GPUs compute more slowly, or not always for the same time. BadInput if it never computes."""
    factors = factors_of(stragglers.slow, grid.domains, grid.rails, field)
    if not placed.compute_s and not placed.schedule.columns.is_compute.any():
        needed = "has no effect: give the job `compute`, or a workload that computes"
        raise BadInput(field, stragglers.model_dump(exclude_defaults=True), needed)
    factors_on_fabric = [1.0] * placed.schedule.gpus
    for gpu, factor in zip(placed.gpus, factors, strict=True):
        factors_on_fabric[gpu] = factor
    schedule = with_stragglers(placed.schedule, factors_on_fabric, stragglers.jitter, seed)
    # by draws other than those of the schedule
    drawn = jitter_factors(len(factors), stragglers.jitter, seed + 1)
    compute_factors = tuple((drawn * factors).tolist())
    return replace(placed, schedule=schedule, compute_factors=compute_factors)


def _placed(jobs: Sequence[JobSpec], numbers: Sequence[int], fabric: FabricSpec, seed: int) -> list[tuple[int, ...]]:
    """Return the GPUs of each job. Those with given GPUs get them before the policies choose for the others."""
    owners: dict[int, str] = {}
    gpus_of: dict[str, tuple[int, ...]] = {}
    # a policy that chose first could take a GPU that a later job names
    for number, job in zip(numbers, jobs, strict=True):
        _check_size(job, f"jobs.{number}", fabric)
        if job.is_explicit:
            gpus_of[job.name] = _given_gpus(job, f"jobs.{number}", fabric, owners)
            owners |= dict.fromkeys(gpus_of[job.name], job.name)
    for number, job in zip(numbers, jobs, strict=True):
        if not job.is_explicit:
            gpus_of[job.name] = _chosen_gpus(job, f"jobs.{number}", fabric, owners, seed + _SEED_STEP * number)
            owners |= dict.fromkeys(gpus_of[job.name], job.name)
    return [gpus_of[job.name] for job in jobs]


def _check_size(job: JobSpec, field: str, fabric: FabricSpec) -> None:
    grid = job.grid(fabric)
    if grid.gpus < MIN_GPUS:
        raise BadInput(field, str(grid), "must have 2 GPUs or more: one has no other to send to")
    if grid.gpus > fabric.gpus:
        allowed = f"has {grid.gpus} GPUs, more than the fabric's {JobGrid(fabric.domains, fabric.rails)}"
        raise BadInput(field, str(grid), f"{allowed} = {fabric.gpus}")


def _given_gpus(job: JobSpec, field: str, fabric: FabricSpec, owners: dict[int, str]) -> tuple[int, ...]:
    """Return the GPUs that a job names. BadInput for those that the fabric hasn't, or another job has."""
    names = [Gpu(*divmod(number, fabric.rails)).name for number in range(fabric.gpus)]
    if job.rectangle is not None:
        field = f"{field}.rectangle"
        for key, numbers, count in (
            ("domains", job.rectangle.domains, fabric.domains),
            ("rails", job.rectangle.rails, fabric.rails),
        ):
            for place, number in enumerate(numbers):
                if number >= count:
                    raise BadInput(f"{field}.{key}.{place}", number, f"must be {count - 1} or less on this fabric")
        gpus = tuple(domain * fabric.rails + rail for domain in job.rectangle.domains for rail in job.rectangle.rails)
    else:
        field = f"{field}.gpus"
        for place, name in enumerate(job.gpus or ()):
            if name not in names:
                raise BadInput(f"{field}.{place}", name, unknown_name_hint(name, names))
        gpus = tuple(names.index(name) for name in job.gpus or ())
    for gpu in gpus:
        if gpu in owners:
            raise BadInput(field, names[gpu], f"is a GPU of job {owners[gpu]} too: jobs share links, and no GPU")
    return gpus


def _chosen_gpus(job: JobSpec, field: str, fabric: FabricSpec, owners: dict[int, str], seed: int) -> tuple[int, ...]:
    """Return the GPUs that a job's policy chooses. BadInput if it finds no place."""
    policy: PlacementPolicy = PLACEMENT_POLICIES[job.placement]
    grid = job.grid(fabric)
    free = FreeGpus(fabric.domains, fabric.rails, frozenset(range(fabric.gpus)) - owners.keys())
    gpus = policy.place(grid, free, Random(seed))
    if gpus is not None:
        return gpus
    # a user who has to change the size wants to know to what
    largest = largest_grid(policy, grid, free, seed)
    fits = f"the largest that fits is {largest}" if largest else "no GPUs are left"
    beside = f"beside {', '.join(dict.fromkeys(owners.values()))}" if owners else "on this fabric"
    raise BadInput(f"{field}.placement", job.placement, f"has no place for {grid} {beside}: {fits}")
