"""Background load as in an experiment's YAML (docs/experiments.md), whether a fabric can bear it, and when it is on.

A grid is background in scenes, one after the other: every combination of some loads on an HB domain, a rail and the
spines.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from railyard.core.config import ConfigModel, check_unique, field_error, find_problems, refuse_unknown_keys
from railyard.core.errors import BadInput
from railyard.core.registry import Registry
from railyard.core.units import Time, format_time
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device
from railyard.topologies.spec import FabricSpec

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
    unit: ClassVar[str]  # what is numbered: domain or rail

    def shares(self, value: tuple[int, ...], fabric: FabricSpec) -> dict[str, float]:
        return {f"{self.unit} {number}": 1.0 for number in value}

    def text(self, value: tuple[int, ...]) -> str:
        unit = f"{self.unit}s" if len(value) > 1 else self.unit
        return f"{unit} {', '.join(map(str, value))}"

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


# sums of decimal fractions fall short of an edge by less than this; at an edge, what begins there counts
EDGE_TOLERANCE_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Wave:
    """On in [first + n every, first + n every + lasts); without `every` once, without `lasts` for ever."""

    first: float = 0.0
    lasts: float | None = None
    every: float | None = None

    def is_on(self, at: float) -> bool:
        elapsed = at - self.first + EDGE_TOLERANCE_S
        if elapsed < 0 or self.lasts is None:
            return elapsed >= 0
        if self.every:
            elapsed %= self.every
        return elapsed < self.lasts

    def on_s(self, at: float) -> float:
        """Return how long it has been on until `at`, in s."""
        elapsed = max(0.0, at - self.first)
        if self.lasts is None:
            return elapsed
        if not self.every:
            return min(elapsed, self.lasts)
        periods, remainder = divmod(elapsed, self.every)
        return periods * self.lasts + min(remainder, self.lasts)

    def time_for_on_s(self, on_time: float) -> float:
        """Return when it has been on for `on_time`: the inverse of `on_s`; infinite if never."""
        if self.lasts is None:
            return self.first + on_time
        if self.every is None:
            return self.first + on_time if on_time <= self.lasts else math.inf
        periods, remainder = divmod(on_time, self.lasts)
        return self.first + periods * self.every + remainder


# What is left of a link must let others through, and a queue must drain again: beside a share L that doesn't yield, a
# window of W bytes makes a queue of W / (1 - L), which grows without end towards 1.
MAX_LOAD: Final = 0.95
# of each wave, within which loads that meet are found
_CHECKED_PERIODS: Final = 1000
# waves at all beginnings of others: fewer periods of many waves
_CHECKED: Final = 10**6
UpToOneHour = Annotated[Time, Field(le=3600)]


class BackgroundSpec(ConfigModel):
    """What is loaded (a key for each kind of background, one or more), how much, and when.

    `load` is a share of the rate of every link of it, in both directions, headers included. It is on for `duration`
    from `start` on (after the background begins), and again every `period`.
    """

    model_config = ConfigDict(extra="allow")

    load: Annotated[float, Field(gt=0, le=MAX_LOAD)]
    start: UpToOneHour | Literal["0s"] = "0s"
    duration: UpToOneHour | None = None
    period: UpToOneHour | None = None

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        refuse_unknown_keys(data, [*BACKGROUNDS, *cls.model_fields])
        values: dict[str, Any] = {}
        for key in data:
            if key not in BACKGROUNDS:
                continue
            try:
                values[key] = TypeAdapter(BACKGROUNDS[key].value).validate_python(data[key])
            except ValidationError as error:
                raise PydanticCustomError("of_fields", "wrong", {"lines": find_problems(error, key)}) from error
        return {**data, **values}

    @field_validator("period")
    @classmethod
    def _check_period(cls, period: float | None, info: ValidationInfo) -> float | None:
        duration = info.data.get("duration")
        if period is not None and "duration" in info.data:
            if duration is None:
                raise ValueError("is only for what ends: give duration too")
            if period <= duration:
                raise ValueError(f"must be above duration, {format_time(duration)}")
        return period

    @model_validator(mode="after")
    def _check_patterns(self) -> "BackgroundSpec":
        if not self.patterns:
            raise field_error("rails", [], "must name a rail, if neither domains nor spine is given")
        return self

    @property
    def patterns(self) -> dict[str, Any]:
        """The value of each kind of background that is given, by the kind."""
        keys = self.model_extra or {}
        values = {kind: keys.get(kind) for kind in BACKGROUNDS}
        return {kind: value for kind, value in values.items() if value not in (None, False, ())}

    @property
    def text(self) -> str:
        """Name of what is loaded, such as `rails 0, 1 and spines`."""
        return " and ".join(BACKGROUNDS[kind].text(value) for kind, value in self.patterns.items())

    @property
    def wave(self) -> Wave:
        return Wave(0.0 if self.start == "0s" else self.start, self.duration, self.period)

    def shares(self, fabric: FabricSpec) -> dict[str, float]:
        """Return what it takes, while on, of each element's links."""
        shares: dict[str, float] = {}
        for kind, value in self.patterns.items():
            for element, share in BACKGROUNDS[kind].shares(value, fabric).items():
                shares[element] = shares.get(element, 0.0) + self.load * share
        return shares


