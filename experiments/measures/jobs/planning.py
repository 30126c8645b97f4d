"""Jobs of an experiment on one fabric, planned before anything is built: their GPUs, their start, their schedule."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from railyard.core.config import check_numbers
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments.measures.jobs.spec import JobSpec, faults_of, is_interleaved, jobs_of, starts_of
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
from railyard.workloads.stragglers import check_computes, factors_of, jitter_factors, uneven

# jobs of the same size would else draw the same GPUs, traffic and jitter
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
        field = f"jobs.{number}"
        seed = _job_seed(spec.seed, number)
        schedule = _schedule(job, f"{field}.workload", gpus, plan, seed)
        # each iteration has a gate for each of the GPUs
        tasks += job.iterations * (len(schedule.tasks) + len(gpus))
        check_total(tasks, plan.spec.gpus, f"{field}.iterations", job.iterations)
        factors = _compute_factors(job, plan.spec, seed)
        placed_jobs.append(PlacedJob(job.name, schedule, gpus, job.iterations, start_s, job.compute or 0.0, factors))
    return PlannedJobs(tuple(jobs), tuple(numbers), combined(placed_jobs))


def check_jobs(spec: ExperimentSpec) -> None:
    """Raise BadInput for jobs that a fabric can't have."""
    _check_interleaving(spec)
    for number, fault in enumerate(faults_of(spec)):
        check_numbers(fault.on, len(spec.gpu_fabrics), f"job_faults.{number}.on")
    for number, fabric in enumerate(spec.gpu_fabrics):
        if any(job.is_on(number) for job in jobs_of(spec)):
            check_gpus(fabric.domains, fabric.rails, f"fabrics.{number}.domains")
            # sizes and places don't depend on rates
            planned_jobs(spec, number, nominal_plan(fabric))
            _check_faults(spec, number, nominal_plan(fabric))


def _check_interleaving(spec: ExperimentSpec) -> None:
    """Raise BadInput for interleaving where no fabric has jobs to interleave."""
    if not is_interleaved(spec):
        return
    for number in range(len(spec.gpu_fabrics)):
        if sum(job.is_on(number) for job in jobs_of(spec)) > 1:
            return
    raise BadInput("interleaving", True, "has no effect: it needs two jobs or more on a fabric")


def _check_faults(spec: ExperimentSpec, fabric: int, plan: Plan) -> None:
    """Raise BadInput for a fault whose target the fabric hasn't."""
    for number, fault in enumerate(faults_of(spec)):
        if not fault.is_on(fabric):
            continue
        problem = fault.fault.definition.target_problem(plan, fault.target)
        if problem:
            raise BadInput(f"job_faults.{number}.target", fault.target, problem)


def _job_seed(seed: int, number: int) -> int:
    """Return the seed of a job, by its number in the experiment."""
    return seed + _SEED_STEP * number


def _schedule(job: JobSpec, field: str, gpus: tuple[int, ...], plan: Plan, seed: int) -> Schedule:
    """Return an iteration of a job, built for its own grid, on its GPUs of the fabric."""
    grid = job.grid(plan.spec)
    # the job knows nothing of the rest of the fabric, and not which of its GPUs share NICs
    size = {"domains": grid.domains, "rails": grid.rails, "gpus_per_nic": None, "nics": None, "optical": None}
    own_fabric = plan.spec.model_copy(update=size)
    # a workload that only sends may have stragglers where its job computes before it
    even_workload = job.workload.model_copy(update={"stragglers": None})
    schedule = build(even_workload, own_fabric, plan.rail_bps, plan.hb_bps, field, seed).schedule
    stragglers = job.workload.stragglers
    if stragglers is not None:
        stragglers_field = f"{field}.stragglers"
        if not job.compute:
            hint = "give the job `compute`, or a workload that computes"
            check_computes(schedule, stragglers, stragglers_field, hint)
        schedule = uneven(schedule, stragglers, stragglers_field, seed)
    return relabelled(schedule, gpus, plan.spec.gpus, plan.spec.rails)


def _compute_factors(job: JobSpec, fabric: FabricSpec, seed: int) -> tuple[float, ...]:
    """Return how many times as long the GPU of each rank computes before its workload; empty if all are alike.

    The names of its stragglers have been checked.
    """
    stragglers = job.workload.stragglers
    if stragglers is None:
        return ()
    grid = job.grid(fabric)
    factors = factors_of(stragglers.slow, grid.domains, grid.rails, "stragglers")
    # by draws other than those of the schedule
    drawn = jitter_factors(len(factors), stragglers.jitter, seed + 1)
    return tuple((drawn * factors).tolist())


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
            gpus_of[job.name] = _chosen_gpus(job, f"jobs.{number}", fabric, owners, _job_seed(seed, number))
            owners |= dict.fromkeys(gpus_of[job.name], job.name)
    return [gpus_of[job.name] for job in jobs]


def _check_size(job: JobSpec, field: str, fabric: FabricSpec) -> None:
    grid = job.grid(fabric)
    if grid.gpus < MIN_GPUS:
        raise BadInput(field, str(grid), "must have 2 GPUs or more: one has no other to send to")
    if grid.gpus > fabric.gpus:
        largest = JobGrid(fabric.domains, fabric.rails)
        too_large = f"has {grid.gpus} GPUs, more than the fabric's {fabric.gpus}: the largest job is {largest}"
        raise BadInput(field, str(grid), too_large)


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
            raise BadInput(field, names[gpu], f"is a GPU of job {owners[gpu]} too: give each GPU to one job")
    return gpus


def _check_choice(gpus: Sequence[int], grid: JobGrid, free: FreeGpus, field: str, policy: str) -> None:
    """Raise BadInput unless a policy, which may be a plugin's, gives a job as many free GPUs as its grid has."""
    if len(gpus) != grid.gpus or len(set(gpus)) != len(gpus) or not free.numbers.issuperset(gpus):
        wrong = f"gives GPUs {list(gpus)} for {grid}: its place() must return {grid.gpus} different free GPUs, or None"
        raise BadInput(field, policy, wrong)


def _chosen_gpus(job: JobSpec, field: str, fabric: FabricSpec, owners: dict[int, str], seed: int) -> tuple[int, ...]:
    """Return the GPUs that a job's policy chooses. BadInput if it finds no place."""
    policy: PlacementPolicy = PLACEMENT_POLICIES[job.placement]
    grid = job.grid(fabric)
    free = FreeGpus(fabric.domains, fabric.rails, frozenset(range(fabric.gpus)) - owners.keys())
    gpus = policy.place(grid, free, Random(seed))
    if gpus is not None:
        _check_choice(gpus, grid, free, f"{field}.placement", job.placement)
        return gpus
    # a user who has to change the size wants to know to what
    largest = largest_grid(policy, grid, free, seed)
    fits = f"the largest that fits is {largest}" if largest else "no GPUs are left"
    beside = f"beside {', '.join(dict.fromkeys(owners.values()))}" if owners else "on this fabric"
    raise BadInput(f"{field}.placement", job.placement, f"has no place for {grid} {beside}: {fits}")
