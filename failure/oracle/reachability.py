"""The oracle: which GPUs of a fabric with dead parts can reach each other, and at what maximum rate.

It knows only the plan's cables and what is dead, nothing of controllers, agents or route tables, so that their reaction
to a fault can be compared with it. Forwarding can do five things (topologies/routing.py): d over the HB domain within
it; between domains r, rd, dr and drd, which cross one rail once; and spine, through the NIC network alone. Longer paths
count for `connected` only. Source of the paths: Rail-only IV-B, Outshift health routing part 2.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Final

import numpy as np
import numpy.typing as npt

from railyard.failure.analysis.recovery_times import STEADY_BINS, Trace
from railyard.failure.faults import Cable, Fault, Impact, cable
from railyard.topologies.addresses import Gpu, Pair
from railyard.topologies.plan import Plan

Matrix = npt.NDArray[np.bool_]  # of all GPUs by all GPUs, in the plan's order: from the row's to the column's


class Survivors:
    """A plan's fabric without its dead parts. ValueError if `dead` names a part that the plan doesn't have."""

    def __init__(self, plan: Plan, dead: Impact) -> None:
        # an optical switch joins what it crosses, and nothing else
        self.plan = plan.electrical
        self.dead = dead
        rates = {cable(link.a.node, link.b.node): link.rate_bps for link in self.plan.links}
        nodes = frozenset(self.plan.namespaces)
        if unknown := dead.nodes - nodes:
            raise ValueError(f"no such nodes in the fabric: {', '.join(sorted(unknown))}")
        if unknown_cables := {*dead.cables, *dead.slowed} - rates.keys():
            raise ValueError(f"no such cables in the fabric: {', '.join(sorted(map(part_name, unknown_cables)))}")
        for slow, rest_bps in dead.slowed.items():
            if not 0 < rest_bps <= rates[slow]:
                raise ValueError(f"{part_name(slow)}: {rest_bps} bit/s must be above 0 and at most {rates[slow]}")
        self.links_bps: dict[str, dict[str, int]] = {node: {} for node in nodes - dead.nodes}  # by both ends
        for ends, rate_bps in rates.items():
            if ends not in dead.cables and not ends & dead.nodes:
                one, other = sorted(ends)
                remaining_bps = min(rate_bps, dead.slowed.get(ends, rate_bps))
                self.links_bps[one][other] = self.links_bps[other][one] = remaining_bps

    @cached_property
    def reachable(self) -> frozenset[Pair]:
        """The ordered pairs of live GPUs that a path of the fabric's own kinds still connects."""
        gpus = self.plan.gpus
        kind = self.plan.spec.definition
        domain, rank = (np.array(numbers) for numbers in zip(*gpus, strict=True))
        two_domains = np.not_equal.outer(domain, domain)
        two_ranks = np.not_equal.outer(rank, rank)

        def both_live(far_ends: Iterable[str]) -> Matrix:
            """Whether the cables of both GPUs to these far ends work."""
            live = [self._joins(gpu.name, far) for gpu, far in zip(gpus, far_ends, strict=True)]
            return np.logical_and.outer(live, live)

        on_plane = [both_live(self.plan.rail_link(gpu, plane).b.node for gpu in gpus) for plane in kind.all_planes]
        hb: Matrix = both_live(f"hb{gpu.domain}" for gpu in gpus) & ~two_domains & two_ranks
        rail: Matrix = np.logical_or.reduce(on_plane) & two_domains & ~two_ranks
        # a factor of `near` is an HB domain crossed, or its diagonal: none. So this is r, rd, dr and drd in one
        near = hb | np.diag([gpu.name in self.links_bps for gpu in gpus])
        if kind.is_graph:
            joined = self._joined_by_switches
            direct = on_plane[0] & joined & two_domains & two_ranks & kind.joins_rails
            return frozenset((gpus[a], gpus[b]) for a, b in np.argwhere(hb | (near @ (rail & joined) @ near) | direct))
        names = [kind.rail_switch(g).name for g in range(self.plan.spec.rails)]  # with several planes: no spines
        spines = [switch.name for switch in self.plan.switches if switch.role == "spine"]
        up = np.array([[self._joins(name, spine) for spine in spines] for name in names], dtype=np.bool_)
        rank_pairs = (up @ up.T) | np.equal.outer(names, names)
        spine: Matrix = on_plane[0] & two_domains & two_ranks & rank_pairs[rank][:, rank]
        return frozenset((gpus[a], gpus[b]) for a, b in np.argwhere(hb | (near @ rail @ near) | spine))

    @property
    def _joined_by_switches(self) -> Matrix:
        """Whether living switches and cables between them join the rail links of two GPUs."""
        import networkx as nx

        switches = self.links_bps.keys() & {switch.name for switch in self.plan.switches}
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(switches)
        graph.add_edges_from((one, other) for one in switches for other in self.links_bps[one].keys() & switches)
        part_of = {name: number for number, part in enumerate(nx.connected_components(graph)) for name in part}
        parts = np.array([part_of.get(self.plan.rail_link(gpu).b.node, -1) for gpu in self.plan.gpus])
        joined: Matrix = np.equal.outer(parts, parts) & (parts >= 0)
        return joined

    @cached_property
    def connected(self) -> frozenset[Pair]:
        """The ordered pairs of live GPUs that any path connects, however long."""
        found = set[str]()
        parts = list[set[str]]()
        for start in self.links_bps:
            if start not in found:
                part = {start}
                waiting = [start]
                while waiting:
                    new = self.links_bps[waiting.pop()].keys() - part
                    part |= new
                    waiting += new
                found |= part
                parts.append(part)
        groups = ([gpu for gpu in self.plan.gpus if gpu.name in part] for part in parts)
        return frozenset((a, b) for group in groups for a in group for b in group if a != b)

    def max_bps(self, src: Gpu, dst: Gpu) -> int:
        """Return the max-flow from `src` to `dst` over all paths at once, with other GPUs forwarding, bit/s.

        An upper bound: a connection takes one path. 0 if no path is left or one of them is dead.
        """
        if (src, dst) not in self.connected:
            return 0
        import networkx as nx  # takes a third of a second to load, and few runs need it
        from networkx.algorithms.flow import shortest_augmenting_path

        graph: nx.DiGraph[str] = nx.DiGraph()
        for one, others in self.links_bps.items():
            graph.add_edges_from((one, other, {"capacity": bps}) for other, bps in others.items())
        # the GPUs' few links are the bottleneck: a handful of shortest paths fills them
        return round(nx.maximum_flow_value(graph, src.name, dst.name, flow_func=shortest_augmenting_path))

    def _joins(self, one: str, other: str) -> bool:
        """Return whether a cable that works joins two nodes that work."""
        return other in self.links_bps.get(one, ())


