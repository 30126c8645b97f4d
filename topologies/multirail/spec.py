"""Specification of a multi-rail fabric, checked before anything is built, and the addresses of its NICs.

docs/topologies.md has a table of them. A rail is a subnet of its own, 198.18.<r>.0/24, so the source address of a
packet decides on its rail. 4d in MACs is ASCII M, to recognise them in a packet capture.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, field_validator

from railyard.core.config import ConfigModel, field_error, parse_model
from railyard.core.units import Rate, Size, format_time, parse_size, parse_time
from railyard.topologies.fabric_kinds import BaseFabricSpec
from railyard.topologies.rail_kind import RAIL_KINDS

MAX_NODES: Final = 64
MAX_RAILS: Final = 8
PREFIX_BITS: Final = 24
# other fabrics' switches end below (addresses.py); the rail's number is added
SWITCH_DPID: Final = 0x5000
AGGREGATOR_NUMBER: Final = 0xFF
_AGGREGATOR_HOST: Final = 254
_TABLE: Final = 100


class Nic(NamedTuple):
    """NIC of a node on a rail; `node` is None for the rail's aggregator."""

    rail: int
    node: int | None

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return f"agg{self.rail}" if self.node is None else f"n{self.node}"

    @property
    def interface(self) -> str:
        """Its name there."""
        return f"rail{self.rail}"

    @property
    def ip(self) -> str:
        """Its address."""
        return f"198.18.{self.rail}.{_AGGREGATOR_HOST if self.node is None else self.node + 1}"

    @property
    def mac(self) -> str:
        """Its MAC."""
        return f"02:4d:00:00:{self.rail:02x}:{AGGREGATOR_NUMBER if self.node is None else self.node:02x}"

    @property
    def port(self) -> int:
        """OpenFlow port of the rail's switch that its cable goes to."""
        return AGGREGATOR_NUMBER if self.node is None else self.node + 1


def nic_of_mac(mac: str) -> Nic | None:
    """Return the inverse of `Nic.mac`; None for another MAC."""
    if not mac.startswith("02:4d:00:00:"):
        return None
    rail, node = (int(part, 16) for part in mac.split(":")[4:])
    return Nic(rail, None if node == AGGREGATOR_NUMBER else node)


def switch_name(rail: int) -> str:
    """Return the name of a rail's switch."""
    return f"rail{rail}"


def subnet(rail: int) -> str:
    """Return the addresses of a rail."""
    return f"198.18.{rail}.0/{PREFIX_BITS}"


def route_table(rail: int) -> int:
    """The table that a packet with this rail's address as its source looks into."""
    return _TABLE + rail


MIN_RATE_BPS: Final = 1_000_000
MAX_RATE_BPS: Final = 400_000_000_000
_NAME: Final = re.compile("[a-z][a-z0-9-]{0,30}")


def _parse_cost(value: object) -> float:
    return 0.0 if type(value) is int and value == 0 else parse_time(value)


Cost = Annotated[  # a time, or 0 for none
    float,
    BeforeValidator(_parse_cost),
    PlainSerializer(lambda s: format_time(s, 15) if s else 0, when_used="json"),
]


