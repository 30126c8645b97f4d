"""Recovery in summary.json: headline figures, what was wanted, scripts. Plain data; times in ms, None for "never"."""

from typing import Any

from results.fidelity import Judgement
from results.records import Run
from results.recovery_bars import OTHERS, Outcome, outcomes, times_ours
from results.recovery_rows import RecoveryRow, ScriptRun, recovery_rows, script_runs, verdict
from results.recovery_stats import Figure, Interval


def recovery_dicts(run: Run, judgement: Judgement) -> dict[str, Any]:
    """By their keys in the headline."""
    return {
        "recovery": [_row(row, judgement) for row in recovery_rows(run)],
        "recovery_wanted": [_outcome(o) for o in outcomes(run)] if run.recoveries or run.takeovers else [],
        "scripts": [_script(script, judgement) for script in script_runs(run)],
    }


def _row(row: RecoveryRow, judgement: Judgement) -> dict[str, Any]:
    first = row.steps["first_packet_ms"].median
    return {
        "fabric": row.fabric,
        "fault": row.fault,
        "reroute": row.reroute,
        "verdict": verdict(row.repeats, judgement),
        "repeats": len(row.repeats),
        "recovered": row.recovered,
        "no_one_affected": row.unaffected,
        **{step: _figure(found) for step, found in row.steps.items()},
        **{f"{side}_ms": _figure(found) for side, found in row.sides.items()},
        "lost_bytes": row.total("lost_bytes"),
        "probes_lost": row.total("probes_lost"),
        "return_lost": row.total("return_lost"),
        "connections_lost": row.connections_lost,
        "others_take_times_as_long": {other.name: times_ours(other, first) for other in OTHERS},
    }


def _figure(found: Figure) -> dict[str, Any]:
    return {
        **{name: getattr(found, name) for name in ("n", "median", "p95")},
        "median_95": _interval(found.median_interval),
        "p95_95": _interval(found.p95_interval),
    }


def _interval(found: Interval | None) -> list[float | None] | None:
    return None if found is None else [found.low, found.high]


def _outcome(o: Outcome) -> dict[str, Any]:
    bar = {name: value for name in ("median", "p95", "most") if (value := getattr(o.bar, name)) != float("inf")}
    return {
        "what": o.bar.what,
        "fabric": o.fabric or None,
        "unit": o.bar.unit,
        "wanted": bar,
        "measured": {**_figure(o.figure), "most": o.figure.most} if o.figure else None,
        "worst": o.worst or None,
        "met": o.met,
    }


def _script(script: ScriptRun, judgement: Judgement) -> dict[str, Any]:
    return {
        **{name: getattr(script, name) for name in ("script", "fabric", "reroute", "repeat")},
        "verdict": verdict(script.faults, judgement),
        "faults": len(script.faults),
        "censuses": len(script.censuses),
        "censuses_held": script.held,
        "lost_bytes": script.lost_bytes,
        "connections_lost": script.connections_lost,
    }
