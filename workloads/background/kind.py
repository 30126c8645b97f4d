"""The registry of background kinds, and what a definition of one has.

A kind is a key of a background's entry in YAML, such as `rails: [0, 1]`, and the flows that its value means.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, Field

from railyard.core.registry import Registry
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device
from railyard.topologies.spec import FabricSpec

N = TypeVar("N", int, float)


def check_unique(numbers: tuple[N, ...]) -> tuple[N, ...]:
    """ValueError for a number that is there twice."""
    if len(set(numbers)) < len(numbers):
        raise ValueError("must name each only once")
    return numbers


Numbers = Annotated[
    tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False), AfterValidator(check_unique)
]
FlowPath = Literal["d", "r", "spine"]
"""The only path that a background flow takes: over hb0, on a rail, or across the spines."""


class FullLoad(NamedTuple):
    """Where a GPU sends at a load of 1: `bps` on the wire, Ethernet header and all, from its `device` to `dst`."""

    dst: Gpu
    device: Device
    path: FlowPath
    bps: float


class BackgroundKind(ABC):
    """A pattern of background load. Every link that it loads gets the same share of its rate in both directions."""

    value: ClassVar[Any]
    """The type of the key's value in YAML, for pydantic. An empty list and `false` mean that nothing is loaded."""

    @abstractmethod
    def flows(self, src: Gpu, value: Any, plan: Plan) -> Iterator[FullLoad]:
        """Yield what a GPU sends at a load of 1."""

    @abstractmethod
    def shares(self, value: Any, fabric: FabricSpec) -> dict[str, float]:
        """Return the part of each element's links that a load of 1 takes, by the element's name: `rail 0`."""

    @abstractmethod
    def text(self, value: Any) -> str:
        """Return what is loaded, in words: `rails 0, 1`."""

    def problems(self, value: Any, fabric: FabricSpec) -> Iterator[tuple[str, object, str]]:
        """Yield what a fabric doesn't have: the field below the key (or ""), its value, and what is allowed."""
        yield from ()


class Numbered(BackgroundKind):
    """A pattern on what a fabric has several of: the key's value lists their numbers."""

    value = Numbers
    unit: ClassVar[str]
    """What is numbered: domain or rail."""

    def shares(self, value: tuple[int, ...], fabric: FabricSpec) -> dict[str, float]:
        return {f"{self.unit} {number}": 1.0 for number in value}

    def text(self, value: tuple[int, ...]) -> str:
        return f"{self.unit}{'s' if len(value) > 1 else ''} {', '.join(map(str, value))}"

    def problems(self, value: tuple[int, ...], fabric: FabricSpec) -> Iterator[tuple[str, object, str]]:
        yield from beyond("", value, {"domain": fabric.domains, "rail": fabric.rails}[self.unit])


def beyond(field: str, numbers: tuple[int, ...], count: int) -> Iterator[tuple[str, object, str]]:
    """Yield a problem for each number that a fabric with `count` of them doesn't have."""
    for i, number in enumerate(numbers):
        if number >= count:
            yield f"{field}{i}", number, f"must be below {count}: the fabric has no more"


BACKGROUNDS: Final = Registry[BackgroundKind](
    "background kind", "railyard.workloads.background.kinds", BackgroundKind, ["value"]
)
"""Every kind of background load by its key in YAML."""
