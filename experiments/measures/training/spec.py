"""Section `trainings` of an experiment's file: programs that really train on the GPUs, and what fails meanwhile."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator

from railyard.core.config import ConfigModel, OnFabrics, parse_model
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.units import Time, time_between
from railyard.experiments.spec.faults import BaseFaultSpec
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.workloads.training.program import TRAINING_PROGRAMS, Arguments, Job, TrainingProgram

MIN_GPUS: Final = 2


class TrainingSpec(OnFabrics):
    """`steps` steps of a program at `gpus`, by default the first GPU of each HB domain: once without a fault, then once
    with each of `faults` (`training_repeats` times), injected `at` after the first step and repaired after `repair`.

    A training that has not ended after `deadline` has failed.
    """

    program: str
    gpus: Annotated[tuple[str, ...], Field(min_length=MIN_GPUS, strict=False)] | None = None
    steps: Annotated[int, Field(ge=5, le=100_000)] = 60
    deadline: Annotated[Time, time_between(5.0, reason="a program needs seconds to start")] = 120.0
    arguments: SerializeAsAny[ConfigModel] = Arguments()
    faults: Annotated[tuple[BaseFaultSpec, ...], Field(max_length=100, strict=False)] = ()

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if gpus and len(set(gpus)) < len(gpus):
            raise ValueError("must name each GPU once")
        return gpus

    @property
    def definition(self) -> TrainingProgram:
        """The definition of its program."""
        return TRAINING_PROGRAMS[self.program]

    def gpus_on(self, plan: FabricPlan) -> tuple[str, ...]:
        """Return the GPUs of its ranks on a fabric."""
        return self.gpus or tuple(gpu for gpu in plan.link_names("hb") if gpu.endswith("g0"))

    def job(self, plan: FabricPlan, seed: int, folder: Path) -> Job:
        """Return the job on a fabric."""
        addresses = {gpu: plan.addresses[gpu] for gpu in self.gpus_on(plan)}
        return Job(addresses, self.steps, seed, folder, self.arguments)


def _parsed(data: object) -> object:
    """Parse item by item, with the arguments that each program has, so that a message gives the field's own path."""
    if not isinstance(data, list):
        return data
    items = list[object]()
    for n, item in enumerate(data):
        field = f"trainings.{n}"
        if not isinstance(item, Mapping):
            items.append(item)
            continue
        name = item.get("program")
        given = dict[str, Any](item)
        if not isinstance(name, str) or name not in TRAINING_PROGRAMS:
            raise BadInput(f"{field}.program", name, unknown_name_hint(str(name), TRAINING_PROGRAMS.names()))
        model = TRAINING_PROGRAMS[name].Arguments
        given["arguments"] = parse_model(model, item.get("arguments") or {}, f"{field}.arguments")
        items.append(parse_model(TrainingSpec, given, field))
    return items


Trainings = Annotated[tuple[TrainingSpec, ...], BeforeValidator(_parsed), Field(max_length=100, strict=False)]


def check_trainings(trainings: Sequence[TrainingSpec], plans: Sequence[FabricPlan]) -> None:
    """Raise BadInput for a GPU or a target that a fabric doesn't have, and for what is given twice."""
    for i, training in enumerate(trainings):
        field = f"trainings.{i}"
        for number, plan in enumerate(plans):
            if not training.is_on(number):
                continue
            gpus = plan.link_names("hb")
            for n, gpu in enumerate(training.gpus or ()):
                if gpu not in gpus:
                    raise BadInput(f"{field}.gpus.{n}", gpu, unknown_name_hint(gpu, gpus))
            if len(training.gpus_on(plan)) < MIN_GPUS:
                raise BadInput(f"{field}.gpus", list(training.gpus_on(plan)), f"must be {MIN_GPUS} or more")
            for n, fault in enumerate(training.faults):
                if problem := fault.fault.definition.target_problem(plan, fault.target):
                    raise BadInput(f"{field}.faults.{n}.target", fault.target, problem)
                if fault.fault in [other.fault for other in training.faults[:n]]:
                    raise BadInput(f"{field}.faults.{n}", fault.fault.name, "is given twice")
            for n, other in enumerate(trainings[:i]):
                if other.program == training.program and other.is_on(number):
                    raise BadInput(f"{field}.program", training.program, f"is trainings.{n}'s too, on fabric {number}")
