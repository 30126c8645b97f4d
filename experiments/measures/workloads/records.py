"""Names of what workloads record beside times, flows and bytes."""

from typing import Final

UPLINK_BYTES: Final = "uplink-bytes"
"""The event that has the bytes of every uplink in an interval: `out` of and `in` to each rail switch, by spine."""
UPLINK_IMBALANCE: Final = "uplink_imbalance"
"""The metric max over mean: bytes of the busiest uplink over the mean of the switch that sends (or receives) most."""
