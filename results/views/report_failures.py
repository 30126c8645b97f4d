"""The report's section on failures: recovery, recovery targets, timelines, scripts, replacements."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from railyard.results.analysis import replacements as takeovers
from railyard.results.analysis.recovery import (
    RecoveryRow,
    ScriptRow,
    fault_name,
    is_probed,
    mismatch_count,
    with_several_targets,
)
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.plots import fault_script, recovery
from railyard.results.plots import recovery as replacements
from railyard.results.plots.style import Plot
from railyard.results.runs.records import Run
from railyard.results.runs.recovery_targets import PUBLISHED_SYSTEMS
from railyard.results.views import recovery_tables
from railyard.results.views.report_tables import Table


@dataclass(frozen=True, slots=True)
class Failure:
    """A fault's part of the page."""

    name: str
    targets: str
    plot: Plot
    repeats: Table


@dataclass(frozen=True, slots=True)
class Script:
    """A script's part of the page: its worst repeat on a fabric."""

    name: str
    plot: Plot
    faults: Table


def parts(analysis: Analysis) -> dict[str, Any]:
    """Return the values of the template."""
    run, judgement = analysis.run, analysis.judgement
    faults, scripts, gpu_replacements = analysis.recovery_rows, analysis.script_rows, analysis.replacement_rows
    mismatches = recovery_tables.failed_checks_table(run.connectivity_checks)
    target_outcomes = analysis.target_outcomes
    return {
        "first_packets": recovery_tables.first_packets_table(faults, judgement) if faults else None,
        "steps": recovery_tables.steps_table(faults) if faults else None,
        "targets": recovery_tables.targets_table(target_outcomes) if target_outcomes else None,
        "reasons": recovery_tables.reasons_table(target_outcomes),
        "published": recovery_tables.others_table(faults),
        "published_sources": [other.source for other in PUBLISHED_SYSTEMS],
        "failures": _failures(run, faults),
        "scripts_table": recovery_tables.scripts_table(scripts, judgement) if scripts else None,
        "scripts": [_script(*worst) for worst in worst_script_repeats(scripts)],
        "failed_checks": mismatches if mismatches.rows else None,
        "replacements": _replacement_tables(gpu_replacements) if gpu_replacements else [],
        "replacement_plots": replacements.takeovers(run.events),
        "heartbeats": recovery_tables.heartbeats_table(analysis.heartbeat_rows) if analysis.heartbeat_rows else None,
    }


def _failures(run: Run, rows: Sequence[RecoveryRow]) -> list[Failure]:
    """A kind with all its fabrics; where one of them had several targets of that kind, each of these by itself."""
    found = []
    alone = [t for t in run.goodput if not (t.script or t.link)]
    many = with_several_targets([*(r for row in rows for r in row.repeats), *alone])
    fault_names = [fault_name(t.fault, t.target, (t.fabric, t.fault) in many) for t in alone]
    for name in dict.fromkeys([*(row.name for row in rows), *fault_names]):
        fault_rows = [row for row in rows if row.name == name]
        traces = [t for t, name_of_trace in zip(alone, fault_names, strict=True) if name_of_trace == name]
        targets = ", ".join(dict.fromkeys(row.target for row in fault_rows if not row.is_one_of_several))
        plot = recovery.recovery(fault_rows, traces, name)
        found.append(Failure(name, targets, plot, recovery_tables.repeats_table(fault_rows)))
    return found


def _replacement_tables(rows: Sequence[takeovers.ReplacementRow]) -> list[Table]:
    return [takeovers.steps_table(rows), takeovers.iterations_table(rows), takeovers.spread_table(rows)]


def worst_script_repeats(scripts: Iterable[ScriptRow]) -> Iterator[tuple[ScriptRow, int]]:
    """Of each script on each fabric, with rerouting and without, the worst repeat, and how many there were."""
    repeats: defaultdict[tuple[str, str, str], list[ScriptRow]] = defaultdict(list)
    for script in scripts:
        repeats[script.script, script.fabric, script.reroute].append(script)
    for group in repeats.values():
        yield max(group, key=_severity), len(group)


def _script(script: ScriptRow, repeats: int) -> Script:
    count_text = f", the worst of {repeats}" if repeats > 1 else ""
    name = f"{script.script} on {script.fabric}, reroute {script.reroute}, repeat {script.repeat}{count_text}"
    return Script(name, fault_script.script_timeline(script), recovery_tables.script_faults_table(script))


def _severity(script: ScriptRow) -> tuple[float, float, float]:
    """By its worst connectivity check (mismatches, then fewest answers), then by first packets."""
    connectivity_checks = [(float(mismatch_count(c)), -float(c.answered)) for c in script.connectivity_checks if c.done]
    first_packets_ms = [r.first_packet_ms for r in script.faults if is_probed(r)]
    slowest = max((inf if ms is None else ms for ms in first_packets_ms), default=0.0)
    return (*max(connectivity_checks, default=(0.0, -inf)), slowest)
