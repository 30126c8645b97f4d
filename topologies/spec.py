"""What a user says about a fabric, checked before anything is built."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from topologies.addresses import MAX_DOMAINS, MAX_RAILS
from topologies.errors import BadInput, near_miss
from topologies.platforms import PLATFORMS
from topologies.units import Rate, format_rate

Kind = Literal["rail-only", "rail-optimized", "single-switch"]
Policy = Literal["dr", "rd", "spine", "pxn"]

# dr: through the own HB domain to the destination's rank, then its rail (Rail-only IV-B: HB first).
# rd: own rail first, then the far HB domain. spine: the NIC network alone. pxn: dr on a fabric that has spines.
POLICIES: dict[Kind, tuple[Policy, ...]] = {
    "rail-only": ("dr", "rd"),
    "rail-optimized": ("spine", "pxn", "rd"),
    "single-switch": ("spine", "pxn", "rd"),
}

# switch0 numbers its ports 1 + d * 256 + g, and OpenFlow ports of Open vSwitch end below 0xff00 = 65280
SINGLE_SWITCH_DOMAINS: Final = 254


class Strict(BaseModel):
    """Base of everything that is read from a file: unknown keys are refused, and values don't change later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, data: object) -> object:
        """Before pydantic's own check, since only here is it known which keys there are."""
        known = cls.model_fields
        unknown = {k: v for k, v in data.items() if k not in known} if isinstance(data, Mapping) else {}
        if unknown:
            lines = [
                (str(k), v, near_miss(str(k), known).replace("known", "a known key", 1)) for k, v in unknown.items()
            ]
            raise PydanticCustomError("unknown_keys", "unknown keys", {"lines": lines})
        return data


class FabricSpec(Strict):
    """A fabric of `domains` HB domains (M) with `rails` GPUs each (K). Rates are per GPU and direction."""

    kind: Kind
    domains: Annotated[int, Field(ge=2, le=MAX_DOMAINS)] = 4
    rails: Annotated[int, Field(ge=2, le=MAX_RAILS)] = 4
    platform: str = "a100"
    rail_rate: Rate | Literal["auto"] = "auto"
    hb_rate: Rate | Literal["auto"] = "auto"
    mtu: Annotated[int, Field(ge=1280, le=9000)] = 9000
    spines: Annotated[int, Field(ge=1, le=64)] | None = None
    oversubscription: Annotated[float, Field(ge=1, le=64, strict=False)] | None = None
    policy: Policy | None = None

    @field_validator("domains")
    @classmethod
    def _ports_suffice(cls, domains: int, info: ValidationInfo) -> int:
        if info.data.get("kind") == "single-switch" and domains > SINGLE_SWITCH_DOMAINS:
            raise ValueError(
                f"must be {SINGLE_SWITCH_DOMAINS} or less for kind single-switch: a switch has no more ports"
            )
        return domains

    @field_validator("platform")
    @classmethod
    def _platform_is_known(cls, platform: str) -> str:
        if platform not in PLATFORMS:
            raise ValueError(near_miss(platform, PLATFORMS))
        return platform

    @field_validator("hb_rate")
    @classmethod
    def _hb_is_the_faster(cls, hb: int | str, info: ValidationInfo) -> int | str:
        rail = info.data.get("rail_rate")
        if isinstance(hb, int) and isinstance(rail, int) and hb < rail:
            raise ValueError(f"must not be below rail_rate, {format_rate(rail)}")
        return hb

    @field_validator("spines", "oversubscription")
    @classmethod
    def _only_with_spines(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("kind", "rail-optimized") != "rail-optimized":
            raise ValueError("is only for kind rail-optimized")
        return value

    @field_validator("policy")
    @classmethod
    def _policy_fits_the_kind(cls, policy: Policy | None, info: ValidationInfo) -> Policy | None:
        kind: Kind | None = info.data.get("kind")
        if kind is not None and policy is not None and policy not in POLICIES[kind]:
            raise ValueError(f"is not for kind {kind}: allowed are {', '.join(POLICIES[kind])}")
        return policy

    @property
    def gpus(self) -> int:
        return self.domains * self.rails

    @property
    def spine_count(self) -> int:
        """Two spines unless said otherwise, so that there is something to balance over; none elsewhere."""
        return (self.spines or 2) if self.kind == "rail-optimized" else 0

    @property
    def chosen_policy(self) -> Policy:
        return self.policy or POLICIES[self.kind][0]


class Problem(NamedTuple):
    """A value that can't be used: the field's path, the value given, and what is allowed."""

    field: str
    value: object
    allowed: str


class _Nothing:
    """Stands for the value of a key that isn't there."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "must be {} or more"),
    "greater_than": ("gt", "must be above {}"),
    "less_than_equal": ("le", "must be {} or less"),
    "less_than": ("lt", "must be below {}"),
    "too_short": ("min_length", "must have {} or more"),
    "too_long": ("max_length", "must have {} or fewer"),
}
_TYPES: Final = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be keys and values",
    "model_type": "must be keys and values",
}


def find_problems(error: ValidationError, prefix: str = "") -> list[Problem]:
    """Everything that pydantic found, in the order of the fields; the branches of a union make one problem."""
    found: dict[str, Problem] = {}
    for item in error.errors():
        # pydantic puts the branch of a union into the location; people write only the field's own path
        path = [str(p) for p in item["loc"] if not str(p).startswith(("function-", "literal[", "constrained-"))]
        for new in _problems_of(dict(item), ".".join([*([prefix] if prefix else []), *path])):
            old = found.get(new.field)
            found[new.field] = new if old is None else Problem(*old[:2], _either(old.allowed, new.allowed))
    return list(found.values())


def _problems_of(item: dict[str, Any], field: str) -> list[Problem]:
    kind, context, value = str(item["type"]), item.get("ctx", {}), item["input"]
    if kind == "unknown_keys":
        return [Problem(f"{field}.{key}".lstrip("."), given, allowed) for key, given, allowed in context["lines"]]
    if kind == "missing":
        return [Problem(field, NOTHING, "given, but this key is needed")]
    if kind == "literal_error":
        allowed = near_miss(str(value), re.findall(r"'([^']*)'", context["expected"]))
    elif kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        allowed = words.format(context[name])
    else:
        message = str(item["msg"]).removeprefix("Value error, ")
        allowed = _TYPES.get(kind, message[:1].lower() + message[1:])
    return [Problem(field, value, allowed)]


def _either(first: str, second: str) -> str:
    """`is not a rate: ...` and `is not known: allowed are auto` -> `is not a rate: ...; or auto`."""
    return f"{first}; or {second.rpartition('allowed are ')[2].removeprefix('must be ')}"


def problems(error: ValidationError, prefix: str = "") -> list[str]:
    """One line a problem: the field, the value given, and what is allowed."""
    return [str(BadInput(*problem)) for problem in find_problems(error, prefix)]


def parse_fabric(data: object) -> FabricSpec:
    """Read a fabric from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    try:
        return FabricSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error, "fabric")[0]) from error
