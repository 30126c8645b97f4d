"""A performance target of allreduces, with what measures it on a part of the results."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Literal, NamedTuple

from railyard.results.analysis.targets import Target

Scope = Literal["run", "fabric", "fault", "DDP run"]
"""The part of the results on which a target is measured."""
NEVER: Final = inf
"""The value of what a target waits for and what didn't happen, such as a migration."""


class Value(NamedTuple):
    """A measured value, or NEVER, and a text that says of what part or of how many it is."""

    value: float
    text: str = ""


@dataclass(frozen=True)
class MeasuredTarget:
    """A target with its measurement, once for each part of the results.

    `measure`: takes a part (AllreduceResults, FabricMeasurements, the cuts of a fault, DdpRun) and returns its value;
    None where the quantity was not measured on that part.
    """

    scope: Scope
    target: Target
    measure: Callable[[Any], Value | None]
