"""What shall break, when, and for how long: a fault as an experiment's file has it, and what may be its target."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field, ValidationInfo, field_validator, model_validator

from railyard.controller.health.settings import RegistryKind
from railyard.core.errors import BadInput
from railyard.core.units import Time, format_time
from railyard.failure.scenario.kinds import DOWN_S, LOSS, PERIOD_S, RATE, Fault, FaultKind
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.plan import Plan
from railyard.topologies.spec import ConfigModel

MIN_AT_S: Final = 0.5
MIN_REPAIR_S: Final = 0.1
MIN_LOSS: Final = 0.01
MAX_LOSS: Final = 0.2  # beyond it TCP all but stops, and a link is dead rather than gray
MIN_RATE: Final = 0.01  # below it a packet takes longer than a fault
MIN_PERIOD_S: Final = 0.02
MAX_PERIOD_S: Final = 1.0
MIN_DOMAINS: Final = 3
PARAMETERS: Final[Mapping[str, tuple[str, float]]] = {
    "link-gray": ("loss", LOSS),
    "link-slow": ("rate", RATE),
    "link-flapping": ("period", PERIOD_S),
    "rail-switch-reboot": ("down", DOWN_S),
}
"""What a kind of fault has besides its target, and its default."""


class BaseFaultSpec(ConfigModel):
    """What is broken, alone or in a script: `at` seconds after the traffic has started, for `repair` seconds.

    The kinds, what each does to what, and what may be its target: docs/failure.md. `loss`, `rate` (shares), `period`
    and `down` (seconds) are for one kind each, and so is `registry`: the one that crashes.
    """

    kind: FaultKind
    target: str
    at: Time = 1.0
    repair: Time = 2.0
    loss: Annotated[float, Field(ge=MIN_LOSS, le=MAX_LOSS)] | None = None
    rate: Annotated[float, Field(ge=MIN_RATE, lt=1)] | None = None
    period: Time | None = None
    down: Time | None = None
    registry: RegistryKind | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: object) -> object:
        """What is resolved says everything, and nothing that has no meaning."""
        if not isinstance(data, dict):
            return data
        if data.get("kind") == "registry-crash":
            return {"registry": "embedded", **data}
        name, default = PARAMETERS.get(str(data.get("kind")), ("", 0.0))
        if not name or data.get(name) is not None:
            return data
        return {**data, name: format_time(default) if name in ("period", "down") else default}

    @field_validator("loss", "rate", "period", "down")
    @classmethod
    def _check_parameter_kind(cls, value: float | None, info: ValidationInfo) -> float | None:
        kinds = [kind for kind, (name, _) in PARAMETERS.items() if name == info.field_name]
        if value is not None and info.data.get("kind") not in kinds:
            raise ValueError(f"is for {', '.join(kinds)} alone")
        return value

    @field_validator("registry")
    @classmethod
    def _check_registry(cls, kind: RegistryKind | None, info: ValidationInfo) -> RegistryKind | None:
        if kind is not None and info.data.get("kind") != "registry-crash":
            raise ValueError("is for registry-crash alone")
        return kind

    @field_validator("period")
    @classmethod
    def _check_period(cls, period: float | None, info: ValidationInfo) -> float | None:
        if period is not None and not MIN_PERIOD_S <= period <= MAX_PERIOD_S:
            raise ValueError(f"must be {format_time(MIN_PERIOD_S)} to {format_time(MAX_PERIOD_S)}")
        if period is not None and period > info.data.get("repair", period):
            raise ValueError(f"must be repair or less: the fault lasts {format_time(info.data['repair'])}")
        return period

    @field_validator("down")
    @classmethod
    def _check_down(cls, down: float | None, info: ValidationInfo) -> float | None:
        if down is not None and down >= info.data.get("repair", down + 1):
            raise ValueError(f"must be less than repair: {format_time(info.data['repair'])} after the fault it is over")
        return down

    @property
    def parameters(self) -> dict[str, float]:
        """What its kind has besides the target, by the names of railyard.failure.scenario.kinds.Fault."""
        name, default = PARAMETERS.get(self.kind, ("", 0.0))
        return {name: getattr(self, name) or default} if name else {}

    @property
    def fault(self) -> Fault:
        """The same without its times."""
        return Fault(self.kind, self.target, **self.parameters)


Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, strict=False)]
"""Of an experiment's fabrics, counted from 0."""


