"""Section `fail_slow` of an experiment's file: a job of which a GPU or a link gets slow, and its detector."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from railyard.core.config import OnFabrics
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments.spec.items import parsed_items
from railyard.failure.diagnosis.cases import MEAN_RATIO, MIN_HEALTHY, Case, draw, mean_iteration, names_of
from railyard.failure.diagnosis.change_points import CONFIRMED_AFTER
from railyard.failure.diagnosis.definition import DETECTORS, Culprit, Part
from railyard.failure.faults import Fault
from railyard.results.theory.fluid.fail_slow import DEFAULT_JOB, SimulatedJob
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import WorkloadSpec, kinds_for

PARTS: Final = ("gpu", "rail", "hb", "none")
FAULT_KINDS: Final[Mapping[Part, str]] = {"rail": "link-slow", "hb": "hb-port-slow"}
MAX_RATIO: Final = 100.0


class FailSlowSpec(OnFabrics):
    """A job of so many `iterations`, and what gets slow in it.

    `part`: the computing of a GPU, its rail link, its HB link, or nothing. `target`: which, by the GPU's name. `ratio`:
    times as slow. `iteration`: the first that is slow. What isn't given is drawn by the seed, anew in each repeat.
    """

    part: Literal["gpu", "rail", "hb", "none"] = "gpu"
    target: str | None = None
    ratio: Annotated[float, Field(gt=1, le=MAX_RATIO)] | None = None
    iteration: Annotated[int, Field(ge=MIN_HEALTHY)] | None = None
    iterations: Annotated[int, Field(ge=MIN_HEALTHY + CONFIRMED_AFTER + 1, le=1000)] = 24
    workload: WorkloadSpec = DEFAULT_JOB
    detector: Annotated[str, AfterValidator(DETECTORS.checked)] = "greyhound"

    @property
    def mean_ratio(self) -> float:
        """Return times as slow that the GPU or link is, on average over draws: 1 if nothing gets slow."""
        if self.part == "none":
            return 1.0
        return self.ratio or MEAN_RATIO

    @property
    def mean_healthy_iterations(self) -> float:
        """Return how many iterations come before the first slow one, on average over draws."""
        return self.iteration or mean_iteration(self.iterations)

    def case(self, plan: Plan, schedule: Schedule, seed: int, repeat: int, place: int = 0) -> Case:
        """Return what gets slow in a repeat, and when.

        `schedule`: of an iteration. `place`: of the item among those of its part, which have cases of their own.
        ValueError if none of the drawn cases is felt by the job.
        """
        seeds = (seed, PARTS.index(self.part) + len(PARTS) * place, repeat)
        if self.part == "none":
            return draw(None, plan, self.iterations, seeds)
        if self.target is None or self.ratio is None:
            drawn = SimulatedJob(plan, schedule).felt_case(self.part, self.iterations, seeds)
        else:
            # whatever the file says is a case, even one that the job doesn't feel
            drawn = draw(self.part, plan, self.iterations, seeds)
        assert drawn.culprit is not None
        culprit = Culprit(self.part, self.target or drawn.culprit.name, self.ratio or drawn.culprit.ratio)
        return Case(culprit, self.iteration or drawn.iteration)


def place_of(item: FailSlowSpec, items: Sequence[FailSlowSpec]) -> int:
    """Return how many items of the same part come before an item, which may equal some of them."""
    place = 0
    for earlier in items:
        if earlier is item:
            break
        place += earlier.part == item.part
    return place


def fault_of(culprit: Culprit | None) -> Fault | None:
    """Return the fault that makes a link slow; None for a GPU, whose computing is slow without one."""
    if culprit is None or culprit.part not in FAULT_KINDS:
        return None
    return Fault.of(FAULT_KINDS[culprit.part], culprit.name, rate=1 / culprit.ratio)


def check_item(item: FailSlowSpec, plan: Plan, field: str) -> None:
    """Raise BadInput, with the name of the field, for a case that a fabric can't have."""
    if item.part == "none":
        values: dict[str, object] = {"target": item.target, "ratio": item.ratio, "iteration": item.iteration}
        for key, value in values.items():
            if value is not None:
                raise BadInput(f"{field}.{key}", value, "can't be given with part none: nothing gets slow")
    last = item.iterations - CONFIRMED_AFTER
    if item.iteration is not None and item.iteration > last:
        allowed = f"must be {MIN_HEALTHY} to {last}: {CONFIRMED_AFTER} of the {item.iterations} iterations confirm it"
        raise BadInput(f"{field}.iteration", item.iteration, allowed)
    if item.target is None or item.part == "none":
        return
    names = names_of(item.part, plan)
    if item.target not in names:
        raise BadInput(f"{field}.target", item.target, unknown_name_hint(item.target, names))


def _parsed(data: object) -> object:
    return parsed_items(data, "fail_slow", FailSlowSpec, kinds_for(FabricSpec))


FailSlowItems = Annotated[tuple[FailSlowSpec, ...], BeforeValidator(_parsed), Field(strict=False)]
