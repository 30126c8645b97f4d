"""Specification of a fabric, as a user gives it, checked before anything is built.

Optical circuit switches between GPUs and their switches: Rail-only IV-C, "we add a small number of optical switches
between the GPU and rail switches to allow the dynamic reconfiguration of rails"; for large HB domains, in the optical
core of the HB domain.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from railyard.core.config import ConfigModel, field_error, parse_model
from railyard.core.errors import unknown_name_hint
from railyard.core.units import Rate, Time, format_rate, time_between
from railyard.topologies.addresses import MAX_DOMAINS, MAX_RAILS, OPTICAL_RAILS, Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS, LAYERS, BaseFabricSpec, FabricKind, Layer, Switch
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, Shares, fabric_of, policy_shares
from railyard.topologies.graph import FabricGraph, Size
from railyard.topologies.nics import RailOfRank, map_problem, rails_by_rank
from railyard.topologies.platforms import PlatformName

# ports of further domains would reach NETWORK_PORT_OFFSET
OPTICAL_DOMAINS: Final = 254
# at a lower rate a workload has too few packets to show anything
MIN_RAIL_BPS: Final = 500_000


class OpticalSpec(ConfigModel):
    """`switching_time`: how long the links of a reconfiguration are down, s."""

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=len(LAYERS), strict=False)] = ("rail",)
    switching_time: Annotated[Time, time_between(1e-3, 10.0)] = 0.01

    @field_validator("layers")
    @classmethod
    def _once_each(cls, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        if len(set(layers)) < len(layers):
            raise ValueError("must name a layer once")
        return layers

    @property
    def is_per_domain(self) -> bool:
        """Use of an optical switch for each HB domain."""
        # Unless HB links are optical too, a spare can't be of another domain than the failed GPU, and no cable need
        # leave a domain. Small switches are better: at each port event their process looks at all interfaces, and
        # frames wait for that.
        return "hb" not in self.layers


def gpu_fabric_kinds() -> tuple[str, ...]:
    """Return the kinds of fabrics of GPUs in HB domains, which FabricSpec describes."""
    return tuple(name for name, kind in FABRIC_KINDS.items() if kind.Spec is None)


def _gpu_fabric_kind(name: object) -> str:
    if name not in gpu_fabric_kinds():
        raise ValueError(unknown_name_hint(str(name), gpu_fabric_kinds()))
    return str(name)


class FabricSpec(BaseFabricSpec):
    """A fabric of `domains` HB domains (M) with `rails` GPUs each (K). Rates are per GPU and direction.

    Each GPU has a NIC of its own, unless `gpus_per_nic` of neighbouring ranks share one, or `nics` says the rail of the
    NIC of each rank. `rail_rate` is then that of a NIC.
    """

    kind: Annotated[str, BeforeValidator(_gpu_fabric_kind)]
    domains: Annotated[int, Field(ge=2, le=MAX_DOMAINS)] = 4
    rails: Annotated[int, Field(le=MAX_RAILS)] = 4
    platform: PlatformName = "a100"
    rail_rate: Rate | Literal["auto"] = "auto"
    hb_rate: Rate | Literal["auto"] = "auto"
    mtu: Annotated[int, Field(ge=1280, le=9000)] = 9000
    spines: Annotated[int, Field(ge=1, le=64)] | None = None
    oversubscription: Annotated[float, Field(ge=1, le=64, strict=False)] | None = None
    policy: Annotated[str, AfterValidator(FORWARDING_POLICIES.checked)] | None = None
    optical: OpticalSpec | None = None
    gpus_per_nic: Annotated[int, Field(ge=1, le=MAX_RAILS)] | None = None
    nics: Annotated[tuple[int, ...], Field(strict=False)] | None = None

    @field_validator("domains")
    @classmethod
    def _ports_suffice(cls, domains: int, info: ValidationInfo) -> int:
        kind = _kind_in(info)
        most, reason = kind.domain_limit if kind else (MAX_DOMAINS, "")
        if domains > most:
            raise ValueError(f"must be {most} or less for kind {info.data['kind']}: {reason}")
        return domains

    @field_validator("rails")
    @classmethod
    def _rails_suffice(cls, rails: int, info: ValidationInfo) -> int:
        kind = _kind_in(info)
        fewest = kind.min_rails if kind else 2
        if rails < fewest:
            raise ValueError(f"must be {fewest} or more")
        return rails

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
        kind = _kind_in(info)
        if value is not None and kind and not kind.default_spines:
            raise ValueError(f"is only for {_kinds_with('default_spines')}")
        return value

    @field_validator("policy")
    @classmethod
    def _policy_fits_the_kind(cls, policy: str | None, info: ValidationInfo) -> str | None:
        kind = _kind_in(info)
        if kind and policy is not None and policy not in kind.policies:
            raise ValueError(f"is not for kind {info.data['kind']}: allowed are {', '.join(kind.policies)}")
        return policy

    @field_validator("optical")
    @classmethod
    def _optics_have_ports(cls, optical: OpticalSpec | None, info: ValidationInfo) -> OpticalSpec | None:
        if optical is None:
            return None
        kind = _kind_in(info)
        if kind and not kind.takes_optics:
            raise ValueError(f"is only for {_kinds_with('takes_optics')}")
        if info.data.get("rails", 0) > OPTICAL_RAILS or info.data.get("domains", 0) > OPTICAL_DOMAINS:
            most = f"{OPTICAL_RAILS} rails and {OPTICAL_DOMAINS} domains at most"
            raise ValueError(f"is for {most}: port numbers go no further")
        return optical

    @field_validator("gpus_per_nic")
    @classmethod
    def _nics_are_full(cls, gpus_per_nic: int | None, info: ValidationInfo) -> int | None:
        if gpus_per_nic is None:
            return None
        rails = info.data.get("rails", gpus_per_nic)
        if rails % gpus_per_nic:
            raise ValueError(f"must divide the {rails} GPUs of a domain")
        if gpus_per_nic > 1:
            _check_takes_nics(info)
        return gpus_per_nic

    @field_validator("nics")
    @classmethod
    def _nics_map_is_whole(cls, nics: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        if nics is None:
            return None
        if info.data.get("gpus_per_nic") is not None:
            raise ValueError("can't be given beside gpus_per_nic")
        problem = map_problem(nics, info.data.get("rails", len(nics)))
        if problem:
            raise ValueError(problem)
        _check_takes_nics(info)
        return nics

    @model_validator(mode="after")
    def _graph_is_whole(self) -> Self:
        """Refuse a size of which the kind's graph has a mistake."""
        if not self.definition.is_graph:
            return self
        try:
            is_joined = len(self.graph.groups()) == 1
        except ValueError as error:
            raise field_error("kind", self.kind, f"can't be {self.domains} x {self.rails}: {error}") from None
        if is_joined != self.definition.joins_rails:
            raise field_error("kind", self.kind, f"joins its rails in some sizes only, {self.domains} x {self.rails}")
        return self

    def traits(self, fabrics: Sequence[BaseFabricSpec]) -> dict[str, str]:
        """Return policy, platform, size, rates and so on."""
        rates = self.model_dump(mode="json", include={"rail_rate", "hb_rate"})
        return {
            "policy": self.chosen_policy,
            "platform": Path(self.platform).stem,
            "size": f"{self.domains}x{self.rails}",
            "rail_rate": f"rail {rates['rail_rate']}",
            "hb_rate": f"HB {rates['hb_rate']}",
            "mtu": f"MTU {self.mtu}",
            "spines": f"{self.size.spines} spines",
            "oversubscription": f"{self.oversubscription or 1:g}:1",
            "optical": f"optical {' and '.join(self.optical.layers)}" if self.optical else "",
            "nics": f"{self.rail_count} NICs a domain" if self.rail_of_rank else "",
        }

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.domains * self.rails

    @property
    def host_count(self) -> int:
        """Number of GPUs."""
        return self.gpus

    @property
    def spine_count(self) -> int:
        """Number of spines that join rail switches; 0 for a kind that states its own graph."""
        return 0 if self.definition.is_graph else self.size.spines

    @property
    def size(self) -> Size:
        """Size of the fabric, with the kind's default spines unless the specification says otherwise."""
        spines = self.spines or self.definition.default_spines
        return Size(self.domains, self.rails, spines, self.oversubscription or 1.0)

    @property
    def graph(self) -> FabricGraph:
        """The NIC network as a graph."""
        return self.definition.graph(self.size)

    @property
    def definition(self) -> FabricKind:
        """The definition of the fabric's kind."""
        return FABRIC_KINDS[self.kind]

    @property
    def chosen_policy(self) -> str:
        """The forwarding policy: the kind's default unless the specification names one."""
        return self.policy or self.definition.default_policy

    @property
    def forwards_in_domains(self) -> bool:
        """Forwarding by GPUs over their HB domains. Without it, some pairs may have no path."""
        return FORWARDING_POLICIES[self.chosen_policy].forwards_in_domains

    def paths(self, src: Gpu, dst: Gpu) -> Shares:
        """Return the paths between two different GPUs while nothing is broken, with their weights; () without any."""
        return policy_shares(self.chosen_policy, src, dst, self.shape)

    @property
    def shape(self) -> Fabric:
        """The part of the specification that forwarding policies may use."""
        return fabric_of(self.kind, self.domains, self.rails, self.rail_of_rank)

    @property
    def rail_of_rank(self) -> RailOfRank:
        """The rail of each rank where GPUs share NICs; () where each rank is a rail of its own."""
        if self.gpus_per_nic is None and self.nics is None:
            return ()
        return rails_by_rank(self.rails, self.gpus_per_nic or 1, self.nics)

    def rail_of(self, rank: int) -> int:
        """Return the rail that the GPUs of a rank are on."""
        return self.shape.rail_of(rank)

    def rail_switch(self, rank: int, plane: int = 0) -> Switch:
        """Return the switch that the rail links of a rank lead to, in one plane."""
        return self.definition.rail_switch(self.rail_of(rank), plane)

    @property
    def size_text(self) -> str:
        """The size in words: `2 domains x 4 rails`, or `2 domains x 4 GPUs on 2 rails` where GPUs share NICs."""
        size = f"{self.domains} domains x {self.rails}"
        return f"{size} GPUs on {self.rail_count} rails" if self.rail_of_rank else f"{size} rails"

    @property
    def rail_count(self) -> int:
        """Number of rails, and of the NICs of a domain."""
        return len(set(self.rail_of_rank)) or self.rails

    def uplinks(self, rank: int) -> dict[Gpu, int]:
        """Return the uplink of a rail switch to each GPU on another rail; none where a hash decides."""
        policy = FORWARDING_POLICIES[self.chosen_policy]
        uplinks: dict[Gpu, int] = {}
        for dst_rank, domain in product(range(self.rails), range(self.domains)):
            if dst_rank != rank:
                dst = Gpu(domain, dst_rank)
                number = policy.uplink(rank, dst, self.shape)
                if number is not None:
                    uplinks[dst] = number
        return uplinks


