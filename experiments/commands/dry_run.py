"""What an experiment, or somebody's trace, would send: step by step, by whom, and where it goes. Nothing is sent."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from railyard.core.errors import BadInput
from railyard.core.units import format_size, format_time
from railyard.experiments.commands import dry_run_faults, dry_run_replacements, dry_run_steered, options
from railyard.experiments.commands.options import Overrides, PluginFiles
from railyard.experiments.spec import catalogue
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan, parse, sections
from railyard.experiments.spec.kind import BaseExperiment, kind_of
from railyard.experiments.spec.loading import load_any
from railyard.experiments.spec.overrides import apply
from railyard.topologies.addresses import Gpu
from railyard.workloads.build import build_whole
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, cross_rail_bytes
from railyard.workloads.schedule import Compute, Schedule
from railyard.workloads.traces.files import is_trace_prefix

LARGEST: Final = 8
GROUPS_SHOWN: Final = 2
_EXPERIMENT: Final = (".yaml", ".yml")


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|TRACE",
            help="An experiment; or a trace of Chakra, PARAM or SimAI: a file, or a folder with a file per rank.",
        ),
    ],
    overrides: Overrides,
    plugin_files: PluginFiles,
) -> int:
    """Print what would be sent, by which GPUs and over which links, without sending it. Needs no root."""
    spec = experiment(name, overrides)
    return kind_of(spec).dry_run(spec, options.console())


@dataclass(frozen=True, slots=True)
class Step:
    """All runs of one step. `groups`: the sets of GPUs that took part in a run, each once, in order."""

    name: str
    kind: str
    runs: int
    transfers: int
    bytes: int
    rail_bytes: int
    groups: tuple[tuple[int, ...], ...]


def experiment(name_or_file: str, overrides: Iterable[str]) -> BaseExperiment:
    """An experiment; or, of a trace, one that replays its bytes as they are on the default rail-only fabric.

    BadInput as for `run`. Overrides may change the fabric, and scale the trace.
    """
    trace = "/" in name_or_file or Path(name_or_file).exists() or Path(name_or_file).suffix in (".et", ".json", ".txt")
    if name_or_file not in catalogue.names() and not trace and is_trace_prefix(name_or_file):
        raise BadInput("NAME", name_or_file, f"begins the names of a trace's files here: write ./{name_or_file}")
    if name_or_file in catalogue.names() or name_or_file.endswith(_EXPERIMENT) or not trace:
        return load_any(name_or_file, overrides)
    workload = {"kind": "trace", "path": name_or_file}
    data: dict[str, Any] = {"name": "dry-run", "fabrics": [{"kind": "rail-only"}], "workloads": [workload]}
    data = apply(data, overrides, sections())
    replayed = data["workloads"][0]
    if isinstance(replayed, dict) and not {"duration", "bytes_factor"} & set(replayed):
        replayed["bytes_factor"] = 1.0
    return parse(data)


def steps(schedule: Schedule) -> list[Step]:
    """Every step by its name, in the order of first runs; steps that send nothing are left out."""
    sent: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for _, t in schedule.transfers:
        sent[t.phase].append((t.src, t.dst, t.bytes))
    runs: dict[tuple[str, str], list[list[tuple[int, int, int]]]] = {}
    for number in sorted(sent):
        phase = schedule.phases[number]
        runs.setdefault((phase.name, phase.kind), []).append(sent[number])
    return [_step(name, kind, found, schedule.rails) for (name, kind), found in runs.items()]


def _step(name: str, kind: str, runs: Sequence[Sequence[tuple[int, int, int]]], rails: int) -> Step:
    everything = [transfer for run in runs for transfer in run]
    groups = dict.fromkeys(tuple(sorted({gpu for src, dst, _ in run for gpu in (src, dst)})) for run in runs)
    return Step(
        name=name,
        kind=kind,
        runs=len(runs),
        transfers=len(everything),
        bytes=sum(size for *_, size in everything),
        rail_bytes=sum(size for src, dst, size in everything if src // rails != dst // rails),
        groups=tuple(groups),
    )


def show(spec: ExperimentSpec, console: Console) -> int:
    """Print each workload on each fabric, and what breaks there. BadInput if neither is there."""
    if not spec.workloads and not spec.fault_runs and not spec.replacements:
        raise BadInput("NAME", spec.name, "has no workloads and no faults: what it does depends on time")
    for label, fabric in zip(spec.labels, spec.fabrics, strict=True):
        plan = nominal_plan(fabric)
        for i, (name, workload) in enumerate(zip(spec.workload_labels, spec.workloads, strict=True)):
            built = build_whole(workload, fabric, plan.rail_bps, plan.hb_bps, f"workloads.{i}", spec.seed)
            size = f"{fabric.domains} domains x {fabric.rails} rails"
            console.print(
                f"[bold]{name}[/] on {label}, {size}: bytes times {built.scale.bytes_factor:.4g}", highlight=False
            )
            _print(built.schedule, console)
            for note in built.notes:
                console.print(f"note: {note}", highlight=False)
            console.print()
    dry_run_steered.show(spec, console)
    dry_run_faults.show(spec, console)
    dry_run_replacements.show(spec, console)
    return 0


def _print(schedule: Schedule, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("step", "kind", "runs", "by whom", "transfers", "bytes", "over rails"):
        table.add_column(column, justify="left" if column in ("step", "kind", "by whom") else "right")
    for step in steps(schedule):
        participants = _participants(step, schedule)
        sizes = (format_size(step.bytes), format_size(step.rail_bytes) if step.rail_bytes else "-")
        table.add_row(step.name, step.kind, f"{step.runs:,}", participants, f"{step.transfers:,}", *sizes)
    console.print(table)
    kinds = ", ".join(f"{kind} {format_size(size)}" for kind, size in bytes_by_kind(schedule).items())
    total = sum(schedule.matrix.values())
    crossing = cross_rail_bytes(schedule)
    share = f"{format_size(crossing)} ({100 * crossing / total:.3g}%)" if crossing else "none"
    console.print(f"total {format_size(total)}: {kinds}; crossing rails: {share}", highlight=False)
    console.print(f"computing: {_computing(schedule)}", highlight=False)
    largest = sorted(schedule.matrix.items(), key=lambda item: (-item[1], item[0]))[:LARGEST]
    pairs = ", ".join(f"{_gpu(s, schedule)} to {_gpu(d, schedule)} {format_size(size)}" for (s, d), size in largest)
    console.print(f"largest of {len(schedule.matrix):,} pairs: {pairs}", highlight=False)


def _computing(schedule: Schedule) -> str:
    seconds: defaultdict[int, float] = defaultdict(float)
    for task in schedule.tasks:
        if isinstance(task, Compute):
            seconds[task.gpu] += task.seconds
    return f"{format_time(max(seconds.values()))} at the busiest GPU" if seconds else "none"


def _participants(step: Step, schedule: Schedule) -> str:
    """The groups, as far as there is room."""
    shown = [_group(group, schedule) for group in step.groups[:GROUPS_SHOWN]]
    more = len(step.groups) - len(shown)
    return " | ".join(shown) + (f" | {more} more" if more else "")


def _group(group: tuple[int, ...], schedule: Schedule) -> str:
    names = [_gpu(number, schedule) for number in group]
    return " ".join(names) if len(names) <= 4 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _gpu(number: int, schedule: Schedule) -> str:
    return Gpu(*divmod(number, schedule.rails)).name