def check_background(specs: Sequence[BackgroundSpec], fabric: FabricSpec, field: str = "background") -> None:
    """Refuse what the fabric hasn't got, and more than MAX_LOAD of a link at any time.

    BadInput names the field below `field`, where the specs stand.
    """
    if specs and fabric.rail_of_rank:
        raise BadInput(field, len(specs), "can't be given where GPUs share NICs: its rates are those of GPUs")
    for i, spec in enumerate(specs):
        check_patterns(spec.patterns, fabric, f"{field}.{i}")
    waves = [spec.wave for spec in specs]
    shares = [spec.shares(fabric) for spec in specs]
    # loads with different periods may meet for the first time many periods later
    periods = min(_CHECKED_PERIODS, _CHECKED // max(1, len(specs)) ** 2)
    starts: set[float] = set()
    for wave in waves:
        starts.add(wave.first)
        if wave.every:
            starts.update(wave.first + n * wave.every for n in range(periods))
    # only where a load begins can a sum grow
    for at_s in sorted(starts):
        sums: dict[str, float] = {}
        for i, wave in enumerate(waves):
            if not wave.is_on(at_s):
                continue
            for element, share in shares[i].items():
                sums[element] = sums.get(element, 0.0) + share
                if sums[element] > MAX_LOAD + 1e-9:
                    reason = f"adds up to {sums[element]:.4g} of {element} with the spine's or what is before it"
                    raise BadInput(f"{field}.{i}.load", specs[i].load, f"{reason}: {MAX_LOAD} at most")


def check_patterns(patterns: Mapping[str, Any], fabric: FabricSpec, field: str) -> None:
    """Refuse what the fabric hasn't got. BadInput names the field below `field`."""
    for kind, value in patterns.items():
        # a plugin may return None
        for below, wrong, allowed in BACKGROUNDS[kind].problems(value, fabric) or ():
            raise BadInput(f"{field}.{kind}.{below}".rstrip("."), wrong, allowed)


# what is left of a load when another is taken off it, and is none but for rounding
MIN_LOAD: Final = 1e-6


class GridSpec(ConfigModel):
    """Each of `loads` on each of what is named: these HB domains together, these rails together, the spine layer.

    A load is a share of the rate of every link of it, in both directions, as in BackgroundSpec; 0 is none.
    """

    domains: Numbers = ()
    rails: Numbers = ()
    spine: bool = False
    loads: Annotated[
        tuple[Annotated[float, Field(ge=0, le=MAX_LOAD)], ...],
        Field(min_length=1, max_length=10, strict=False),
        AfterValidator(check_unique),
    ]

    @model_validator(mode="after")
    def _check_targets(self) -> "GridSpec":
        if not (self.rails or self.domains or self.spine):
            raise field_error("rails", list(self.rails), "must name a rail, if neither domains nor spine is given")
        return self

    @property
    def patterns(self) -> dict[str, object]:
        """Values that are given, by their kind of background."""
        named = {"domains": self.domains, "rails": self.rails, "spine": self.spine}
        return {kind: value for kind, value in named.items() if value}

    def on(self, fabric: FabricSpec) -> "GridSpec":
        """Return the grid of a fabric: without spines it has no loads on them."""
        if fabric.spine_count or not self.spine:
            return self
        return self.model_copy(update={"spine": False})

    @property
    def scenes(self) -> tuple["Scene", ...]:
        """All combinations, the spines' load changing last."""
        no_load = (0.0,)
        spines = self.loads if self.spine else no_load
        domains = self.loads if self.domains else no_load
        rails = self.loads if self.rails else no_load
        return tuple(Scene(self, *loads) for loads in product(spines, domains, rails))


@dataclass(frozen=True, slots=True)
class Scene:
    """One combination: the load of each, 0 for what the grid doesn't name."""

    grid: GridSpec
    spine: float
    domain: float
    rail: float

    @property
    def name(self) -> str:
        """`d0 90% g0 50% S 0%`: domains, rails and spines, as far as the grid names them."""
        parts: list[str] = []
        if self.grid.domains:
            parts.append(f"d{','.join(map(str, self.grid.domains))} {100 * self.domain:.3g}%")
        if self.grid.rails:
            parts.append(f"g{','.join(map(str, self.grid.rails))} {100 * self.rail:.3g}%")
        if self.grid.spine:
            parts.append(f"S {100 * self.spine:.3g}%")
        return " ".join(parts)

    def background(self, fabric: FabricSpec) -> tuple[BackgroundSpec, ...]:
        """Return this scene's background."""
        specs = []
        if self.domain:
            specs.append(BackgroundSpec(domains=self.grid.domains, load=self.domain))
        if self.spine:
            specs.append(BackgroundSpec(spine=True, load=self.spine))
        # Load of spines crosses rails too, so a rail gets only what it lacks: at an oversubscription of o the spines
        # bring every rail a load of spine / o, which may be more than the rail's own.
        remaining_load = self.rail - self.spine / (fabric.oversubscription or 1.0)
        if remaining_load > MIN_LOAD:
            specs.append(BackgroundSpec(rails=self.grid.rails, load=remaining_load))
        return tuple(specs)
