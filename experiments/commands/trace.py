"""`trace RUN SRC DST`: a process in a live run's sandbox sends probes and reports the path that each takes."""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console

from railyard.controller.agent.steering import ask
from railyard.core.errors import BadInput, RailyardError, print_error, unknown_name_hint
from railyard.core.host import raise_open_file_limit
from railyard.core.installation import PROJECT, module_command
from railyard.core.terminal import FittingTable
from railyard.core.units import format_time
from railyard.experiments import options
from railyard.experiments.commands import ps
from railyard.experiments.live_run_options import LiveRunName, complete_node
from railyard.topologies.addresses import Gpu, gpu_of_name, is_gpu_name
from railyard.topologies.forwarding import Path, path_name
from railyard.topologies.measure.capture import Capture, Observation, Probe
from railyard.topologies.nics import RailOfRank
from railyard.topologies.plan import Plan, read_active_plan

PURPOSE = "Look into a live run"


@dataclass(frozen=True, slots=True)
class Hop:
    """A node on the path: the interfaces of arrival and departure, and when (monotonic ns).

    The source has no `in_interface`; the destination, and where a packet is lost, no `out_interface`.
    """

    node: str
    in_interface: str | None = None
    out_interface: str | None = None
    in_ns: int | None = None
    out_ns: int | None = None

    @property
    def gpu(self) -> Gpu | None:
        """The GPU; None for a switch, or the bridge of an HB domain."""
        try:
            return gpu_of_name(self.node)
        except ValueError:
            return None

    @property
    def is_bridge(self) -> bool:
        """True for the bridge of an HB domain."""
        return self.node.startswith("hb")

    @property
    def label(self) -> str:
        """Its name for people: `HB domain 1` for the bridge of one."""
        if self.is_bridge:
            return f"HB domain {self.node[2:]}"
        return self.node


@dataclass(frozen=True)
class TracedPath:
    """The nodes that a packet from `src` to `dst` crossed, in order. `nics`: rails of ranks that share NICs."""

    src: Gpu
    dst: Gpu
    hops: tuple[Hop, ...]
    nics: RailOfRank = ()

    @property
    def delivered(self) -> bool:
        """True if the packet reached its destination."""
        return bool(self.hops) and self.hops[-1].node == self.dst.name and self.hops[-1].out_interface is None

    @cached_property
    def kind(self) -> str:
        """A letter a leg between two GPUs: d through an HB domain, r along a rail, s from one rail to another."""
        stops: list[tuple[Hop, Gpu]] = []
        for hop in self.hops:
            if hop.gpu:
                stops.append((hop, hop.gpu))
        legs = ""
        for (hop, gpu), (_, next_gpu) in pairwise(stops):
            if hop.out_interface == "hb0":
                legs += "d"
            elif self._is_one_rail(gpu, next_gpu):
                legs += "r"
            else:
                legs += "s"
        if legs == "s":
            return "spine"
        return legs

    def _is_one_rail(self, a: Gpu, b: Gpu) -> bool:
        return self.nics[a.rank] == self.nics[b.rank] if self.nics else a.rank == b.rank

    @cached_property
    def path(self) -> Path | None:
        """The path that it is; None if the packet was lost, or took a kind of path that no policy knows."""
        if not self.delivered:
            return None
        match self.kind:
            case "d" | "r" | "rd" | "spine" as kind:
                return Path(kind, self.src.rank)
            case "dr" | "drd" as kind:
                relay = next(hop.gpu for hop in self.hops[1:] if hop.gpu)
                return Path(kind, relay.rank)
            case _:
                return None

    @property
    def name(self) -> str:
        """`dr by rail 2`, or where it was lost."""
        if self.delivered:
            if self.path is None:
                return f"{self.kind}, which no policy takes"
            return path_name(self.path, self.nics)
        if not self.hops:
            return f"lost before it left {self.src.name}"
        last = self.hops[-1]
        return f"lost after {last.label}"

    def __str__(self) -> str:
        """`d0g1 -hb0-> d0g2 -rail0-> rail2 -> d1g2`: an HB domain is in its arrow."""
        text = ""
        arrow = ""
        for hop in self.hops:
            if not hop.is_bridge:
                text += f"{arrow}{hop.node}"
                arrow = " -> "
                if hop.gpu:
                    arrow = f" -{hop.out_interface}-> "
        return text


def assemble_path(src: Gpu, dst: Gpu, observations: Iterable[Observation], nics: RailOfRank = ()) -> TracedPath:
    """Return one packet's path: an observed arrival and the departure that follows it at a node are one hop."""
    hops: list[Hop] = []
    for sighting in sorted(observations, key=lambda observation: observation.ns):
        if not sighting.outgoing:
            hops.append(Hop(sighting.node, in_interface=sighting.interface, in_ns=sighting.ns))
        elif hops and hops[-1].node == sighting.node and hops[-1].out_interface is None:
            hops[-1] = replace(hops[-1], out_interface=sighting.interface, out_ns=sighting.ns)
        else:
            hops.append(Hop(sighting.node, out_interface=sighting.interface, out_ns=sighting.ns))
    return TracedPath(src, dst, tuple(hops), nics)


def follows_policy(traced: Sequence[TracedPath], expected: Collection[Path]) -> bool:
    """Return whether every packet took a path of the policy; without such a path, whether none arrived."""
    if not expected:
        return not any(traced_path.delivered for traced_path in traced)
    return all(traced_path.path in expected for traced_path in traced)


