"""Section `replacements` of an experiment's file: GPUs that fail for good under a running job, and their spares.

Rail-only IV-C, "Fault Tolerance Properties"; docs/failure.md has a table of the cases. Spares come on top of the fabric
that the file gives: a domain, or for case idle-gpu a GPU in each domain.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator

from railyard.core.config import OnFabrics, find_problems
from railyard.core.errors import BadInput
from railyard.core.units import Time
from railyard.experiments.spec.items import parsed_items
from railyard.failure.faults import Fault
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.spec import FabricSpec
from railyard.workloads.jobs.gpt import GptSpec
from railyard.workloads.jobs.migration import stateful_kinds
from railyard.workloads.spec import WorkloadSpec

Case = Literal["server", "idle-gpu", "small-domain", "large-domain"]
Way = Literal["optical", "direct", "migration", "any-gpu"]

LAYERS: Final[Mapping[Case, list[str]]] = {"idle-gpu": ["rail"], "large-domain": ["rail", "hb"]}
"""Where optical switches bring a spare in, these have to reconfigure."""
WAYS: Final[Mapping[Case, tuple[tuple[Way, ...], tuple[Way, ...]]]] = {
    "server": (("migration",), ("migration",)),
    "idle-gpu": (("optical",), ("direct", "optical")),
    "small-domain": (("migration",), ("migration",)),
    "large-domain": (("optical",), ("optical", "any-gpu")),
}
"""By case, for rails that are separate, and for rails that the NIC network joins; the first way is the paper's."""
DEFAULT_JOB: Final = GptSpec.model_validate({"kind": "gpt", "duration": "1s"})


class ReplacementSpec(OnFabrics):
    """A case of Rail-only IV-C: `failed` (a GPU; of case server an HB domain) fails in the middle of an iteration.

    `iterations` of the job are measured before and after. Every `checkpoint_every` of them each rank keeps its state;
    the job goes on from there. `gpus`: of case large-domain, how many are replaced, the failed one and the ranks after
    it. `switching_time`: how long optical switches take, where they bring a spare in; None: a fabric's usual.
    """

    case: Case
    failed: str
    way: Way | None = None
    workload: WorkloadSpec = DEFAULT_JOB
    iterations: Annotated[int, Field(ge=1, le=100)] = 3
    checkpoint_every: Annotated[int, Field(ge=1, le=1000)] = 1
    gpus: Annotated[int, Field(ge=1)] = 1
    switching_time: Time | None = None

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: int, info: ValidationInfo) -> int:
        if gpus > 1 and info.data.get("case") != "large-domain":
            raise ValueError("is for case large-domain alone")
        return gpus

    def way_on(self, fabric: FabricSpec) -> Way:
        """Return the way that is given, or the paper's for this kind of fabric."""
        return self.way or WAYS[self.case][fabric.definition.joins_rails][0]

    @property
    def fault(self) -> Fault:
        """Fault that takes the GPU or HB domain out."""
        if self.case == "server":
            return Fault("server-crash", self.failed)
        return Fault("gpu-crash", self.failed)


def _parsed(data: object) -> object:
    return parsed_items(data, "replacements", ReplacementSpec, stateful_kinds())


Replacements = Annotated[tuple[ReplacementSpec, ...], BeforeValidator(_parsed), Field(strict=False)]


@dataclass(frozen=True, slots=True)
class ReplacementMap:
    """GPUs of a replacement: `to` has the spare of each GPU that leaves the job, `dead` those that fail."""

    to: Mapping[Gpu, Gpu]
    dead: frozenset[Gpu]


def replacement_map(replacement: ReplacementSpec, job: FabricSpec) -> ReplacementMap:
    """Return which spare replaces which GPU. `job`: the fabric without spares, which come after all others."""
    if replacement.case == "server":
        domain = int(replacement.failed.removeprefix("hb"))
        dead = [Gpu(domain, rank) for rank in range(job.rails)]
        return ReplacementMap(_spare_domain(dead, job), frozenset(dead))
    failed = gpu_of_name(replacement.failed)
    if replacement.case == "idle-gpu":
        return ReplacementMap({failed: Gpu(failed.domain, job.rails)}, frozenset({failed}))
    count = replacement.gpus
    if replacement.case == "small-domain":
        count = job.rails
    leaving = sorted(Gpu(failed.domain, (failed.rank + n) % job.rails) for n in range(count))
    return ReplacementMap(_spare_domain(leaving, job), frozenset({failed}))


def _spare_domain(gpus: Iterable[Gpu], job: FabricSpec) -> dict[Gpu, Gpu]:
    """Return for each GPU its spare: the GPU of the same rank in the spare domain, which comes after all others."""
    return {gpu: Gpu(job.domains, gpu.rank) for gpu in gpus}


def with_spares(replacement: ReplacementSpec, job: FabricSpec, field: str = "replacements") -> FabricSpec:
    """Return the fabric to build: the job's own, its spares, and optical switches where the way needs them."""
    data: dict[str, Any] = job.model_dump(mode="json", exclude_none=True)
    data["rails" if replacement.case == "idle-gpu" else "domains"] += 1
    if replacement.way_on(job) == "optical":
        data["optical"] = {"layers": LAYERS[replacement.case]}
        if replacement.switching_time is not None:
            data["optical"]["switching_time"] = replacement.model_dump(mode="json")["switching_time"]
    try:
        return FabricSpec.model_validate(data)
    except ValidationError as error:
        problem = find_problems(error)[0]
        raise BadInput(f"{field}, with its spares: {problem[0]}", *problem[1:]) from error