def _kind_in(info: ValidationInfo) -> FabricKind | None:
    """Return the kind of the fabric that is validated; None if that is wrong itself."""
    if "kind" not in info.data:
        return None
    return FABRIC_KINDS[info.data["kind"]]


def _check_takes_nics(info: ValidationInfo) -> None:
    """ValueError if GPUs of this fabric can't share NICs."""
    kind = _kind_in(info)
    if kind and not kind.takes_nics:
        raise ValueError(f"is only for {_kinds_with('takes_nics')}")
    if info.data.get("optical") is not None:
        raise ValueError("can't be given beside optical: a spare has a NIC of its own")
    policy = info.data.get("policy")
    if policy is not None and FORWARDING_POLICIES[policy].assigns_uplinks:
        raise ValueError(f"can't be given beside policy {policy}, which assigns uplinks by GPU")


def _kinds_with(attribute: str) -> str:
    """Name the fabric kinds of which an attribute is true, for a message."""
    names = [name for name, kind in FABRIC_KINDS.items() if getattr(kind, attribute)]
    return f"{'kinds' if len(names) > 1 else 'kind'} {' and '.join(names)}"


def parse_fabric(data: object) -> FabricSpec:
    """Read a fabric from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    return parse_model(FabricSpec, data, "fabric")
