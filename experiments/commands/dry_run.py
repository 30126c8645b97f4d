"""Print what an experiment or a trace would send, its faults, replacements and first routes: the command `dry-run`."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from railyard.core.errors import BadInput
from railyard.core.units import format_size, format_time
from railyard.experiments.commands import options
from railyard.experiments.commands.options import Overrides, PluginFiles
from railyard.experiments.run.initial_state import InitialState, initial_states
from railyard.experiments.run.replacement_job import ReplacementJob, replacement_job
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan, parse, sections
from railyard.experiments.spec.faults import FaultSpec
from railyard.experiments.spec.kind import BaseExperiment, kind_of
from railyard.experiments.spec.loading import apply, load_any
from railyard.experiments.spec.replacements import with_spares
from railyard.experiments.spec.scripts import ScriptSpec, fault_dict
from railyard.failure.analysis.evaluate import AFTER_S
from railyard.failure.scenario.script import Timed
from railyard.results.views.format import NOTHING
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.spec import BackgroundSpec
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, cross_rail_bytes
from railyard.workloads.schedule import Compute, Schedule
from railyard.workloads.spec import build_whole
from railyard.workloads.traces.common import is_trace_prefix


def show_faults(spec: ExperimentSpec, console: Console) -> None:
    """Print a table for each fabric on which something breaks, and how long all of it takes at least."""
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.fabrics, strict=True)):
        faults, scripts = spec.faults_on(number), spec.scripts_on(number)
        if faults or scripts:
            size = f"{fabric.domains} domains x {fabric.rails} rails"
            console.print(f"[bold]faults[/] on {label}, {size}", highlight=False)
            console.print(_fault_table(spec, faults, scripts, nominal_plan(fabric)), "")
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


def _fault_table(spec: ExperimentSpec, faults: Sequence[FaultSpec], scripts: Sequence[ScriptSpec], plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("script", "at", "fault", "target", "for", "", "times"):
        table.add_column(column, justify="right" if column in ("at", "for", "times") else "left")
    for fault in faults:
        timed = Timed(fault.fault, fault.at, fault.repair)
        table.add_row("", *_fault_cells(timed), str(spec.times(fault)))
    for script in scripts:
        table.add_section()
        for row, cells in enumerate(_fault_rows(script, plan, spec.seed)):
            table.add_row(
                _script_title(script, spec) if row == 0 else "", *cells, str(spec.times(script)) if row == 0 else ""
            )
    return table


def _script_title(script: ScriptSpec, spec: ExperimentSpec) -> str:
    during = f" during {script.during}" if script.during else ""
    return f"{script.name}{during}" + (f" (seed {spec.seed})" if script.random_faults else "")


def _fault_rows(script: ScriptSpec, plan: Plan, seed: int) -> Iterator[tuple[str, ...]]:
    return map(_fault_cells, script.script(plan, seed).faults)


def _fault_cells(timed: Timed) -> tuple[str, ...]:
    data = fault_dict(timed)
    at = f"{timed.after} + {data['at']}" if timed.after else data["at"]
    parameters = ", ".join(f"{key} {data[key]}" for key in type(timed.fault.parameters).model_fields)
    return at, timed.fault.kind, timed.fault.target, data["repair"], parameters


def show_replacements(spec: ExperimentSpec, console: Console) -> None:
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
            cells = (replacement.case, job.way, replacement.failed, job.replaced_by, _built_size(plan.spec))
            table.add_row(*cells, *_state_moved(job), str(spec.replacement_repeats))
        size = f"{fabric.domains} domains x {fabric.rails} rails"
        console.print(f"[bold]replacements[/] on {label}, a job on {size}", highlight=False)
        console.print(table, "")


def _built_size(fabric: FabricSpec) -> str:
    optical = fabric.optical
    optical_note = (
        f", switching takes {format_time(optical.switching_time)} in {' and '.join(optical.layers)}" if optical else ""
    )
    return f"{fabric.domains} x {fabric.rails}{optical_note}"


def _state_moved(job: ReplacementJob) -> tuple[str, str]:
    """Bytes, and who gives them."""
    names = [gpu.name for gpu in job.plan.gpus]
    senders = ", ".join(names[src] for src, _ in sorted(job.state.matrix))
    return format_size(max(job.state.matrix.values())), senders


PAIRS: Final = 4
"""Pairs whose paths are shown."""


def show_steering(spec: ExperimentSpec, console: Console) -> None:
    """Print it for each workload on each fabric, with the first seed; nothing if nobody steers.

    Of the scenes of a grid the last, which has most load.
    """
    scenes = len(spec.grid.scenes) if spec.grid else 1
    for label, name, initial in list(initial_states(spec, seeds=1))[scenes - 1 :: scenes]:
        runs = f"{len(initial.routing.policies)} policies in turn"
        runs += f" in each of {scenes} scenes" if spec.grid else ""
        runs += f", seeds {spec.seed} to {spec.seed + spec.repeats - 1}" if spec.repeats > 1 else ""
        console.print(f"[bold]{name}[/] on {label}, replayed by {runs}; here with seed {initial.seed}", highlight=False)
        _print_background(initial, console)
        _print_paths(initial, console)
        console.print()


def _print_background(initial: InitialState, console: Console) -> None:
    """The background, and the scores that should follow from it."""
    for line in [describe_background(item) for item in initial.background] or ["none"]:
        console.print(f"background: {line}", highlight=False)
    scores = initial.scores
    spine = f"; spines {scores.spine}" if initial.plan.uplinks else ""
    summary = f"rails {_score_ranges(scores.rails)}; domains {_score_ranges(scores.domains)}{spine}"
    console.print(f"scores as it begins: {summary}", highlight=False)


def describe_background(item: BackgroundSpec) -> str:
    """`rails 0, 1 at 90%, from 4s on, for 2s, every 8s`."""
    wave = item.wave
    parts = [f"{item.text} at {100 * item.load:.3g}%"]
    parts += [f"from {format_time(wave.first)} on"] if wave.first else []
    parts += [f"for {format_time(wave.lasts)}"] if wave.lasts is not None else []
    parts += [f"every {format_time(wave.every)}"] if wave.every is not None else []
    return ", ".join(parts)


def _score_ranges(scores: Sequence[int]) -> str:
    """(10, 10, 100) -> `0 to 1: 10, 2: 100`."""
    found, at = [], 0
    for score, group in groupby(scores):
        end = at + len(list(group)) - 1
        found.append(f"{at}: {score}" if at == end else f"{at} to {end}: {score}")
        at = end + 1
    return ", ".join(found)


def _print_paths(initial: InitialState, console: Console) -> None:
    """A line a policy: the paths that it gives some pairs by these scores."""
    pairs = [(flow.src, flow.dst) for flow in initial.flows]
    pairs.sort(key=lambda pair: pair[0].rank == pair[1].rank)  # those with more to choose first
    table = Table(box=None, pad_edge=False)
    table.add_column("first paths, by rail")
    for src, dst in pairs[:PAIRS]:
        table.add_column(f"{src.name} to {dst.name}")
    for policy in initial.routing.policies:
        chosen = initial.chosen(policy)
        table.add_row(policy, *(format_shares(chosen[pair]) for pair in pairs[:PAIRS]))
    console.print(table)
    if len(pairs) > PAIRS:
        console.print(f"and {len(pairs) - PAIRS:,} pairs more", highlight=False)


def format_shares(shares: Shares) -> str:
    """`drd 4, 5, 6`; `dr 1, rd 0`."""
    kinds = groupby((share.path for share in shares), key=lambda path: path.kind)
    return ", ".join(f"{kind} {', '.join(str(path.rail) for path in paths)}" for kind, paths in kinds) or NOTHING


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
    if name_or_file not in loading.names() and not trace and is_trace_prefix(name_or_file):
        raise BadInput("NAME", name_or_file, f"begins the names of a trace's files here: write ./{name_or_file}")
    if name_or_file in loading.names() or name_or_file.endswith(_EXPERIMENT) or not trace:
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
            _print_steps(built.schedule, console)
            for note in built.notes:
                console.print(f"note: {note}", highlight=False)
            console.print()
    show_steering(spec, console)
    show_faults(spec, console)
    show_replacements(spec, console)
    return 0


def _print_steps(schedule: Schedule, console: Console) -> None:
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
