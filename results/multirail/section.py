"""The report's sections on a multi-rail run."""

from typing import Any

from railyard.results.multirail import plots, tables
from railyard.results.multirail.compare import by_fabric
from railyard.results.multirail.records import Multirail
from railyard.results.multirail.targets import outcomes
from railyard.results.runs.fidelity import Judgement


def parts(found: Multirail, judgement: Judgement) -> dict[str, Any] | None:
    """What its template asks for; None where there is nothing of the kind."""
    invalid = tables.invalid_points(judgement)
    if not found:
        return None
    places = dict.fromkeys((rates.fabric, rates.fault) for rates in found.rates)
    drawn = [(f"{fabric}: {fault}", plots.nic_rates(found, fabric, fault)) for fabric, fault in places]
    return {
        "targets": tables.targets_table(outcomes(found)),
        "latencies": [
            (m.rails.label, plots.latency(m), tables.benchmark_table(m, invalid), tables.starts_text(m))
            for m in by_fabric(found)
        ],
        "thresholds": tables.thresholds_table(found),
        "shares": plots.shares(found),
        "channels": plots.channels(found),
        "gains": tables.gains_table(found),
        "table_1": tables.table_1(found),
        "cuts": tables.cuts_table(found.cuts),
        "rates": [(name, plot) for name, plot in drawn if plot],
        "speeds": plots.trainings(found),
        "trainings": tables.trainings_table(found),
        "ddp_runs": tables.ddp_runs_table(found),
        "losses": plots.losses(found),
        "slow_motion_note": tables.SLOW_MOTION_NOTE if tables.slow_motion((*found.points, *found.trainings)) else "",
        "fabrics": tables.fabrics_table(found),
        "skipped": found.skipped,
    }
