"""What a user says about a fabric, checked before anything is built."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from railyard.core.config import MISSING, ConfigModel, Problem, find_problems, is_path, problems
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.units import Rate, format_rate
from railyard.topologies.addresses import MAX_DOMAINS, MAX_RAILS
from railyard.topologies.optical import OPTICAL_DOMAINS, OpticalSpec
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.ports import OPTICAL_RAILS

__all__ = [  # what reads other files in the same way is imported from here too
    "MISSING",
    "POLICIES",
    "SINGLE_SWITCH_DOMAINS",
    "ConfigModel",
    "FabricSpec",
    "Kind",
    "Policy",
    "Problem",
    "find_problems",
    "parse_fabric",
    "problems",
]

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


class FabricSpec(ConfigModel):
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
    optical: OpticalSpec | None = None

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
            raise ValueError(f"{unknown_name_hint(platform, PLATFORMS)}, or the path of a .yaml file")
        # processes with other working folders read it again
        return str(Path(platform).resolve()) if is_path(platform) else platform

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

    @field_validator("optical")
    @classmethod
    def _optics_have_ports(cls, optical: OpticalSpec | None, info: ValidationInfo) -> OpticalSpec | None:
        if optical is None:
            return None
        if info.data.get("kind") == "single-switch":
            raise ValueError("is only for kinds rail-only and rail-optimized")
        if info.data.get("rails", 0) > OPTICAL_RAILS or info.data.get("domains", 0) > OPTICAL_DOMAINS:
            raise ValueError(
                f"is for {OPTICAL_RAILS} rails and {OPTICAL_DOMAINS} domains at most: port numbers go no further"
            )
        return optical

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


def parse_fabric(data: object) -> FabricSpec:
    """Read a fabric from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    try:
        return FabricSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error, "fabric")[0]) from error
