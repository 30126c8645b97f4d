"""Background load as an experiment's YAML has it, and whether a fabric can bear it.

{rails: [0, 1], load: 0.9}
{domains: [2], load: 0.5, start: 1s, duration: 2s, period: 8s}
{spine: true, load: 0.7}
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from railyard.core.config import ConfigModel, field_error
from railyard.core.errors import BadInput
from railyard.core.units import Time, format_time
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.wave import Wave

MAX_LOAD: Final = 0.95
"""What is left of a link must let others through, and a queue must drain again: beside a share L that doesn't yield, a
window of W bytes makes a queue of W / (1 - L), which grows without end towards 1.
"""
_CHECKED_PERIODS: Final = 1000  # of each wave, within which loads that meet are found
UpToOneHour = Annotated[Time, Field(le=3600)]
Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]


class BackgroundSpec(ConfigModel):
    """`load` is a share of the rate of every link, in both directions, with headers: of these rails' links to their
    GPUs, of the links of these HB domains, of all uplinks.

    It is on for `duration` from `start` on (after the background begins), and again every `period`.
    """

    rails: Numbers = ()
    domains: Numbers = ()
    spine: bool = False
    load: Annotated[float, Field(gt=0, le=MAX_LOAD)]
    start: UpToOneHour | Literal["0s"] = "0s"
    duration: UpToOneHour | None = None
    period: UpToOneHour | None = None

    @field_validator("rails", "domains")
    @classmethod
    def _check_unique(cls, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(numbers)) < len(numbers):
            raise ValueError("must name each only once")
        return numbers

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
    def _check_targets(self) -> "BackgroundSpec":
        if not (self.rails or self.domains or self.spine):
            raise field_error("rails", list(self.rails), "must name a rail, if neither domains nor spine is given")
        return self

    @property
    def wave(self) -> Wave:
        return Wave(0.0 if self.start == "0s" else self.start, self.duration, self.period)

    def shares(self, fabric: FabricSpec) -> dict[str, float]:
        """What it takes, while on, of each element's links. What crosses uplinks comes over rails' links too."""
        found = {f"rail {g}": self.load for g in self.rails} | {f"domain {d}": self.load for d in self.domains}
        if self.spine:
            found["the spine layer"] = self.load
            for g in range(fabric.rails):
                found[f"rail {g}"] = found.get(f"rail {g}", 0.0) + self.load / (fabric.oversubscription or 1.0)
        return found


def check_background(specs: Sequence[BackgroundSpec], fabric: FabricSpec, field: str = "background") -> None:
    """Refuse what the fabric hasn't got, and more than MAX_LOAD of a link at any time.

    BadInput names the field below `field`, where the specs stand.
    """
    for i, spec in enumerate(specs):
        check_elements(spec.rails, spec.domains, spec.spine, fabric, f"{field}.{i}")
    for at_s in sorted({start for spec in specs for start in _start_times(spec.wave)}):
        _check_total_load(specs, fabric, field, at_s)


def check_elements(rails: Sequence[int], domains: Sequence[int], spine: bool, fabric: FabricSpec, field: str) -> None:
    """Refuse rails, HB domains and spines that the fabric hasn't got. BadInput names the field below `field`."""
    for name, numbers, count in (("rails", rails, fabric.rails), ("domains", domains, fabric.domains)):
        for j, number in enumerate(numbers):
            if number >= count:
                raise BadInput(f"{field}.{name}.{j}", number, f"must be below {count}: the fabric has no more")
    if spine and not fabric.spine_count:
        raise BadInput(f"{field}.spine", spine, f"is not for kind {fabric.kind}, which has no spines")


def _start_times(wave: Wave) -> Iterator[float]:
    """When it goes on, and only then can a sum grow."""
    for n in range(_CHECKED_PERIODS if wave.every else 1):
        yield wave.first + n * (wave.every or 0.0)


def _check_total_load(specs: Sequence[BackgroundSpec], fabric: FabricSpec, field: str, at_s: float) -> None:
    sums: dict[str, float] = {}
    for i, spec in enumerate(specs):
        if spec.wave.is_on(at_s):
            for element, share in spec.shares(fabric).items():
                sums[element] = sums.get(element, 0.0) + share
                if sums[element] > MAX_LOAD + 1e-9:
                    reason = f"adds up to {sums[element]:.4g} of {element} with the spine's or what is before it"
                    raise BadInput(f"{field}.{i}.load", spec.load, f"{reason}: {MAX_LOAD} at most")