def restore_on_key(data: object) -> object:
    """YAML 1.1 reads the key `on` as true."""
    return {"on" if key is True else key: value for key, value in data.items()} if isinstance(data, dict) else data


Repeats = Annotated[int, Field(ge=1, le=1000)]


class FaultSpec(BaseFaultSpec):
    """A fault by itself; `on` some of the experiment's fabrics only, and `repeats` times at most."""

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
            raise ValueError(f"must be {format_time(MIN_REPAIR_S)} or more: it has to be noticed and gone round first")
        return repair


def check_start_time(at: float) -> float:
    """The time of a fault, if there is enough before it to compare with. ValueError if not."""
    if at < MIN_AT_S:
        raise ValueError(f"must be {format_time(MIN_AT_S)} or more: recovery is measured by what flows before")
    return at


def check_on(on: Numbers | None, fabrics: int, field: str) -> None:
    """BadInput for a number that no fabric has, or that is given twice."""
    for number in on or ():
        if number >= fabrics:
            allowed = f"is no fabric: the experiment has {fabrics}, counted from 0"
            raise BadInput(f"{field}.on", number, allowed)
    if len(set(on or ())) < len(on or ()):
        raise BadInput(f"{field}.on", list(on or ()), "must name each fabric once")


def check_faults(faults: Sequence[FaultSpec], plans: Sequence[Plan]) -> None:
    """BadInput for what can't be on one of its fabrics, or has another's kind and target there. `plans`: of all."""
    for i, fault in enumerate(faults):
        check_on(fault.on, len(plans), f"faults.{i}")
        for number, plan in enumerate(plans):
            if _is_on(fault, number):
                problem = wrong_target(fault, plan) or _duplicate_of(fault, faults[:i], number)
                if problem:
                    raise BadInput(f"faults.{i}.target", fault.target, problem)


def _is_on(fault: FaultSpec, number: int) -> bool:
    return fault.on is None or number in fault.on


def _duplicate_of(fault: FaultSpec, earlier: Sequence[FaultSpec], number: int) -> str:
    """Which of those before it has its kind and target on this fabric, for results go by these; empty if none has."""
    for n, other in enumerate(earlier):
        if _is_on(other, number) and (other.kind, other.target) == (fault.kind, fault.target):
            return f"is faults.{n}'s too, of the same kind on fabric {number}: break another one"
    return ""


def wrong_target(fault: BaseFaultSpec, plan: Plan) -> str:
    """What a target of this kind must be on this fabric; empty if it is."""
    fabric = plan.spec
    size = f"the {fabric.kind} fabric of {fabric.domains} domains x {fabric.rails} rails"
    if fault.kind.startswith("rail-switch"):
        names = [s.name for s in plan.switches if s.role in ("rail", "single")]
        return _not_among("rail switch", names, fault.target, size)
    if fault.kind == "spine-crash":
        return _not_among("spine", [s.name for s in plan.switches if s.role == "spine"], fault.target, size)
    if fault.kind == "server-crash":
        if fabric.domains < MIN_DOMAINS:
            return f"can't crash on {size}: {MIN_DOMAINS} or more are needed, so that some are left to talk"
        return _not_among("HB domain", plan.hb_bridges, fault.target, size)
    if fault.kind in ("controller-crash", "registry-crash"):
        name = fault.kind.removesuffix("-crash")
        return "" if fault.target == name else f"must be {name} for {fault.kind}"
    try:
        gpu = gpu_of_name(fault.target)
        there = gpu.domain < fabric.domains and gpu.rank < fabric.rails and gpu.name == fault.target
    except ValueError:
        there = False
    last = f"d{fabric.domains - 1}g{fabric.rails - 1}"
    return "" if there else f"is no GPU of {size}: allowed are d0g0 to {last}"


def _not_among(what: str, names: Sequence[str], target: str, size: str) -> str:
    allowed = f"allowed are {_span(names)}" if names else "it has none"
    return "" if target in names else f"is no {what} of {size}: {allowed}"


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
