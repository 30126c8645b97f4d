"""Faults in an experiment's file: their kinds and targets, when and for how long. Several measures inject them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from railyard.controller.health.estimator import RegistryKind
from railyard.core.config import ConfigModel, OnFabrics, field_error, find_problems
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.units import Time, format_time, time_between
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.faults.definition import NoParameters
from railyard.failure.script import Script, Timed
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.plan import Plan

MIN_AT_S: Final = 0.5
MIN_REPAIR_S: Final = 0.1
AT_REASON: Final = "recovery is measured by what flows before"
StartTime = Annotated[Time, time_between(MIN_AT_S, reason=AT_REASON)]
RepairTime = Annotated[Time, time_between(MIN_REPAIR_S, reason="the fault must be detected and rerouted first")]
MAX_REPEATS: Final = 1000
# to measure an interval that other programs disturb
ATTEMPTS: Final = 3
MAX_ATTEMPTS: Final = 10
Repeats = Annotated[int, Field(ge=1, le=MAX_REPEATS)]


def kinds_with(parameter: object) -> list[str]:
    """Return the fault kinds that have a parameter."""
    return [kind for kind, definition in FAULTS.items() if parameter in definition.Parameters.model_fields]


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
        if not isinstance(data, Mapping) or isinstance(data.get("parameters"), ConfigModel):
            return data
        kind = data.get("kind")
        if not isinstance(kind, str):
            # the check of the field `kind` names the mistake; parameters would be unknown keys for it
            return {key: value for key, value in data.items() if key in cls.model_fields or not kinds_with(key)}
        if kind not in FAULTS:
            raise field_error("kind", kind, unknown_name_hint(kind, FAULTS.names()))
        values, parameters, problems = cls._split_keys(data, FAULTS[kind].Parameters)
        try:
            values["parameters"] = FAULTS[kind].Parameters.model_validate(parameters)
        except ValidationError as error:
            problems += find_problems(error)
        if problems:
            raise PydanticCustomError("of_fields", "wrong parameters", {"lines": problems})
        target = values.get("target")
        if isinstance(target, str):
            values["target"] = FAULTS[kind].canonical_target(target)
        return values

    @classmethod
    def _split_keys(
        cls, data: Mapping[str, Any], parameter_model: type[ConfigModel]
    ) -> tuple[dict[str, Any], dict[str, Any], list[tuple[str, object, str]]]:
        """Return the keys of every fault, those of the kind's parameters, and a problem for each that is of neither."""
        values = dict[str, Any]()
        parameters = dict[str, Any]()
        problems = list[tuple[str, object, str]]()
        for key, value in data.items():
            kinds = kinds_with(key)
            if key == "parameters":
                problems.append((key, value, "is not a key: a kind's parameters stand beside the other keys"))
            elif key in cls.model_fields or not kinds:
                values[key] = value
            elif value is not None and key in parameter_model.model_fields:
                parameters[key] = value
            elif value is not None:
                problems.append((key, value, f"is for {', '.join(kinds)} alone"))
        return values, parameters, problems

    @model_validator(mode="after")
    def _parameters_fit(self) -> "BaseFaultSpec":
        for name, allowed in FAULTS[self.kind].parameter_problems(self.parameters, self.repair):
            raise field_error(name, self.parameters.model_dump(mode="json")[name], allowed)
        return self

    @model_serializer(mode="wrap")
    def _flatten(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in handler(self).items():
            if key == "parameters":
                flat |= value
            else:
                flat[key] = value
        return flat

    @property
    def fault(self) -> Fault:
        """The fault without its times."""
        return Fault(self.kind, self.target, self.parameters)

    @property
    def registry(self) -> RegistryKind | None:
        """The registry of health scores that must run meanwhile."""
        return FAULTS[self.kind].registry(self.parameters)


class FaultSpec(OnFabrics, BaseFaultSpec):
    """A fault by itself, at most `repeats` times: like a script of one fault, without a name or a workload."""

    injections: ClassVar[int] = 1
    during: ClassVar[str | None] = None
    at: StartTime = 1.0
    repair: RepairTime = 2.0
    repeats: Repeats | None = None

    def times(self, experiment: ConfigModel) -> int:
        """Return how often it runs on a fabric, in each mode of `reroute`."""
        limit: int = getattr(experiment, "fault_repeats", 1)
        return min(self.repeats or limit, limit)

    def script(self, plan: Plan, seed: int) -> Script:
        """Return the script of this fault, which is the same on every fabric and for every seed."""
        return Script("", (Timed(self.fault, self.at, self.repair),))

    @property
    def label(self) -> str:
        """Kind and target."""
        return f"{self.kind} {self.target}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Identity of its results on a fabric."""
        return self.kind, self.target


class ScriptFaultSpec(BaseFaultSpec):
    """A fault of a script. With `after`, `at` counts from the end of the first run of that phase of the workload."""

    after: str | None = None

    @model_validator(mode="after")
    def _check_start(self) -> "ScriptFaultSpec":
        if self.after is None and self.at < MIN_AT_S:
            raise field_error("at", format_time(self.at), f"must be {format_time(MIN_AT_S)} or more: {AT_REASON}")
        return self


def fault_keys(item_type: type[FaultSpec]) -> frozenset[str]:
    """Return the keys of a fault that `-o` may give without the section, those of all kinds' parameters too."""
    keys = set(item_type.model_fields)
    for fault in FAULTS.values():
        keys |= set(fault.Parameters.model_fields)
    return frozenset(keys - {"on", "repeats", "parameters"})


def check_faults(faults: Sequence[FaultSpec], plans: Sequence[FabricPlan]) -> None:
    """Raise BadInput for a target that a fabric doesn't have, or that another fault has too. `plans`: of all."""
    for i, fault in enumerate(faults):
        for number, plan in enumerate(plans):
            if not fault.is_on(number):
                continue
            if problem := FAULTS[fault.kind].target_problem(plan, fault.target):
                raise BadInput(f"faults.{i}.target", fault.target, problem)
            # results of two faults of one identity could not be distinguished
            for n, other in enumerate(faults[:i]):
                if other.is_on(number) and other.identity == fault.identity:
                    allowed = f"is faults.{n}'s too, of the same kind on fabric {number}: choose another target"
                    raise BadInput(f"faults.{i}.target", fault.target, allowed)


def fault_dict(timed: Timed) -> dict[str, Any]:
    """Return a fault as an experiment's file has it."""
    times = {"at": format_time(timed.at_s, 15), "repair": format_time(timed.repair_s, 15), "after": timed.after or None}
    fault = {"kind": timed.fault.kind, "target": timed.fault.target, "parameters": timed.fault.parameters}
    return dict(ScriptFaultSpec.model_validate(fault | times).model_dump(mode="json", exclude_none=True))
