"""Sections `jobs`, `arrivals` and `job_faults` of an experiment's file: jobs on one fabric, and faults meanwhile."""

from collections.abc import Sequence
from typing import Annotated, Final, cast

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator

from railyard.core.config import ConfigModel, OnFabrics, PlainName, check_unique
from railyard.core.errors import BadInput
from railyard.core.units import Time, time_between
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import FaultSpec
from railyard.experiments.spec.items import parsed_items
from railyard.topologies.addresses import MAX_DOMAINS, MAX_RAILS
from railyard.topologies.spec import FabricSpec
from railyard.workloads.arrivals.definition import MAX_START_S, ArrivalProcess, checked_starts, parse_arrivals
from railyard.workloads.placement.policy import PLACEMENT_POLICIES, JobGrid
from railyard.workloads.spec import WorkloadSpec, kinds_for

MAX_JOBS: Final = 20
MAX_COMPUTE_S: Final = 600.0
RectangleNumbers = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, strict=False), AfterValidator(check_unique)
]


class RectangleSpec(ConfigModel):
    """The GPUs of these `rails` in these `domains`, by number."""

    domains: RectangleNumbers
    rails: RectangleNumbers


class JobSpec(OnFabrics):
    """A job of `domains` x `rails` GPUs that takes `iterations` of its workload, one after the other.

    `placement`: the policy that chooses its GPUs, or its GPUs themselves: a `rectangle`, or `gpus` in the order of its
    ranks. `start`: after which it begins; left out, at once. `compute`: for which each GPU computes at the beginning of
    each iteration, before what the workload itself has: `stragglers` of the workload are slow there too.
    """

    name: PlainName
    workload: WorkloadSpec
    domains: Annotated[int, Field(ge=1, le=MAX_DOMAINS)] | None = None
    rails: Annotated[int, Field(ge=1, le=MAX_RAILS)] | None = None
    placement: Annotated[str, AfterValidator(PLACEMENT_POLICIES.checked)] = "rail-aligned"
    rectangle: RectangleSpec | None = None
    gpus: Annotated[tuple[str, ...], Field(min_length=2, strict=False), AfterValidator(check_unique)] | None = None
    iterations: Annotated[int, Field(ge=1, le=1000)] = 3
    start: Annotated[Time, time_between(0.001, MAX_START_S)] | None = None
    compute: Annotated[Time, time_between(0.001, MAX_COMPUTE_S)] | None = None

    @field_validator("rectangle")
    @classmethod
    def _check_no_other_size(cls, rectangle: RectangleSpec | None, info: ValidationInfo) -> RectangleSpec | None:
        has_size = info.data.get("domains") is not None or info.data.get("rails") is not None
        if rectangle is not None and has_size:
            raise ValueError("can't be given together with domains or rails: it says both")
        return rectangle

    @field_validator("gpus")
    @classmethod
    def _check_size(cls, gpus: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if gpus is None:
            return None
        if info.data.get("rectangle") is not None:
            raise ValueError("can't be given together with rectangle: give one of them")
        domains = info.data.get("domains") or 1
        rails = info.data.get("rails") or len(gpus) // domains
        if domains * rails != len(gpus):
            raise ValueError(f"must name {domains} x {rails} GPUs, not {len(gpus)}")
        return gpus

    @property
    def is_explicit(self) -> bool:
        """True if its GPUs are given, and no policy chooses them."""
        return self.rectangle is not None or self.gpus is not None

    def grid(self, fabric: FabricSpec) -> JobGrid:
        """Return its shape: by default all rails of the fabric, and one domain."""
        if self.rectangle is not None:
            return JobGrid(len(self.rectangle.domains), len(self.rectangle.rails))
        domains = self.domains or 1
        if self.gpus is not None:
            return JobGrid(domains, len(self.gpus) // domains)
        return JobGrid(domains, self.rails or fabric.rails)

    @property
    def placement_text(self) -> str:
        """The way in which its GPUs are chosen, in a word."""
        if self.rectangle is not None:
            return "rectangle"
        return "gpus" if self.gpus is not None else self.placement


def _parsed(data: object) -> object:
    return parsed_items(data, "jobs", JobSpec, kinds_for(FabricSpec))


def _check_names(jobs: tuple[JobSpec, ...]) -> tuple[JobSpec, ...]:
    """Return jobs. BadInput for one that has the name of an earlier one."""
    names: set[str] = set()
    for number, job in enumerate(jobs):
        if job.name in names:
            raise BadInput(f"jobs.{number}.name", job.name, "is the name of another job: give each its own")
        names.add(job.name)
    return jobs


Jobs = Annotated[
    tuple[JobSpec, ...],
    BeforeValidator(_parsed),
    Field(max_length=MAX_JOBS, strict=False),
    AfterValidator(_check_names),
]


def _parsed_arrivals(data: object) -> object:
    if data is None or isinstance(data, ArrivalProcess):
        return data
    return parse_arrivals(data)


Arrivals = Annotated[SerializeAsAny[ArrivalProcess] | None, BeforeValidator(_parsed_arrivals)]


JobFaults = Annotated[tuple[SerializeAsAny[FaultSpec], ...], Field(max_length=MAX_JOBS, strict=False)]


def faults_of(spec: ExperimentSpec) -> tuple[FaultSpec, ...]:
    """Return the faults that are injected while all jobs run, one at a time."""
    return cast(tuple[FaultSpec, ...], getattr(spec, "job_faults", ()))


def faults_on(spec: ExperimentSpec, fabric: int) -> tuple[FaultSpec, ...]:
    """Return the faults of a fabric, by its number."""
    return tuple(fault for fault in faults_of(spec) if fault.is_on(fabric))


def jobs_of(spec: ExperimentSpec) -> tuple[JobSpec, ...]:
    """Return the jobs of an experiment."""
    return cast(tuple[JobSpec, ...], getattr(spec, "jobs", ()))


def arrivals_of(spec: ExperimentSpec) -> ArrivalProcess | None:
    """Return the section `arrivals` of an experiment; None without one, when each job begins at its own start."""
    return cast(ArrivalProcess | None, getattr(spec, "arrivals", None))


def starts_of(spec: ExperimentSpec, jobs: Sequence[JobSpec]) -> Sequence[float]:
    """Return when jobs of one fabric begin, s. BadInput if the last one begins too late."""
    starts_s = [job.start or 0.0 for job in jobs]
    process = arrivals_of(spec)
    if process is None:
        return starts_s
    return checked_starts(process, starts_s, spec.seed)


def is_interleaved(spec: ExperimentSpec) -> bool:
    """Return whether jobs of an experiment run once more with the shifts that slow them least."""
    return bool(getattr(spec, "interleaving", False))
