"""Background load as an experiment's YAML has it, and whether a fabric can bear it.

{rails: [0, 1], load: 0.9}
{domains: [2], load: 0.5, start: 1s, duration: 2s, period: 8s}
{spine: true, load: 0.7}
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from railyard.core.config import ConfigModel, field_error, find_problems, refuse_unknown_keys
from railyard.core.errors import BadInput
from railyard.core.units import Time, format_time
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.kind import BACKGROUNDS
from railyard.workloads.background.wave import Wave

MAX_LOAD: Final = 0.95
"""What is left of a link must let others through, and a queue must drain again: beside a share L that doesn't yield, a
window of W bytes makes a queue of W / (1 - L), which grows without end towards 1.
"""
_CHECKED_PERIODS: Final = 1000  # of each wave, within which loads that meet are found
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
        """Read the value of each kind's key by the kind."""
        if not isinstance(data, Mapping):
            return data
        refuse_unknown_keys(data, [*BACKGROUNDS, *cls.model_fields])
        values: dict[str, Any] = {}
        for key in (key for key in data if key in BACKGROUNDS):
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
        given = {key: (self.model_extra or {}).get(key) for key in BACKGROUNDS}
        return {key: value for key, value in given.items() if value not in (None, False, ())}

    @property
    def text(self) -> str:
        """What is loaded, in words."""
        return " and ".join(BACKGROUNDS[kind].text(value) for kind, value in self.patterns.items())

    @property
    def wave(self) -> Wave:
        return Wave(0.0 if self.start == "0s" else self.start, self.duration, self.period)

    def shares(self, fabric: FabricSpec) -> dict[str, float]:
        """Return what it takes, while on, of each element's links."""
        found: dict[str, float] = {}
        for kind, value in self.patterns.items():
            for element, share in BACKGROUNDS[kind].shares(value, fabric).items():
                found[element] = found.get(element, 0.0) + self.load * share
        return found


def check_background(specs: Sequence[BackgroundSpec], fabric: FabricSpec, field: str = "background") -> None:
    """Refuse what the fabric hasn't got, and more than MAX_LOAD of a link at any time.

    BadInput names the field below `field`, where the specs stand.
    """
    for i, spec in enumerate(specs):
        check_patterns(spec.patterns, fabric, f"{field}.{i}")
    for at_s in sorted({start for spec in specs for start in _start_times(spec.wave)}):
        _check_total_load(specs, fabric, field, at_s)


def check_patterns(patterns: Mapping[str, Any], fabric: FabricSpec, field: str) -> None:
    """Refuse what the fabric hasn't got. BadInput names the field below `field`."""
    for kind, value in patterns.items():
        for below, wrong, allowed in BACKGROUNDS[kind].problems(value, fabric):
            raise BadInput(f"{field}.{kind}.{below}".rstrip("."), wrong, allowed)


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
