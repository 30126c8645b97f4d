"""Faults in an experiment's file: what breaks, when and for how long, and which targets are allowed."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from railyard.controller.health.estimator import RegistryKind
from railyard.core.config import ConfigModel, field_error, find_problems
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.units import Time, format_time
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.faults.definition import NoParameters
from railyard.topologies.plan import Plan

MIN_AT_S: Final = 0.5
MIN_REPAIR_S: Final = 0.1


def kinds_with(parameter: object) -> list[str]:
    """Return the fault kinds that have a parameter."""
    return [kind for kind, definition in FAULTS.items() if parameter in definition.Parameters.model_fields]


def parameter_names() -> frozenset[str]:
    """Return the names of the parameters of all fault kinds."""
    return frozenset(name for _, definition in FAULTS.items() for name in definition.Parameters.model_fields)


class BaseFaultSpec(ConfigModel):
    """A fault, alone or in a script: `at` seconds after the traffic has started, for `repair` seconds.

    The kinds, their targets and their parameters: docs/failure.md. In a file the parameters of a kind are keys beside
    the others.
    """

    kind: str
    target: str
    at: Time = 1.0
    repair: Time = 2.0
    parameters: SerializeAsAny[ConfigModel] = NoParameters()

    @model_validator(mode="before")
    @classmethod
    def _gather_parameters(cls, data: object) -> object:
        """Check the keys that belong to the kind, and put them into `parameters`."""
        if not isinstance(data, Mapping) or isinstance(data.get("parameters"), ConfigModel):
            return data
        kind = data.get("kind")
        if not isinstance(kind, str):  # the field's own check names that
            return {key: value for key, value in data.items() if key in cls.model_fields or not kinds_with(key)}
        if kind not in FAULTS:
            raise field_error("kind", kind, unknown_name_hint(kind, FAULTS.names()))
        model = FAULTS[kind].Parameters
        rest, own, wrong = dict[str, Any](), dict[str, Any](), list[tuple[str, object, str]]()
        for key, value in data.items():
            if key == "parameters":
                wrong.append((key, value, "is not a key: a kind's parameters stand beside the other keys"))
            elif key in cls.model_fields or not (kinds := kinds_with(key)):
                rest[key] = value
            elif value is not None and key in model.model_fields:
                own[key] = value
            elif value is not None:
                wrong.append((key, value, f"is for {', '.join(kinds)} alone"))
        try:
            rest["parameters"] = model.model_validate(own)
        except ValidationError as error:
            wrong += find_problems(error)
        if wrong:
            raise PydanticCustomError("of_fields", "wrong parameters", {"lines": wrong})
        if isinstance(target := rest.get("target"), str):
            rest["target"] = FAULTS[kind].canonical_target(target)
        return rest

    @model_validator(mode="after")
    def _parameters_fit(self) -> "BaseFaultSpec":
        for name, allowed in FAULTS[self.kind].parameter_problems(self.parameters, self.repair):
            raise field_error(name, self.parameters.model_dump(mode="json")[name], allowed)
        return self

    @model_serializer(mode="wrap")
    def _flatten(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Put the parameters beside the other keys."""
        found: dict[str, Any] = {}
        for key, value in handler(self).items():
            found |= value if key == "parameters" else {key: value}
        return found

    @property
    def fault(self) -> Fault:
        """The fault without its times."""
        return Fault(self.kind, self.target, self.parameters)

    @property
    def registry(self) -> RegistryKind | None:
        """The registry of health scores that must run meanwhile."""
        return FAULTS[self.kind].registry(self.parameters)


Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, strict=False)]
"""Of an experiment's fabrics, counted from 0."""


def restore_on_key(data: object) -> object:
    """YAML 1.1 reads the key `on` as true."""
    return {"on" if key is True else key: value for key, value in data.items()} if isinstance(data, dict) else data


Repeats = Annotated[int, Field(ge=1, le=1000)]


class FaultSpec(BaseFaultSpec):
    """A fault by itself, at most `repeats` times; with `on`, only on some of the experiment's fabrics."""

    on: Numbers | None = None
    repeats: Repeats | None = None

    @model_validator(mode="before")
    @classmethod
    def _restore_on_key(cls, data: object) -> object:
        return restore_on_key(data)

    @field_validator("at")
    @classmethod
    def _check_start(cls, at: float) -> float:
        return check_start_time(at)

    @field_validator("repair")
    @classmethod
    def _check_repair(cls, repair: float) -> float:
        if repair < MIN_REPAIR_S:
            raise ValueError(
                f"must be {format_time(MIN_REPAIR_S)} or more: the fault must be detected and rerouted first"
            )
        return repair


def check_start_time(at: float) -> float:
    """Return the time of a fault. ValueError if there is too little traffic before it to compare with."""
    if at < MIN_AT_S:
        raise ValueError(f"must be {format_time(MIN_AT_S)} or more: recovery is measured by what flows before")
    return at


def check_on(on: Numbers | None, fabrics: int, field: str) -> None:
    """Raise BadInput for a number that no fabric has, or that is given twice."""
    for number in on or ():
        if number >= fabrics:
            allowed = f"is no fabric: the experiment has {fabrics}, counted from 0"
            raise BadInput(f"{field}.on", number, allowed)
    if len(set(on or ())) < len(on or ()):
        raise BadInput(f"{field}.on", list(on or ()), "must name each fabric once")


def check_faults(faults: Sequence[FaultSpec], plans: Sequence[Plan]) -> None:
    """Raise BadInput for a target that a fabric doesn't have, or that another fault has too. `plans`: of all."""
    for i, fault in enumerate(faults):
        check_on(fault.on, len(plans), f"faults.{i}")
        for number, plan in enumerate(plans):
            if _is_on(fault, number):
                problem = FAULTS[fault.kind].target_problem(plan, fault.target) or _duplicate_of(
                    fault, faults[:i], number
                )
                if problem:
                    raise BadInput(f"faults.{i}.target", fault.target, problem)


def _is_on(fault: FaultSpec, number: int) -> bool:
    return fault.on is None or number in fault.on


def _duplicate_of(fault: FaultSpec, earlier: Sequence[FaultSpec], number: int) -> str:
    """Name an earlier fault with the same kind and target on this fabric, which identify results; empty if none has."""
    for n, other in enumerate(earlier):
        if _is_on(other, number) and (other.kind, other.target) == (fault.kind, fault.target):
            return f"is faults.{n}'s too, of the same kind on fabric {number}: choose another target"
    return ""
