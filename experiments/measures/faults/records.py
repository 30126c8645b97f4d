"""Kinds of records of faults: recovery.csv, connectivity.csv, and traces of goodput. Allreduces record faults too."""

from typing import Any, Final

from railyard.core.records import ConnectivityCheck, Recovery
from railyard.results.measured import RecordKind
from railyard.results.runs.records import GoodputTrace

RECOVERY_COLUMNS: Final = (
    "fault", "target", "t_fault", "detect_ms", "reroute_ms", "first_packet_ms", "goodput_ms", "lost_bytes", "recovered",
    "fabric", "policy", "reroute", "repeat", "goodput_after_repair_ms", "probes_lost", "connections_lost",
    "t_repair", "decided_ms", "source_side_ms", "far_side_ms", "probes_lost_after_repair", "script", "primary_path_ms",
    "source_side_probed", "far_side_probed", "above_max_flow", "workload", "part", "first_packet", "goodput",
    "goodput_after_repair", "goodput_share",
)  # fmt: skip
"""Columns of recovery.csv."""


def _to_plain(recovery: Recovery) -> dict[str, Any]:
    """Return a row of recovery.csv."""
    from railyard.experiments.measures.faults.states import csv_row

    return csv_row(recovery)


def _from_plain(row: dict[str, Any]) -> None:
    """Give a row of recovery.csv the values of the record, in place."""
    from railyard.experiments.measures.faults.states import read_csv_row

    read_csv_row(row)


RECOVERIES: Final = RecordKind(
    "recoveries",
    Recovery,
    "recovery.csv",
    before="measurements",
    in_every_run=True,
    has_labels=True,
    sweep_file="recoveries.parquet",
    columns=RECOVERY_COLUMNS,
    to_plain=_to_plain,
    from_plain=_from_plain,
)
CONNECTIVITY_CHECKS: Final = RecordKind(
    "connectivity_checks", ConnectivityCheck, "connectivity.csv", before="measurements"
)
GOODPUT: Final = RecordKind("goodput", GoodputTrace, before="links")
