"""Labels of measurement intervals, as tables and messages show them. Nothing parses them: identity is IntervalId."""

from railyard.core.records import IntervalId


def workload_label(interval: IntervalId) -> str:
    """Return what ran: `gpt`, `transfers, d0 90%`, `moe with two-at-once`, `link-down d0g1 (reroute on)`."""
    text = ", ".join(filter(None, (interval.workload, interval.scene)))
    if text and interval.script:
        suffix = " (reroute off)" if interval.reroute == "off" else ""
        return f"{text} with {interval.script}{suffix}"
    if text:
        return text
    faults = ": ".join(filter(None, (interval.script, interval.part)))
    return f"{faults} (reroute {interval.reroute})" if interval.reroute else faults


def interval_label(interval: IntervalId, fabric: str = "") -> str:
    """Return fabric, what ran and the repeat; the fabric alone if nothing ran. `fabric`: its label beside others."""
    where = fabric or interval.fabric
    what = workload_label(interval)
    return f"{where}, {what}, repeat {interval.repeat}" if what else where
