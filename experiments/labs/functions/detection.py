"""Answers of lab 5: rates of heartbeats, and detection times of the student's run."""

from railyard.core.records import Recovery
from railyard.experiments.labs.definition import Setting
from railyard.experiments.labs.functions.faults import ms as ms  # for expressions of the lab


def sent_per_s(setting: Setting, period_ms: float) -> float:
    """Return the heartbeats per second of all GPUs: one over the rail and one over the HB domain in each period."""
    return float(2 * setting["domains"] * setting["rails"] * 1000 / period_ms)


def recovery(setting: Setting, kind: str) -> Recovery:
    """Return the record of a fault in the student's run."""
    return setting.recovery("measured", fault=kind)


def rerouting_ms(setting: Setting) -> float:
    """Return the time from the detection of the silent link until all routes were changed, ms."""
    row = recovery(setting, "link-silent")
    return (row.reroute_ms or 0.0) - (row.detect_ms or 0.0)
