"""Schedules of workloads as text: what each step sends, between which GPUs, and over which links."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from railyard.core.units import format_size, format_time
from railyard.experiments.measures.workloads.spec import labelled_workloads
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.topologies.addresses import Gpu
from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, cross_rail_bytes
from railyard.workloads.matrix.waiting import wait_lines
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import build

LARGEST: Final = 8
GROUPS_SHOWN: Final = 2
GPUS_SHOWN: Final = 4


class Step(NamedTuple):
    """All runs of one step. `groups`: the sets of GPUs that took part in a run, each once, in order."""

    name: str
    kind: str
    runs: int
    transfers: int
    bytes: int
    rail_bytes: int
    groups: tuple[tuple[int, ...], ...]


def print_schedules(spec: ExperimentSpec, console: Console) -> None:
    """Print each workload on each fabric: its scale, the steps of its schedule, and notes."""
    for label, fabric in zip(spec.labels, spec.gpu_fabrics, strict=True):
        plan = nominal_plan(fabric)
        size = fabric.size_text
        for number, (name, workload) in enumerate(labelled_workloads(spec)):
            built = build(workload, fabric, plan.rail_bps, plan.hb_bps, f"workloads.{number}", spec.seed)
            factor = f"bytes times {built.scale.bytes_factor:.4g}"
            if built.scale.compute_kept < 1:
                factor += f", computing: {100 * built.scale.compute_kept:.3g}% kept"
            console.print(f"[bold]{name}[/] on {label}, {size}: {factor}", highlight=False)
            _print_schedule(built.schedule, fabric, console)
            for line in wait_lines(built.schedule, fabric):
                console.print(line, highlight=False, soft_wrap=True)
            for note in built.notes:
                console.print(f"note: {note}", highlight=False)
            console.print()


def steps(schedule: Schedule) -> list[Step]:
    """Return every step by its name, in the order of first runs; steps that send nothing are left out."""
    columns = schedule.columns
    transfers = np.flatnonzero(~columns.is_compute)
    transfers = transfers[np.argsort(columns.phase[transfers], kind="stable")]
    phases, first = np.unique(columns.phase[transfers], return_index=True)
    runs: defaultdict[tuple[str, str], list[npt.NDArray[np.int64]]] = defaultdict(list)
    for number, run in zip(phases.tolist(), np.split(transfers, first[1:]), strict=True):
        phase = schedule.phases[number]
        runs[phase.name, phase.kind].append(run)
    return [_step(schedule, name, kind, step_runs) for (name, kind), step_runs in runs.items()]


def _step(schedule: Schedule, name: str, kind: str, runs: Sequence[npt.NDArray[np.int64]]) -> Step:
    """Return a step. `runs`: numbers of the transfers of each of its runs."""
    columns = schedule.columns
    sent = np.concatenate(runs)
    crosses = columns.src[sent] // schedule.rails != columns.dst[sent] // schedule.rails
    groups: list[tuple[int, ...]] = []
    for run in runs:
        takes_part = np.zeros(schedule.gpus, dtype=bool)
        takes_part[columns.src[run]] = True
        takes_part[columns.dst[run]] = True
        groups.append(tuple(np.flatnonzero(takes_part).tolist()))
    return Step(
        name=name,
        kind=kind,
        runs=len(runs),
        transfers=len(sent),
        bytes=int(columns.bytes[sent].sum()),
        rail_bytes=int(columns.bytes[sent][crosses].sum()),
        groups=tuple(dict.fromkeys(groups)),
    )


def _print_schedule(schedule: Schedule, fabric: FabricSpec, console: Console) -> None:
    """Print a table of steps, then totals, computing, and the pairs that send most."""
    numbers = ("runs", "transfers", "bytes", "over rails")
    table = plain_table("step", "kind", "runs", "GPUs", *numbers[1:], right=numbers)
    names = [Gpu(*divmod(number, schedule.rails)).name for number in range(schedule.gpus)]
    for step in steps(schedule):
        over_rails = "-"
        if step.rail_bytes:
            over_rails = format_size(step.rail_bytes)
        sizes = (f"{step.transfers:,}", format_size(step.bytes), over_rails)
        table.add_row(step.name, step.kind, f"{step.runs:,}", _groups_text(step.groups, names), *sizes)
    console.print(table)
    kinds = [f"{kind} {format_size(size)}" for kind, size in bytes_by_kind(schedule).items()]
    total = sum(schedule.matrix.values())
    crossing = cross_rail_bytes(schedule, fabric.rail_of_rank)
    share = "none"
    if crossing:
        share = f"{format_size(crossing)} ({100 * crossing / total:.3g}%)"
    console.print(f"total {format_size(total)}: {', '.join(kinds)}; crossing rails: {share}", highlight=False)
    console.print(f"computing: {_computing_text(schedule)}", highlight=False)
    largest = sorted(schedule.matrix.items(), key=lambda item: (-item[1], item[0]))[:LARGEST]
    pairs = [f"{names[src]} to {names[dst]} {format_size(size)}" for (src, dst), size in largest]
    console.print(f"largest of {len(schedule.matrix):,} pairs: {', '.join(pairs)}", highlight=False)


def _groups_text(groups: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return the first groups of GPUs by name, and how many more there are."""
    parts: list[str] = []
    for group in groups[:GROUPS_SHOWN]:
        if len(group) <= GPUS_SHOWN:
            parts.append(" ".join(names[number] for number in group))
        else:
            parts.append(f"{names[group[0]]} ... {names[group[-1]]} ({len(group)})")
    if len(groups) > GROUPS_SHOWN:
        parts.append(f"{len(groups) - GROUPS_SHOWN} more")
    return " | ".join(parts)


def _computing_text(schedule: Schedule) -> str:
    """Return how long the busiest GPU computes."""
    columns = schedule.columns
    seconds = np.bincount(columns.src[columns.is_compute], columns.seconds[columns.is_compute])
    if not len(seconds):
        return "none"
    return f"{format_time(float(seconds.max()))} at the busiest GPU"
