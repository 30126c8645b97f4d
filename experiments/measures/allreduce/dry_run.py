"""Text of `dry-run` for multi-rail fabrics: what would be sent, and over which rails."""

from rich.console import Console

from railyard.core.units import format_rate
from railyard.experiments.measures.allreduce.spec import faults_on, rail_fabrics, workloads_on
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results import format as fmt
from railyard.topologies.multirail.plan import MultirailPlan, nominal_plan
from railyard.workloads.allreduce.engine_kind import rails_of


def print_items(spec: ExperimentSpec, console: Console) -> None:
    """Print the rails of each fabric, then its workloads and faults."""
    for number, (label, fabric) in enumerate(zip(spec.labels, rail_fabrics(spec), strict=True)):
        plan = nominal_plan(fabric)
        rates = ", ".join(f"{rail.name} {format_rate(rail.rate * 8, 3)}" for rail in rails_of(plan))
        scale = f"{plan.scale:g} times slower than the paper's"
        console.print(f"[bold]{label}[/]: {scale}; {rates} a NIC", highlight=False)
        _print_workloads(spec, number, plan, console)
        for fault in faults_on(spec, number):
            text = f"{fault.times(spec)} x {fault.kind} {fault.target} for {fmt.seconds(fault.repair)}"
            console.print(text, highlight=False)


def _print_workloads(spec: ExperimentSpec, number: int, plan: MultirailPlan, console: Console) -> None:
    """Print the sentences and tables of the workloads of a fabric, by its number."""
    for workload in workloads_on(spec, number):
        for item in workload.dry_run(number, plan, spec.repeats):
            if isinstance(item, str):
                console.print(item, highlight=False)
                continue
            header, *rows = item
            table = plain_table(*header, right=header)
            for row in rows:
                table.add_row(*row)
            console.print(table, highlight=False)
