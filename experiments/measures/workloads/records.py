"""Records of workloads beside times, flows and bytes, and the names of their metrics."""

from dataclasses import dataclass
from typing import Final

from railyard.core.records import Record
from railyard.results.measured import RecordKind

UPLINK_BYTES: Final = "uplink-bytes"
"""The event that has the bytes of every uplink in an interval: `out` of and `in` to each rail switch, by spine."""
UPLINK_IMBALANCE: Final = "uplink_imbalance"
"""The metric max over mean: bytes of the busiest uplink over the mean of the switch that sends (or receives) most."""


@dataclass(frozen=True, slots=True)
class WaitRecord(Record):
    """A communicator that waits for ever, since GPUs in it have no path to each other.

    `ranks`: its members, such as `ranks 0 on d0g0, 3 on d1g1`. `pair`: the first of its `pairs` without a path.
    `waited_s`: for how long the replay ran until its time limit. `arrived`: of the pairs without a path, how many
    have delivered bytes nevertheless. `line`: the same as a sentence.
    """

    communicator: str
    operation: str
    ranks: str
    pair: str
    pairs: int
    waited_s: float
    arrived: int
    line: str


WAITS: Final = RecordKind("waits", WaitRecord, "waits.csv", before="measurements")