def part_name(part: str | Cable) -> str:
    """Return the name of a node; of a cable, those of its ends."""
    return part if isinstance(part, str) else "-".join(sorted(part))


@dataclass(frozen=True)
class Bounds:
    """Parts that must work, with all intermittent parts dead (`lower`), and may work, with those alive (`upper`)."""

    lower: Survivors
    upper: Survivors


def bounds(plan: Plan, faults: Collection[Fault]) -> Bounds:
    """Return what concurrent faults leave of the fabric."""
    steady = [fault for fault in faults if not fault.definition.is_intermittent]
    lower, upper = (reduce(or_, (fault.impact(plan) for fault in those), Impact()) for those in (faults, steady))
    survivors = Survivors(plan, lower)
    return Bounds(survivors, survivors if len(steady) == len(faults) else Survivors(plan, upper))


SLACK: Final = 1.05


def above_max_flow(remaining: Survivors, traces: Mapping[Pair, Trace]) -> frozenset[Pair]:
    """Return the pairs whose goodput (bit/s in bins), averaged over `STEADY_BINS`, was above their max-flow.

    Shorter traces are ignored. Max-flow is computed only for a pair that got more than the slowest live cable carries,
    which is a lower bound for any connected pair.
    """
    slowest = min((bps for others in remaining.links_bps.values() for bps in others.values()), default=0)
    found = set[Pair]()
    for pair, trace in traces.items():
        if len(trace) >= STEADY_BINS:
            peak_bps = float(np.convolve(trace, np.ones(STEADY_BINS) / STEADY_BINS, mode="valid").max())
            min_bps = slowest if pair in remaining.connected else 0
            if peak_bps > min_bps * SLACK and peak_bps > remaining.max_bps(*pair) * SLACK:
                found.add(pair)
    return frozenset(found)
