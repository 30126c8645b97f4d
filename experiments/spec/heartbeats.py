"""Key `heartbeats` of an experiment's file: how often GPUs send them while things break."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from railyard.core.config import ConfigModel, parse_model
from railyard.core.units import Time, time_between


class HeartbeatsSpec(ConfigModel):
    """Heartbeats between GPUs, every `period`. A sender is silent after the heartbeat timeout: `multiplier` periods."""

    period: Annotated[Time, time_between(0.005, 1.0)] = 0.02
    multiplier: Annotated[int, Field(ge=2, le=10)] = 3


def _heartbeats(value: object) -> object:
    """Parse `off`, which YAML 1.1 reads as false, or the keys; errors give the field's own path."""
    if value is False or value == "off":
        return "off"
    if not isinstance(value, Mapping | HeartbeatsSpec):
        raise ValueError("must be off, or keys and values: period, multiplier")
    return parse_model(HeartbeatsSpec, value, "heartbeats")


Heartbeats = Annotated[HeartbeatsSpec | Literal["off"], BeforeValidator(_heartbeats)]
