"""Records of replacements: replacement.csv."""

from dataclasses import dataclass
from typing import Final

from railyard.core.records import Record
from railyard.results.measured import RecordKind


@dataclass(frozen=True, slots=True)
class Replacement(Record):
    """A row of replacement.csv: a GPU or HB domain that failed for good under a running job, and what replaced it.

    Source: Rail-only IV-C. Its columns: docs/results.md. Times are ms from the fault unless said.
    """

    case: str
    method: str
    failed: str
    replaced_by: str
    t_fault: int  # ns
    detect_ms: float
    optical_links_down_ms: float
    replaced_ms: float
    state_transfer_ms: float
    state_transfer_predicted_ms: float | None
    interruption_ms: float
    iterations_lost: int
    moved_bytes: int
    before_s: float
    after_s: float
    before_predicted_s: float | None
    after_predicted_s: float | None


REPLACEMENTS: Final = RecordKind("replacements", Replacement, "replacement.csv", before="measurements")
