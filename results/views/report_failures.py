"""The report's section on failures: recovery in one table, what was wanted, timelines, scripts, takeovers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from railyard.results.analysis import replacements as takeovers
from railyard.results.analysis.aggregate import HEARTBEATS, Row
from railyard.results.analysis.recovery_rows import (
    RecoveryRow,
    ScriptRow,
    disagreements,
    is_probed,
    named,
    recovery_rows,
    script_runs,
    several,
)
from railyard.results.plots import fault_script, recovery, replacements
from railyard.results.plots.style import Plot
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.records import Run
from railyard.results.runs.recovery_targets import OTHERS, outcomes
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
        "scripts": [_script(*worst) for worst in worst_repeats(scripts)],
        "censuses_wrong": wrong if wrong.rows else None,
        "takeovers": _takeovers(replaced) if replaced else [],
        "takeover_plots": replacements.takeovers(run.events),
        "heartbeats": recovery_tables.heartbeats_table(beats) if beats else None,
    }


def _failures(run: Run, rows: Sequence[RecoveryRow]) -> list[Failure]:
    """A kind with all its fabrics; where one of them had several targets of that kind, each of these by itself."""
    found = []
    alone = [t for t in run.goodput if not t.script]
    many = several([*(r for row in rows for r in row.repeats), *alone])
    called = [named(t.fault, t.target, (t.fabric, t.fault) in many) for t in alone]
    for name in dict.fromkeys([*(row.name for row in rows), *called]):
        mine = [row for row in rows if row.name == name]
        traces = [t for t, its in zip(alone, called, strict=True) if its == name]
        targets = ", ".join(dict.fromkeys(row.target for row in mine if not row.is_one_of_several))
        plot = recovery.recovery(mine, traces, name)
        found.append(Failure(name, targets, plot, recovery_tables.repeats_table(mine)))
    return found


def _takeovers(rows: Sequence[takeovers.TakeoverRow]) -> list[Table]:
    return [takeovers.steps_table(rows), takeovers.iterations_table(rows), takeovers.spread_table(rows)]


def worst_repeats(scripts: Iterable[ScriptRow]) -> Iterator[tuple[ScriptRow, int]]:
    """Of each script on each fabric, with rerouting and without, the worst repeat, and how many there were."""
    repeats: defaultdict[tuple[str, str, str], list[ScriptRow]] = defaultdict(list)
    for script in scripts:
        repeats[script.script, script.fabric, script.reroute].append(script)
    for group in repeats.values():
        yield max(group, key=_badness), len(group)


def _script(script: ScriptRow, repeats: int) -> Script:
    of_many = f", the worst of {repeats}" if repeats > 1 else ""
    name = f"{script.script} on {script.fabric}, reroute {script.reroute}, repeat {script.repeat}{of_many}"
    return Script(name, fault_script.storm(script), recovery_tables.script_faults_table(script))


def _badness(script: ScriptRow) -> tuple[float, float, float]:
    """By its worst census, which is one that doesn't hold, then one that few pairs answered; then by first packets."""
    censuses = [(float(disagreements(c)), -float(c.answered)) for c in script.censuses if c.taken]
    firsts = [r.first_packet_ms for r in script.faults if is_probed(r)]
    slowest = max((inf if ms is None else ms for ms in firsts), default=0.0)
    return (*max(censuses, default=(0.0, -inf)), slowest)
