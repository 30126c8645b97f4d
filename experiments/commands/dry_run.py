"""Print what an experiment or a trace would send, its faults and first routes: the command `dry-run`."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.memory import keep_freed_memory
from railyard.core.units import format_size, format_time
from railyard.experiments import options
from railyard.experiments.measures.definition import measures_of
from railyard.experiments.options import (
    Overrides,
    PluginFiles,
    Topo,
    completion,
    experiment_of,
    plain_table,
    shows_progress,
)
from railyard.experiments.predict.steered_times import initial_states
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.experiments.spec.scripts import ScriptSpec, fault_dict
from railyard.failure.analysis.evaluate import AFTER_S
from railyard.results.format import NOTHING
from railyard.topologies import from_mininet
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares
from railyard.topologies.spec import FabricSpec
from railyard.topologies.topology_kind import TopologyKind
from railyard.workloads.background.spec import BackgroundSpec
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, cross_rail_bytes
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import build
from railyard.workloads.traces.common import is_trace_prefix

PURPOSE = "Compute and check, without packets"
LARGEST: Final = 8
GROUPS_SHOWN: Final = 2
GPUS_SHOWN: Final = 4
PAIRS_SHOWN: Final = 4


@shows_progress
def command(
    overrides: Overrides,
    plugin_files: PluginFiles,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME|FILE|TRACE]",
            show_default=False,
            help="An experiment; or a trace of Chakra, PARAM or SimAI: a file, or a folder with a file per rank.",
            autocompletion=completion(loading.names),
        ),
    ] = "",
    topo: Topo = "",
) -> int:
    """Print what would be sent, by which GPUs and over which links, without sending it. Needs no root."""
    keep_freed_memory()
    spec = experiment(experiment_of(name, topo), overrides, topo)
    if not (spec.workloads or spec.fault_runs or measures_of(spec)):
        raise BadInput("NAME", spec.name, "has no workloads and no faults: what it does depends on time")
    console = options.console()
    spec.family.dry_run(spec, console)
    for measure in measures_of(spec):
        measure.dry_run(spec, console)
    return 0


def experiment(name_or_file: str, overrides: Iterable[str], topo: str = "") -> ExperimentSpec:
    """Return an experiment; for a trace, one that replays its bytes unscaled on the default rail-only fabric.

    BadInput as for `run`. Overrides may change the fabric, and scale the trace.
    """
    is_file_or_folder = os.path.exists(name_or_file)  # noqa: PTH110 - no error if it is too long
    trace = "/" in name_or_file or is_file_or_folder or Path(name_or_file).suffix in (".et", ".json", ".txt")
    if name_or_file not in loading.names() and not trace and is_trace_prefix(name_or_file):
        raise BadInput("NAME", name_or_file, f"begins the names of a trace's files here: write ./{name_or_file}")
    if name_or_file in loading.names() or name_or_file.endswith((".yaml", ".yml")) or not trace:
        return loading.load_any(name_or_file, overrides, topo=topo)
    workload = {"kind": "trace", "path": name_or_file}
    fabric = from_mininet.load(topo) if topo else {"kind": "rail-only"}
    data: dict[str, Any] = {"name": "dry-run", "fabrics": [fabric], "workloads": [workload]}
    data = loading.apply(data, overrides)
    replayed = data["workloads"][0]
    if isinstance(replayed, dict) and not {"duration", "bytes_factor"} & set(replayed):
        replayed["bytes_factor"] = 1.0
    return parse(data)


def _print_topologies(spec: ExperimentSpec, console: Console) -> None:
    """Print for each fabric made of a Mininet topology which GPU is which host, and the ports of its switches."""
    for fabric in spec.gpu_fabrics:
        if not isinstance(fabric.definition, TopologyKind):
            continue
        plan = nominal_plan(fabric)
        hosts = plain_table("host", "GPU", "address", "switch", "port", right=("port",))
        for host, gpu in zip(fabric.definition.hosts, plan.gpus, strict=True):
            end = plan.network_end(gpu, "rail")
            hosts.add_row(host, gpu.name, gpu.ip, end.node, str(end.port))
        console.print(f"[bold]hosts[/] of {fabric.kind}", highlight=False)
        console.print(hosts, "")
        switches = plain_table("switch", "datapath id", "ports to other switches")
        for switch in plan.switches:
            ports = [f"{name} {port}" for name, port in plan.graph.ports[switch.name].items()]
            switches.add_row(switch.name, f"{switch.dpid:#x}", ", ".join(ports))
        console.print(f"[bold]switches[/] of {fabric.kind}", highlight=False)
        console.print(switches, "")


def print_all(spec: ExperimentSpec, console: Console) -> None:
    """Print each workload on each fabric of GPUs, the first routes, and faults."""
    _print_topologies(spec, console)
    for label, fabric in zip(spec.labels, spec.gpu_fabrics, strict=True):
        plan = nominal_plan(fabric)
        for i, (name, workload) in enumerate(zip(spec.workload_labels, spec.workloads, strict=True)):
            built = build(workload, fabric, plan.rail_bps, plan.hb_bps, f"workloads.{i}", spec.seed)
            factor = f"bytes times {built.scale.bytes_factor:.4g}"
            if built.scale.compute_kept < 1:
                factor += f", computing: {100 * built.scale.compute_kept:.3g}% kept"
            console.print(f"[bold]{name}[/] on {label}, {_size(fabric)}: {factor}", highlight=False)
            _print_schedule(built.schedule, console)
            for note in built.notes:
                console.print(f"note: {note}", highlight=False)
            console.print()
    _print_routing(spec, console)
    _print_faults(spec, console)


def _size(fabric: FabricSpec) -> str:
    return f"{fabric.domains} domains x {fabric.rails} rails"


class Step(NamedTuple):
    """All runs of one step. `groups`: the sets of GPUs that took part in a run, each once, in order."""

    name: str
    kind: str
    runs: int
    transfers: int
    bytes: int
    rail_bytes: int
    groups: tuple[tuple[int, ...], ...]


def steps(schedule: Schedule) -> list[Step]:
    """Return every step by its name, in the order of first runs; steps that send nothing are left out."""
    columns = schedule.columns
    transfers = np.flatnonzero(~columns.is_compute)
    transfers = transfers[np.argsort(columns.phase[transfers], kind="stable")]
    phases, first = np.unique(columns.phase[transfers], return_index=True)
    runs: defaultdict[tuple[str, str], list[npt.NDArray[np.int64]]] = defaultdict(list)
    for number, run in zip(phases.tolist(), np.split(transfers, first[1:]), strict=True):
        runs[schedule.phases[number].name, schedule.phases[number].kind].append(run)
    found = []
    for (name, kind), own in runs.items():
        sent = np.concatenate(own)
        groups = list[tuple[int, ...]]()
        for run in own:
            takes_part = np.zeros(schedule.gpus, dtype=bool)
            takes_part[columns.src[run]] = takes_part[columns.dst[run]] = True
            groups.append(tuple(np.flatnonzero(takes_part).tolist()))
        crosses = columns.src[sent] // schedule.rails != columns.dst[sent] // schedule.rails
        sizes = int(columns.bytes[sent].sum()), int(columns.bytes[sent][crosses].sum())
        found.append(Step(name, kind, len(own), len(sent), *sizes, tuple(dict.fromkeys(groups))))
    return found


def _print_schedule(schedule: Schedule, console: Console) -> None:
    numbers = ("runs", "transfers", "bytes", "over rails")
    table = plain_table("step", "kind", "runs", "GPUs", *numbers[1:], right=numbers)
    names = [Gpu(*divmod(n, schedule.rails)).name for n in range(schedule.gpus)]
    for step in steps(schedule):
        sizes = (format_size(step.bytes), format_size(step.rail_bytes) if step.rail_bytes else "-")
        groups = [
            " ".join(names[n] for n in group)
            if len(group) <= GPUS_SHOWN
            else f"{names[group[0]]} ... {names[group[-1]]} ({len(group)})"
            for group in step.groups[:GROUPS_SHOWN]
        ]
        groups += [f"{len(step.groups) - GROUPS_SHOWN} more"] if len(step.groups) > GROUPS_SHOWN else []
        table.add_row(step.name, step.kind, f"{step.runs:,}", " | ".join(groups), f"{step.transfers:,}", *sizes)
    console.print(table)
    kinds = ", ".join(f"{kind} {format_size(size)}" for kind, size in bytes_by_kind(schedule).items())
    total = sum(schedule.matrix.values())
    crossing = cross_rail_bytes(schedule)
    share = f"{format_size(crossing)} ({100 * crossing / total:.3g}%)" if crossing else "none"
    console.print(f"total {format_size(total)}: {kinds}; crossing rails: {share}", highlight=False)
    columns = schedule.columns
    seconds = np.bincount(columns.src[columns.is_compute], columns.seconds[columns.is_compute])
    computing = f"{format_time(float(seconds.max()))} at the busiest GPU" if len(seconds) else "none"
    console.print(f"computing: {computing}", highlight=False)
    largest = sorted(schedule.matrix.items(), key=lambda item: (-item[1], item[0]))[:LARGEST]
    pairs = ", ".join(f"{names[src]} to {names[dst]} {format_size(size)}" for (src, dst), size in largest)
    console.print(f"largest of {len(schedule.matrix):,} pairs: {pairs}", highlight=False)


def _print_routing(spec: ExperimentSpec, console: Console) -> None:
    """Print for each workload on each fabric its background, its scores and each policy's first paths.

    With the first seed; of the scenes of a grid the last, which has most load. Nothing without health routing.
    """
    scenes = len(spec.grid.scenes) if spec.grid else 1
    for label, name, initial in list(initial_states(spec, seeds=1))[scenes - 1 :: scenes]:
        runs = f"{len(initial.routing.policies)} policies in turn"
        runs += f" in each of {scenes} scenes" if spec.grid else ""
        runs += f", seeds {spec.seed} to {spec.seed + spec.repeats - 1}" if spec.repeats > 1 else ""
        console.print(f"[bold]{name}[/] on {label}, replayed by {runs}; here with seed {initial.seed}", highlight=False)
        for line in [describe_background(item) for item in initial.background] or ["none"]:
            console.print(f"background: {line}", highlight=False)
        scores = initial.scores
        spine = f"; spines {scores.spine}" if initial.plan.uplinks else ""
        summary = f"rails {_score_ranges(scores.rails)}; domains {_score_ranges(scores.domains)}{spine}"
        console.print(f"scores as it begins: {summary}", highlight=False)
        pairs = [(flow.src, flow.dst) for flow in initial.flows]
        pairs.sort(key=lambda pair: pair[0].rank == pair[1].rank)  # pairs with more paths to choose from first
        shown = pairs[:PAIRS_SHOWN]
        table = plain_table("first paths, by rail", *(f"{src.name} to {dst.name}" for src, dst in shown))
        for policy in initial.routing.policies:
            chosen = initial.chosen(policy, shown)
            table.add_row(policy, *(format_shares(chosen[pair]) for pair in shown))
        console.print(table)
        if len(pairs) > PAIRS_SHOWN:
            console.print(f"and {len(pairs) - PAIRS_SHOWN:,} pairs more", highlight=False)
        console.print()


def describe_background(item: BackgroundSpec) -> str:
    """Return a background as text: `rails 0, 1 at 90%, from 4s on, for 2s, every 8s`."""
    wave = item.wave
    parts = [f"{item.text} at {100 * item.load:.3g}%"]
    parts += [f"from {format_time(wave.first)} on"] if wave.first else []
    parts += [f"for {format_time(wave.lasts)}"] if wave.lasts is not None else []
    parts += [f"every {format_time(wave.every)}"] if wave.every is not None else []
    return ", ".join(parts)


def _score_ranges(scores: Sequence[int]) -> str:
    """Return equal neighbours as one range: (10, 10, 100) -> `0 to 1: 10, 2: 100`."""
    found = []
    at = 0
    for score, group in groupby(scores):
        end = at + len(list(group)) - 1
        found.append(f"{at}: {score}" if at == end else f"{at} to {end}: {score}")
        at = end + 1
    return ", ".join(found)


def format_shares(shares: Shares) -> str:
    """Return the paths of a pair as text: `drd 4, 5, 6`; `dr 1, rd 0`."""
    kinds = groupby((share.path for share in shares), key=lambda path: path.kind)
    return ", ".join(f"{kind} {', '.join(str(path.rail) for path in paths)}" for kind, paths in kinds) or NOTHING


def _print_faults(spec: ExperimentSpec, console: Console) -> None:
    """Print a table of faults and scripts for each fabric that has any, and the least time that all of them take."""
    for number, (label, fabric) in enumerate(zip(spec.labels, spec.gpu_fabrics, strict=True)):
        if not spec.scripts_on(number):
            continue
        table = plain_table("script", "at", "fault", "target", "for", "", "times", right=("at", "for", "times"))
        for script in spec.scripts_on(number):
            drawn = script.script(nominal_plan(fabric), spec.seed)
            title = drawn.name + (f" during {script.during}" if script.during else "")
            times = str(spec.times(script))
            if isinstance(script, ScriptSpec):
                table.add_section()
                title += f" (seed {spec.seed})" if script.random_faults else ""
            for timed in drawn.faults:
                data = fault_dict(timed)
                at = f"{timed.after} + {data['at']}" if timed.after else data["at"]
                parameters = ", ".join(f"{key} {data[key]}" for key in type(timed.fault.parameters).model_fields)
                table.add_row(title, at, data["kind"], data["target"], data["repair"], parameters, times)
                title = times = ""  # once for each script
        console.print(f"[bold]faults[/] on {label}, {_size(fabric)}", highlight=False)
        console.print(table, "")
    if spec.fault_runs:
        counts = ((spec.injections, "injection"), (spec.fault_runs, "run"))
        total = " in ".join(f"{n:,} {what}{'' if n == 1 else 's'}" for n, what in counts)
        least = format_time(round(min_duration_s(spec)))
        console.print(f"{total}, reroute {' and '.join(spec.reroute)}: {least} or more", highlight=False)


def min_duration_s(spec: ExperimentSpec) -> float:
    """Return the seconds from the first traffic to the last of each run, added up; building comes on top.

    A fault that waits for a phase counts from that phase on.
    """
    total = 0.0
    for number, plan in enumerate(map(nominal_plan, spec.gpu_fabrics)):
        for script in spec.scripts_on(number):
            for repeat in range(spec.times(script)):
                faults = script.script(plan, spec.seed + repeat).faults
                total += max(timed.at_s + timed.repair_s for timed in faults) + AFTER_S
    return total * len(spec.reroute)