def verdict(traced: Sequence[TracedPath], expected: Collection[Path]) -> str:
    """One line: `as the policy says`, or what happened instead. ValueError without a packet."""
    if not traced:
        raise ValueError("a verdict needs packets")
    if follows_policy(traced, expected):
        return "as the policy says"
    deviations: Counter[str] = Counter()
    for traced_path in traced:
        # where the policy has no path, a lost packet is no deviation
        if traced_path.path not in expected and (expected or traced_path.delivered):
            deviations["a detour" if traced_path.delivered else traced_path.name] += 1
    parts: list[str] = []
    for deviation, count in deviations.items():
        if count < len(traced):
            deviation += f" ({count} of {len(traced)})"
        parts.append(deviation)
    return f"{', '.join(parts)}: the policy says {path_choice(expected, traced[0].nics)}"


def path_choice(paths: Collection[Path], nics: RailOfRank = ()) -> str:
    """Return `dr by rail 2 or rd by rail 1`; `no path` for none. `nics`: rails of ranks that share NICs."""
    return " or ".join(path_name(path, nics) for path in paths) or "no path"


# a packet socket's buffer holds this many, captured twice each, with some room left
MAX_PROBES: Final = 64


def command(
    run: LiveRunName,
    src: Annotated[str, typer.Argument(metavar="SRC", help="The GPU that sends: d0g1.", autocompletion=complete_node)],
    dst: Annotated[str, typer.Argument(metavar="DST", help="The GPU to reach.", autocompletion=complete_node)],
    probes: Annotated[
        int, typer.Option(min=1, max=MAX_PROBES, help="How many flows to probe; a hash chooses the spine of each.")
    ] = 8,
) -> int:
    """Show the path that packets take in a live run. Exit status 1 if it isn't the policy's, or packets are lost."""
    chosen, nodes = ps.choose_up(run)
    check_names(src, dst, nodes, chosen.name)
    argv = module_command("railyard.experiments.commands.trace", chosen.name, src, dst, str(probes))
    return ps.run_inside(chosen, argv, {"PYTHONPATH": str(PROJECT)})


def check_names(src: str, dst: str, nodes: Collection[str], run: str) -> None:
    """Raise BadInput unless both are GPUs among the nodes, and different ones."""
    gpus = [node for node in nodes if is_gpu_name(node)]
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
    # an agent steers by paths of its own
    before = ask(src, dst)
    with Capture(plan) as capture:
        sent = capture.probe(src, dst, probes)
    ways = [assemble_path(src, dst, probe.observations, plan.spec.rail_of_rank) for probe in sent]
    chosen = (before or []) + (ask(src, dst) or [])
    expected = list(dict.fromkeys(chosen))
    if not expected:
        expected = [share.path for share in plan.spec.paths(src, dst)]
    spec = plan.spec
    names = path_choice(expected, spec.rail_of_rank)
    by = "its agent chose" if chosen else f"policy {spec.chosen_policy}:"
    fabric = f"{spec.kind}, {spec.size_text}"
    console.print(f"{src.name} -> {dst.name}  {fabric}, {by} {names}", highlight=False)
    print_ways(sent, ways, console)
    console.print(verdict(ways, expected), highlight=False)
    return int(not follows_policy(ways, expected))


def print_ways(sent: Sequence[Probe], ways: Sequence[TracedPath], console: Console) -> None:
    """Print each path that was taken, by how many probes, and its hops with the time since the probe was sent."""
    groups: dict[object, list[tuple[Probe, TracedPath]]] = {}
    for probe, way in zip(sent, ways, strict=True):
        path = tuple((hop.node, hop.in_interface, hop.out_interface) for hop in way.hops)
        groups.setdefault(path, []).append((probe, way))
    for group in sorted(groups.values(), key=len, reverse=True):
        first = group[0][1]
        heading = first.name
        if len(ways) > 1:
            heading = f"{len(group)} of {len(ways)} probes: {heading}"
        if first.hops:
            heading += f"\n  {first}"
        console.print(f"\n{heading}", highlight=False)
        if first.hops:
            console.print(_hops_table(group))
    console.print()


def _hops_table(group: Sequence[tuple[Probe, TracedPath]]) -> FittingTable:
    """Return the hops of probes that took the same path, with the medians of their times."""
    table = FittingTable(box=None, pad_edge=False, padding=(0, 1, 0, 2))
    for column in ("HOP", "IN BY", "AFTER", "OUT BY", "AFTER"):
        table.add_column(column, justify="right" if column == "AFTER" else "left")
    for number, hop in enumerate(group[0][1].hops):
        arrival = _median_text([(probe.sent_ns, way.hops[number].in_ns) for probe, way in group])
        departure = _median_text([(probe.sent_ns, way.hops[number].out_ns) for probe, way in group])
        table.add_row(hop.label, hop.in_interface or "", arrival, hop.out_interface or "", departure)
    return table


def _median_text(times_ns: Sequence[tuple[int, int | None]]) -> str:
    """Return the median time from sending a probe to seeing it at a hop; "" if it was never seen there."""
    durations_ns = [seen_ns - sent_ns for sent_ns, seen_ns in times_ns if seen_ns is not None]
    if not durations_ns:
        return ""
    return format_time(median(durations_ns) / 1e9, 3)


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
