"""The report's section on failures: recovery in one table, what was wanted, timelines, scripts, takeovers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from results import plot_recovery, plot_storm, recovery_tables, takeovers
from results.aggregate import HEARTBEATS, Row
from results.fidelity import Judgement
from results.plots import Plot
from results.records import Run
from results.recovery_bars import OTHERS, outcomes
from results.recovery_rows import RecoveryRow, ScriptRow, recovery_rows, script_runs
from results.report_tables import Table

_DRAWN: Final = 6  # runs of scripts: each is a figure of a screen's height


@dataclass(frozen=True, slots=True)
class Failure:
    """A fault's part of the page."""

    name: str
    targets: str
    plot: Plot | None
    repeats: Table


@dataclass(frozen=True, slots=True)
class Script:
    """A script's part of the page: a repeat of it on a fabric."""

    name: str
    plot: Plot
    faults: Table


def parts(run: Run, rows: Sequence[Row], judgement: Judgement) -> dict[str, Any]:
    """What the template asks for."""
    faults, scripts, replaced = recovery_rows(run), script_runs(run), takeovers.takeover_rows(run, judgement)
    wrong = recovery_tables.censuses_table(run.censuses)
    beats = [row for row in rows if row.workload == HEARTBEATS]
    wanted = outcomes(run) if any(r.reroute == "on" for r in run.recoveries) or replaced else ()
    return {
        "first_packets": recovery_tables.first_packets_table(faults, judgement) if faults else None,
        "steps": recovery_tables.steps_table(faults) if faults else None,
        "wanted": recovery_tables.bars_table(wanted) if wanted else None,
        "reasons": recovery_tables.reasons_table(wanted),
        "beside": recovery_tables.others_table(faults),
        "beside_sources": [other.source for other in OTHERS],
        "failures": _failures(run, faults),
        "scripts_table": recovery_tables.scripts_table(scripts, judgement) if scripts else None,
        "scripts": [_script(s) for s in scripts[:_DRAWN]],
        "scripts_not_drawn": len(scripts[_DRAWN:]),
        "censuses_wrong": wrong if wrong.rows else None,
        "takeovers": _takeovers(replaced) if replaced else [],
        "heartbeats": recovery_tables.heartbeats_table(beats) if beats else None,
    }


def _failures(run: Run, rows: Sequence[RecoveryRow]) -> list[Failure]:
    found = []
    alone = [t for t in run.goodput if not t.script]
    for fault in dict.fromkeys([*(r.fault for r in rows), *(t.fault for t in alone)]):
        mine = [r for r in rows if r.fault == fault]
        traces = [t for t in alone if t.fault == fault]
        targets = ", ".join(dict.fromkeys(r.target for row in mine for r in row.repeats))
        plot = plot_recovery.recovery(mine, traces, fault) if mine or traces else None
        found.append(Failure(fault, targets, plot, recovery_tables.repeats_table(mine)))
    return found


def _takeovers(rows: Sequence[takeovers.TakeoverRow]) -> list[Table]:
    return [takeovers.steps_table(rows), takeovers.iterations_table(rows), takeovers.spread_table(rows)]


def _script(script: ScriptRow) -> Script:
    name = f"{script.script} on {script.fabric}, reroute {script.reroute}, repeat {script.repeat}"
    return Script(name, plot_storm.storm(script), recovery_tables.script_faults_table(script))
