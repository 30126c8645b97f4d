"""What a user says about a fabric, checked before anything is built."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from topologies.addresses import MAX_DOMAINS, MAX_RAILS
from topologies.errors import BadInput, near_miss
from topologies.platforms import PLATFORMS
from topologies.units import Rate

Kind = Literal["rail-only", "rail-optimized", "single-switch"]
Policy = Literal["dr", "rd", "spine", "pxn"]

# dr: through the own HB domain to the destination's rank, then its rail (Rail-only IV-B: HB first).
# rd: own rail first, then the far HB domain. spine: the NIC network alone. pxn: dr on a fabric that has spines.
POLICIES: dict[Kind, tuple[Policy, ...]] = {
    "rail-only": ("dr", "rd"),
    "rail-optimized": ("spine", "pxn", "rd"),
    "single-switch": ("spine", "pxn", "rd"),
}


class Strict(BaseModel):
    """Base of everything that is read from a file: unknown keys are refused, and values don't change later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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

    @model_validator(mode="after")
    def _parts_fit_the_kind(self) -> Self:
        if self.platform not in PLATFORMS:
            raise ValueError(f"platform: {self.platform!r} {near_miss(self.platform, PLATFORMS)}")
        if self.kind != "rail-optimized":
            for name in ("spines", "oversubscription"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: {getattr(self, name)!r} is only for kind rail-optimized")
        if self.policy is not None and self.policy not in POLICIES[self.kind]:
            raise ValueError(
                f"policy: {self.policy!r} is not for kind {self.kind}: allowed are {', '.join(POLICIES[self.kind])}"
            )
        if isinstance(self.hb_rate, int) and isinstance(self.rail_rate, int) and self.hb_rate < self.rail_rate:
            raise ValueError(f"hb_rate: {self.hb_rate} bit/s must not be below rail_rate, {self.rail_rate} bit/s")
        return self

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


def problems(error: ValidationError, prefix: str = "") -> list[str]:
    """One line a problem: the field, the value given, and what is allowed."""
    return [_line(dict(item), prefix) for item in error.errors()]


def _line(item: dict[str, Any], prefix: str) -> str:
    # pydantic puts the branch of a union into the location; people write only the field's own path
    places = [str(p) for p in item["loc"] if not str(p).startswith(("function-", "literal[", "constrained-"))]
    where = ".".join([*([prefix] if prefix else []), *places])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error" and not places:
        return f"{prefix}.{message}" if prefix else message
    if item["type"] == "missing":
        return f"{where}: is missing"
    if item["type"] == "extra_forbidden":
        return f"{where}: {item['input']!r} is an unknown key"
    return f"{where}: {item['input']!r} {message[:1].lower()}{message[1:]}"


def parse_fabric(data: object) -> FabricSpec:
    """Read a fabric from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    try:
        return FabricSpec.model_validate(data)
    except ValidationError as error:
        field, _, rest = problems(error, "fabric")[0].partition(": ")
        raise BadInput(field, data, rest) from error
