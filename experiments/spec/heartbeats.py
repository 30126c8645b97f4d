"""What an experiment's file says of heartbeats."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from railyard.core.errors import BadInput
from railyard.core.units import Time, format_time
from railyard.topologies.spec import ConfigModel, find_problems

MIN_PERIOD_S: Final = 0.005
MAX_PERIOD_S: Final = 1.0


class HeartbeatsSpec(ConfigModel):
    """GPUs send each other heartbeats every `period`; what isn't heard for `multiplier` of them is silent."""

    period: Time = 0.02
    multiplier: Annotated[int, Field(ge=2, le=10)] = 3

    @field_validator("period")
    @classmethod
    def _check_period(cls, period: float) -> float:
        if not MIN_PERIOD_S <= period <= MAX_PERIOD_S:
            raise ValueError(f"must be {format_time(MIN_PERIOD_S)} to {format_time(MAX_PERIOD_S)}")
        return period


def _parsed(value: object) -> object:
    """YAML 1.1 reads a bare `off` as false. Parsed here, a message gives the field's own path."""
    if value is False or value == "off":
        return "off"
    if isinstance(value, HeartbeatsSpec):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("must be off, or keys and values: period, multiplier")
    try:
        return HeartbeatsSpec.model_validate(value)
    except ValidationError as error:
        raise BadInput(*find_problems(error, "heartbeats")[0]) from error


Heartbeats = Annotated[HeartbeatsSpec | Literal["off"], BeforeValidator(_parsed)]
