"""Recovery in summary.json: headline figures, recovery targets, scripts. Plain data; times in ms, None for "never"."""

from typing import Any

from railyard.results.analysis.recovery import RecoveryRow, ScriptRow, verdict
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.recovery_targets import PUBLISHED_SYSTEMS, Outcome, times_slower


def recovery_dicts(analysis: Analysis) -> dict[str, Any]:
    """By their keys in the headline."""
    run, judgement = analysis.run, analysis.judgement
    return {
        "recovery": [_row(row, judgement) for row in (*analysis.recovery_rows, *analysis.rail_recovery_rows)],
        "recovery_targets": [_outcome(o) for o in analysis.outcomes] if run.recoveries or run.replacements else [],
        "scripts": [_script(script, judgement) for script in analysis.script_rows],
    }


def _row(row: RecoveryRow, judgement: Judgement) -> dict[str, Any]:
    first = row.steps["first_packet_ms"].median
    return {
        "fabric": row.fabric,
        "fault": row.fault,
        "target": row.target,
        "reroute": row.reroute,
        "verdict": verdict(row.repeats, judgement),
        "repeats": len(row.repeats),
        "recovered": row.recovered,
        "unaffected": row.unaffected,
        "unprobed": row.unprobed,
        **{step: found.as_dict() for step, found in row.steps.items()},
        **{f"{side}_side_ms": found.as_dict() for side, found in row.sides.items()},
        "lost_bytes": row.total("lost_bytes"),
        "probes_lost": row.total("probes_lost"),
        "probes_lost_after_repair": row.total("probes_lost_after_repair"),
        "above_max_flow": row.total("above_max_flow"),
        "connections_lost": row.connections_lost,
        "published_times_slower": {system.name: times_slower(system, first) for system in PUBLISHED_SYSTEMS},
    }


def _outcome(o: Outcome) -> dict[str, Any]:
    recovery_target = {
        name: value for name in ("median", "p95", "most") if (value := getattr(o.recovery_target, name)) != float("inf")
    }
    return {
        "what": o.recovery_target.what,
        "fabric": o.fabric or None,
        "target": o.target or None,
        "unit": o.recovery_target.unit,
        "limits": recovery_target,
        "measured": {**o.figure.as_dict(), "most": o.figure.most} if o.figure else None,
        "worst": o.worst or None,
        "met": o.met,
    }


def _script(script: ScriptRow, judgement: Judgement) -> dict[str, Any]:
    return {
        **{name: getattr(script, name) for name in ("script", "fabric", "reroute", "repeat")},
        "verdict": verdict(script.faults, judgement),
        "faults": len(script.faults),
        "connectivity_checks": len(script.connectivity_checks),
        "connectivity_checks_done": script.done,
        "connectivity_checks_passed": script.matched,
        "probes_lost_after_repair": sum(r.probes_lost_after_repair for r in script.repaired_alone),
        "lost_bytes": script.lost_bytes,
        "connections_lost": script.connections_lost,
    }
