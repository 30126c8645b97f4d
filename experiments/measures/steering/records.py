"""Records of steering: scores of health over time, and the paths that sources chose."""

from dataclasses import dataclass
from typing import Final

from railyard.core.records import Record
from railyard.results.measured import RecordKind


@dataclass(frozen=True, slots=True)
class HealthSample(Record):
    """A row of health.parquet: what the controller thought of a rail, an HB domain or the spine layer at a moment.

    `load` is the used share of its links (0 to 1), `score` the h-score (100 idle, 0 blocked) that all sources saw.
    """

    monotonic_ns: int
    element: str  # "rail", "domain" or "spine"
    index: int
    load: float
    score: int


@dataclass(frozen=True, slots=True)
class Choice(Record):
    """A row of choices.parquet: the paths that a source chose for a pair from this moment on.

    `paths`: as `topologies.forwarding.path_names` has them ("drd by rail 4"), several joined by " + ".
    """

    monotonic_ns: int
    src: str
    dst: str
    paths: str


BACKGROUND_SENT: Final = "background-sent"
"""The event that has the bytes `requested` of the background load in an interval, and those `sent`."""
HEALTH: Final = RecordKind("health", HealthSample, "health.parquet", before="machine")
CHOICES: Final = RecordKind("choices", Choice, "choices.parquet", before="machine", is_linked=False)
