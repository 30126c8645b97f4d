"""`trace RUN SRC DST`: a process in a live run's sandbox sends probes and reports the path that each takes."""

import sys
from collections.abc import Collection, Sequence
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from railyard.controller.agent.path_trace import TracedPath, assemble_path, follows_policy, verdict
from railyard.controller.agent.steering import ask
from railyard.core.errors import BadInput, RailyardError, print_error, unknown_name_hint
from railyard.core.host import PROJECT, raise_open_file_limit
from railyard.core.units import format_time
from railyard.experiments.commands import options, ps
from railyard.experiments.commands.options import LiveRunName
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.forwarding import path_name
from railyard.topologies.measure.capture import Capture, Probe
from railyard.topologies.plan import Plan, read_active_plan

MAX_PROBES: Final = 64  # a packet socket's buffer holds this many, captured twice each, with some room left


def command(
    run: LiveRunName,
    src: Annotated[str, typer.Argument(metavar="SRC", help="The GPU that sends: d0g1.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="The GPU to reach.")],
    probes: Annotated[int, typer.Option(min=1, max=MAX_PROBES, help="How many flows to probe; spines share them.")] = 8,
) -> int:
    """Show the path that packets take in a live run. Exit status 1 if it isn't the policy's, or packets are lost."""
    chosen, nodes = ps.choose_up(run)
    check_names(src, dst, nodes, chosen.name)
    argv = [sys.executable, "-m", "railyard.experiments.commands.trace", chosen.name, src, dst, str(probes)]
    return ps.run_inside(chosen, argv, {"PYTHONPATH": str(PROJECT)})


def check_names(src: str, dst: str, nodes: Collection[str], run: str) -> None:
    """Raise BadInput unless both are GPUs among the nodes, and different ones."""
    gpus = [node for node in nodes if node.startswith("d")]
    if not gpus:
        raise BadInput("RUN", run, "has no GPUs to trace between: on a multi-rail fabric, every rail is one switch")
    for field, name in (("SRC", src), ("DST", dst)):
        if name not in gpus:
            raise BadInput(field, name, unknown_name_hint(name, gpus).replace("known", f"a GPU of {run}", 1))
    if src == dst:
        raise BadInput("DST", dst, "must be another GPU than SRC")


def show(plan: Plan, src: Gpu, dst: Gpu, probes: int, console: Console) -> int:
    """Trace, print, and return the exit status: 0 if all went as the policy says, else 1.

    An agent may change its paths while probes wait in queues: those before and after the probes both count.
    """
    before = ask(src, dst)  # the paths of the agent, if there is one
    with Capture(plan) as capture:
        sent = capture.probe(src, dst, probes)
    ways = [assemble_path(src, dst, probe.observations) for probe in sent]
    chosen = [paths for paths in (before, ask(src, dst)) if paths]
    expected = list(dict.fromkeys(path for paths in chosen for path in paths))
    expected = expected or [share.path for share in plan.spec.paths(src, dst)]
    spec, names = plan.spec, " or ".join(map(path_name, expected))
    by = "its agent chose" if chosen else f"policy {spec.chosen_policy}:"
    fabric = f"{spec.kind}, {spec.domains} domains x {spec.rails} rails"
    console.print(f"{src.name} -> {dst.name}  {fabric}, {by} {names}", highlight=False)
    print_ways(sent, ways, console)
    console.print(verdict(ways, expected), highlight=False)
    return 0 if follows_policy(ways, expected) else 1


def print_ways(sent: Sequence[Probe], ways: Sequence[TracedPath], console: Console) -> None:
    """Print each path that was taken, by how many probes, and its hops with the time since the probe was sent."""
    groups: dict[object, list[tuple[Probe, TracedPath]]] = {}
    for probe, way in zip(sent, ways, strict=True):
        groups.setdefault(way.signature, []).append((probe, way))
    for group in sorted(groups.values(), key=len, reverse=True):
        first = group[0][1]
        count = f"{len(group)} of {len(ways)} probes: " if len(ways) > 1 else ""
        console.print(f"\n{count}{first.name}" + (f"\n  {first}" if first.hops else ""), highlight=False)
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 2))
        for column in ("HOP", "IN BY", "AFTER", "OUT BY", "AFTER"):
            table.add_column(column, justify="right" if column == "AFTER" else "left")
        for n, hop in enumerate(first.hops):
            after = []  # arrival and departure: medians over the probes with this path, empty if none was observed
            for moment in ("in_ns", "out_ns"):
                times = [(getattr(way.hops[n], moment), probe.sent_ns) for probe, way in group]
                taken = [at - sent for at, sent in times if at is not None]
                after.append(format_time(median(taken) / 1e9, 3) if taken else "")
            label = f"HB domain {hop.node[2:]}" if hop.is_bridge else hop.node
            table.add_row(label, hop.in_interface or "", after[0], hop.out_interface or "", after[1])
        if first.hops:
            console.print(table)
    console.print()


def main(arguments: Sequence[str]) -> int:
    """Trace in the sandbox: RUN SRC DST PROBES, which were checked outside."""
    run, src, dst, probes = arguments
    plan = read_active_plan()
    if plan is None:
        raise BadInput("RUN", run, ps.NO_FABRIC)
    raise_open_file_limit()
    try:
        return show(plan, gpu_of_name(src), gpu_of_name(dst), int(probes), options.console())
    except OSError as error:
        raise RailyardError(f"the fabric went away: {error}") from error


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RailyardError as error:
        sys.exit(print_error(str(error), error.exit_status))
