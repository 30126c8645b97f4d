"""Dry run of the faults and scripts of an experiment: what would break, when, and for how long."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from railyard.core.units import format_time
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.faults import FaultSpec
from railyard.experiments.spec.scripts import ScriptSpec, fault_dict
from railyard.failure.analysis.evaluate import AFTER_S
from railyard.failure.scenario.script import Timed
from railyard.topologies.plan import Plan


def show(spec: ExperimentSpec, console: Console) -> None:
    """Print a table for each fabric on which something breaks, and how long all of it takes at least."""
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.fabrics, strict=True)):
        faults, scripts = spec.faults_on(number), spec.scripts_on(number)
        if faults or scripts:
            size = f"{fabric.domains} domains x {fabric.rails} rails"
            console.print(f"[bold]faults[/] on {label}, {size}", highlight=False)
            console.print(_table(spec, faults, scripts, nominal_plan(fabric)), "")
    if spec.fault_runs:
        reroutes = " and ".join(spec.reroute)
        console.print(
            f"{_count(spec.injections, 'injection')} in {_count(spec.fault_runs, 'run')}, reroute {reroutes}: "
            f"{format_time(round(min_duration_s(spec)))} or more",
            highlight=False,
        )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def min_duration_s(spec: ExperimentSpec) -> float:
    """Seconds from the first traffic to the last of each run, added up; building and connecting come on top."""
    total = 0.0
    for number, fabric in enumerate(spec.fabrics):
        plan = nominal_plan(fabric)
        for fault in spec.faults_on(number):
            total += (fault.at + fault.repair + AFTER_S) * spec.times(fault)
        for script in spec.scripts_on(number):
            for repeat in range(spec.times(script)):
                total += _ends_s(script.script(plan, spec.seed + repeat).faults) + AFTER_S
    return total * len(spec.reroute)


def _ends_s(faults: Iterable[Timed]) -> float:
    """When the last is repaired; of those after a phase, from that phase on."""
    return max(timed.at_s + timed.repair_s for timed in faults)


def _table(spec: ExperimentSpec, faults: Sequence[FaultSpec], scripts: Sequence[ScriptSpec], plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("script", "at", "fault", "target", "for", "", "times"):
        table.add_column(column, justify="right" if column in ("at", "for", "times") else "left")
    for fault in faults:
        timed = Timed(fault.fault, fault.at, fault.repair)
        table.add_row("", *_cells(timed), str(spec.times(fault)))
    for script in scripts:
        table.add_section()
        for row, cells in enumerate(_rows(script, plan, spec.seed)):
            table.add_row(_title(script, spec) if row == 0 else "", *cells, str(spec.times(script)) if row == 0 else "")
    return table


def _title(script: ScriptSpec, spec: ExperimentSpec) -> str:
    during = f" during {script.during}" if script.during else ""
    return f"{script.name}{during}" + (f" (seed {spec.seed})" if script.random_faults else "")


def _rows(script: ScriptSpec, plan: Plan, seed: int) -> Iterator[tuple[str, ...]]:
    return map(_cells, script.script(plan, seed).faults)


def _cells(timed: Timed) -> tuple[str, ...]:
    data = fault_dict(timed)
    at = f"{timed.after} + {data['at']}" if timed.after else data["at"]
    parameters = ", ".join(f"{key} {data[key]}" for key in type(timed.fault.parameters).model_fields)
    return at, timed.fault.kind, timed.fault.target, data["repair"], parameters
