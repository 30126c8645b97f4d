"""Who would take whose place, and what would be sent for it: the replacements of an experiment. Nothing fails."""

from rich.console import Console
from rich.table import Table

from railyard.core.units import format_size, format_time
from railyard.experiments.run.replacement_job import ReplacementJob, replacement_job
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.replacements import with_spares
from railyard.topologies.spec import FabricSpec


def show(spec: ExperimentSpec, console: Console) -> None:
    """Print a table for each fabric on which something fails for good."""
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.fabrics, strict=True)):
        chosen = spec.replacements_on(number)
        if not chosen:
            continue
        table = Table(box=None, pad_edge=False)
        for column in ("case", "way", "fails", "is replaced by", "on", "state of each", "from", "times"):
            table.add_column(column, justify="right" if column in ("state of each", "times") else "left")
        for replacement in chosen:
            field = f"replacements.{spec.replacements.index(replacement)}"
            plan = nominal_plan(with_spares(replacement, fabric))
            job = replacement_job(replacement, fabric, plan, spec.seed, field)
            cells = (replacement.case, job.way, replacement.failed, job.replaced_by, _size(plan.spec))
            table.add_row(*cells, *_state(job), str(spec.replacement_repeats))
        size = f"{fabric.domains} domains x {fabric.rails} rails"
        console.print(f"[bold]replacements[/] on {label}, a job on {size}", highlight=False)
        console.print(table, "")


def _size(fabric: FabricSpec) -> str:
    optical = fabric.optical
    optical_note = (
        f", switching takes {format_time(optical.switching_time)} in {' and '.join(optical.layers)}" if optical else ""
    )
    return f"{fabric.domains} x {fabric.rails}{optical_note}"


def _state(job: ReplacementJob) -> tuple[str, str]:
    """Bytes, and who gives them."""
    names = [gpu.name for gpu in job.plan.gpus]
    senders = ", ".join(names[src] for src, _ in sorted(job.state.matrix))
    return format_size(max(job.state.matrix.values())), senders