class RailSpec(ConfigModel):
    """One network that every node has a NIC on. `kind`: a rail kind (rail_kind.py).

    `rate`: of each NIC's link and direction, bit/s on the wire; `auto` follows from the fabric's `scale`.
    `setup`: seconds of latency of each message.
    `cpu`: seconds of CPU time for each byte that a node sends. Both default to the kind's own, to scale.
    """

    name: str = ""
    kind: Annotated[str, AfterValidator(RAIL_KINDS.checked)]
    rate: Rate | Literal["auto"]
    setup: Cost | None = None
    cpu: Cost | None = None

    @field_validator("name")
    @classmethod
    def _name_is_valid(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("must be small letters, digits and dashes, such as eth0; 31 at most")
        return name

    @field_validator("rate")
    @classmethod
    def _is_emulated(cls, rate: int | str) -> int | str:
        if isinstance(rate, int) and rate < MIN_RATE_BPS:
            raise ValueError("must be 1Mbit or more")
        if isinstance(rate, int) and rate > MAX_RATE_BPS:
            raise ValueError("must be 400Gbit or less: no NIC is faster")
        return rate


def _distinct_sizes(values: object) -> object:
    """Refuse equal sizes: as keys the last one would replace the others."""
    if not isinstance(values, Mapping):
        return values
    names: dict[int, str] = {}
    for name, value in values.items():
        try:
            size = parse_size(name)
        except ValueError:
            # pydantic reports what is no size
            continue
        if size in names:
            raise field_error(str(name), value, f"is for the size {names[size]}, which is given twice")
        names[size] = str(name)
    return values


_T = TypeVar("_T")
BySize = Annotated[dict[Size, _T], BeforeValidator(_distinct_sizes)]
"""Values for collectives of up to a size, as in the paper."""


def value_for_size(values: Mapping[int, _T], size: int, default: _T) -> _T:
    """Return the value for a collective of so many bytes; `default` above the largest size."""
    for limit, value in sorted(values.items()):
        if size <= limit:
            return value
    return default


Dilation = Annotated[float, Field(ge=1, le=100, strict=False)]  # how many times slower time passes: see plan.py


class MultirailSpec(BaseFabricSpec):
    """`nodes` with a NIC on each of `rails`.

    `scale`: how many times slower than the paper's the rails are.

    `dilation`: how many times slower time passes while a collective is measured; 1 above the largest size. Results
    are in the fabric's own time all the same.
    """

    kind: Literal["multi-rail"]
    nodes: Annotated[int, Field(ge=2, le=MAX_NODES)] = 4
    rails: Annotated[tuple[RailSpec, ...], Field(min_length=1, max_length=MAX_RAILS, strict=False)]
    scale: Annotated[float, Field(ge=1, le=1e6, strict=False)] | None = None
    mtu: Annotated[int, Field(ge=1280, le=9000)] = 9000
    dilation: BySize[Dilation] = Field(default_factory=dict)

    @property
    def host_count(self) -> int:
        """Number of nodes."""
        return self.nodes

    def label(self) -> str:
        """Return `tcp+sharp, 4 nodes`."""
        return f"{self.mix}, {self.nodes} nodes"

    def traits(self, fabrics: Sequence[BaseFabricSpec]) -> dict[str, str]:
        """Return rates, names, scale and MTU; slow motion only beside a fabric that differs in nothing else, since it
        is how a fabric is measured.
        """
        rails = self.model_dump(mode="json")["rails"]
        rates = [rail["rate"] for rail in rails]
        plain = self.model_copy(update={"dilation": {}})
        twins = [each.model_copy(update={"dilation": {}}) for each in fabrics].count(plain)
        traits = {
            "rates": "+".join(rates),
            "names": "+".join(rail["name"] for rail in rails),
            "scale": "",
            "mtu": f"MTU {self.mtu}",
            "dilation": "",
        }
        if set(rates) == {"auto"}:
            traits["rates"] = ""
        if self.scale:
            traits["scale"] = f"scale {self.scale:g}"
        if self.dilation and twins > 1:
            traits["dilation"] = f"dilated {max(self.dilation.values()):g} times"
        return traits

    @property
    def mix(self) -> str:
        """The kinds of its rails: `tcp+sharp`."""
        return "+".join(rail.kind for rail in self.rails)

    def dilation_of(self, size: int) -> float:
        """Return how much slower time passes for a collective of so many bytes, as in the paper."""
        return value_for_size(self.dilation, size, 1.0)

    @field_validator("rails")
    @classmethod
    def _names_are_unique(cls, rails: tuple[RailSpec, ...]) -> tuple[RailSpec, ...]:
        """A rail without a name is called after its kind and number: tcp0, sharp1."""
        names = [rail.name or f"{rail.kind}{number}" for number, rail in enumerate(rails)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"must have names of their own: two are called {name}")
        return tuple(rail.model_copy(update={"name": name}) for rail, name in zip(rails, names, strict=True))


def parse_multirail(data: object) -> MultirailSpec:
    """Read a fabric from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    return parse_model(MultirailSpec, data, "fabric")
