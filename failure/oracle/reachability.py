"""The oracle: which GPUs of a fabric with dead parts can reach each other, and at what maximum rate.

It knows only the plan's cables and what is dead, nothing of controllers, agents or route tables, so that their reaction
to a fault can be compared with it. Forwarding can do five things (topologies/routing.py): d over the HB domain within
it; between domains r, rd, dr and drd, which cross one rail once; and spine, through the NIC network alone. Longer paths
count for `connected` only. Source of the paths: Rail-only IV-B, Outshift health routing part 2.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, permutations
from typing import Final

import numpy as np
import numpy.typing as npt

from railyard.failure.faults import Cable, Fault, Impact, cable
from railyard.failure.recovery_times import STEADY_BINS, Trace
from railyard.topologies.addresses import Gpu, Pair
from railyard.topologies.plan import Plan

Matrix = npt.NDArray[np.bool_]  # of all GPUs by all GPUs, in the plan's order: from the row's to the column's


def _check_parts(dead: Impact, nodes: Set[str], rates: Mapping[Cable, int]) -> None:
    """ValueError for parts that are not among these nodes and cables, or a rate that a cable doesn't have."""
    unknown_nodes = dead.nodes - nodes
    if unknown_nodes:
        raise ValueError(f"no such nodes in the fabric: {', '.join(sorted(unknown_nodes))}")
    unknown_cables = {*dead.cables, *dead.slowed} - rates.keys()
    if unknown_cables:
        raise ValueError(f"no such cables in the fabric: {', '.join(sorted(map(part_name, unknown_cables)))}")
    for slow, remaining_bps in dead.slowed.items():
        if not 0 < remaining_bps <= rates[slow]:
            raise ValueError(f"{part_name(slow)}: {remaining_bps} bit/s must be above 0 and at most {rates[slow]}")


class Survivors:
    """A plan's fabric without its dead parts. ValueError if `dead` names a part that the plan doesn't have."""

    def __init__(self, plan: Plan, dead: Impact) -> None:
        # an optical switch joins what it crosses, and nothing else
        self.plan = plan.electrical
        self.dead = dead
        rates = {cable(link.a.node, link.b.node): link.rate_bps for link in self.plan.links}
        nodes = frozenset(self.plan.namespaces)
        _check_parts(dead, nodes, rates)
        self.links_bps: dict[str, dict[str, int]] = {node: {} for node in nodes - dead.nodes}  # by both ends
        for ends, rate_bps in rates.items():
            if ends not in dead.cables and not ends & dead.nodes:
                near, far = ends
                remaining_bps = min(rate_bps, dead.slowed.get(ends, rate_bps))
                self.links_bps[near][far] = remaining_bps
                self.links_bps[far][near] = remaining_bps

    @cached_property
    def reachable(self) -> frozenset[Pair]:
        """The ordered pairs of live GPUs that a path of the fabric's own kinds still connects."""
        gpus = self.plan.gpus
        kind = self.plan.spec.definition
        domain = np.array([gpu.domain for gpu in gpus])
        rank = np.array([gpu.rank for gpu in gpus])
        rail_number = np.array([self.plan.spec.rail_of(gpu.rank) for gpu in gpus])
        two_domains = np.not_equal.outer(domain, domain)
        two_ranks = np.not_equal.outer(rank, rank)
        two_rails = np.not_equal.outer(rail_number, rail_number)

        on_plane: list[Matrix] = []
        for plane in kind.all_planes:
            on_plane.append(self._both_joined(self._reaches_rail(gpu, plane) for gpu in gpus))
        hb: Matrix = self._both_joined(self._joins(gpu.name, f"hb{gpu.domain}") for gpu in gpus)
        hb = hb & ~two_domains & two_ranks
        rail: Matrix = np.logical_or.reduce(on_plane) & two_domains & ~two_rails
        # A factor `near` crosses an HB domain, or nothing on its diagonal. So the product with GPUs of one rank is r,
        # rd, dr and drd in one. GPUs of two ranks that share a NIC have no drd: a forwarder sends to its own rank.
        is_alive = [gpu.name in self.links_bps for gpu in gpus]
        near = np.diag(is_alive)
        if self.plan.spec.forwards_in_domains:
            near = hb | near
        if kind.is_graph:
            rail = rail & self._joined_by_switches
            joined_rails: Matrix = self._joined_by_switches & kind.joins_rails
        else:
            joined_rails = self._ranks_joined_by_spines[rank][:, rank]
        across_rails: Matrix = on_plane[0] & two_domains & two_rails & joined_rails
        reachable = hb | (near @ (rail & ~two_ranks) @ near) | near @ rail | rail @ near | across_rails
        pairs = frozenset((gpus[a], gpus[b]) for a, b in np.argwhere(reachable))
        if self.plan.spec.forwards_in_domains:
            return pairs
        # the policy may leave pairs without a path though cables join them
        return frozenset(pair for pair in pairs if self.plan.spec.paths(*pair))

    def _reaches_rail(self, gpu: Gpu, plane: int) -> bool:
        """Return whether the cables between a GPU and its rail switch of a plane work."""
        link = self.plan.rail_link(gpu, plane)
        is_at_nic = link.a.node == gpu.name or self._joins(gpu.name, link.a.node)
        return is_at_nic and self._joins(link.a.node, link.b.node)

    def _both_joined(self, joined: Iterable[bool]) -> Matrix:
        """Whether the cables of both GPUs work; `joined`: whether those of each GPU do."""
        live = list(joined)
        both: Matrix = np.logical_and.outer(live, live)
        return both

    @property
    def _ranks_joined_by_spines(self) -> Matrix:
        """Whether two ranks have the same switch, or a spine joins their switches; ranks by ranks."""
        # the first plane's switches: fabrics with several planes have no spines
        switches = [self.plan.spec.rail_switch(rank).name for rank in range(self.plan.spec.rails)]
        spines = self.plan.switches_of("spine")
        uplinks = np.zeros((len(switches), len(spines)), dtype=np.bool_)
        for row, switch in enumerate(switches):
            for column, spine in enumerate(spines):
                uplinks[row, column] = self._joins(switch, spine.name)
        joined: Matrix = (uplinks @ uplinks.T) | np.equal.outer(switches, switches)
        return joined

    @cached_property
    def _joined_by_switches(self) -> Matrix:
        """Whether living switches and cables between them join the rail links of two GPUs."""
        import networkx as nx

        switches = self.links_bps.keys() & self.plan.dpids.keys()
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(switches)
        for switch in switches:
            for neighbour in self.links_bps[switch].keys() & switches:
                graph.add_edge(switch, neighbour)
        island_of: dict[str, int] = {}
        for number, island in enumerate(nx.connected_components(graph)):
            island_of |= dict.fromkeys(island, number)
        # -1: the GPU's switch is dead
        islands = np.array([island_of.get(self.plan.rail_link(gpu).b.node, -1) for gpu in self.plan.gpus])
        joined: Matrix = np.equal.outer(islands, islands) & (islands >= 0)
        return joined

    @cached_property
    def connected(self) -> frozenset[Pair]:
        """The ordered pairs of live GPUs that any path connects, however long, if GPUs forward; else `reachable`."""
        if not self.plan.spec.forwards_in_domains:
            return self.reachable
        visited: set[str] = set()
        pairs: set[Pair] = set()
        for start in self.links_bps:
            if start not in visited:
                component = self._component(start)
                visited |= component
                gpus = [gpu for gpu in self.plan.gpus if gpu.name in component]
                pairs.update(permutations(gpus, 2))
        return frozenset(pairs)

    def _component(self, start: str) -> set[str]:
        """Return all nodes that any path connects with a node, and the node itself."""
        component = {start}
        waiting = [start]
        while waiting:
            new = self.links_bps[waiting.pop()].keys() - component
            component |= new
            waiting += new
        return component

    def max_bps(self, src: Gpu, dst: Gpu) -> int:
        """Return the max-flow from `src` to `dst` over all paths at once, with other GPUs forwarding, bit/s.

        An upper bound: a connection takes one path. 0 if no path is left or one of them is dead.
        """
        if (src, dst) not in self.connected:
            return 0
        # takes a third of a second to load, and few runs need it
        import networkx as nx
        from networkx.algorithms.flow import shortest_augmenting_path

        graph: nx.DiGraph[str] = nx.DiGraph()
        for node, neighbours in self.links_bps.items():
            for neighbour, bps in neighbours.items():
                graph.add_edge(node, neighbour, capacity=bps)
        # the GPUs' few links are the bottleneck: a handful of shortest paths fills them
        return round(nx.maximum_flow_value(graph, src.name, dst.name, flow_func=shortest_augmenting_path))

    def _joins(self, near: str, far: str) -> bool:
        """Return whether a cable that works joins two nodes that work."""
        return far in self.links_bps.get(near, ())


def part_name(part: str | Cable) -> str:
    """Return the name of a node. A cable is called by both of its ends."""
    if isinstance(part, str):
        return part
    return "-".join(sorted(part))


@dataclass(frozen=True)
class Bounds:
    """Parts that must work, with all intermittent parts dead (`lower`), and may work, with those alive (`upper`)."""

    lower: Survivors
    upper: Survivors


def bounds(plan: Plan, faults: Collection[Fault]) -> Bounds:
    """Return what concurrent faults leave of the fabric."""
    all_impacts = Impact()
    steady_impacts = Impact()
    for fault in faults:
        impact = fault.impact(plan)
        all_impacts |= impact
        if not fault.definition.is_intermittent:
            steady_impacts |= impact
    lower = Survivors(plan, all_impacts)
    # without intermittent faults both bounds are the same, and their reachable pairs are computed once
    if not any(fault.definition.is_intermittent for fault in faults):
        return Bounds(lower, lower)
    return Bounds(lower, Survivors(plan, steady_impacts))


SLACK: Final = 1.05


def above_max_flow(remaining: Survivors, traces: Mapping[Pair, Trace]) -> frozenset[Pair]:
    """Return the pairs whose goodput (bit/s in bins), averaged over `STEADY_BINS`, was above their max-flow.

    Shorter traces are ignored. Max-flow is computed only for a pair that got more than the slowest live cable carries,
    which is a lower bound for any connected pair.
    """
    rates_bps = chain.from_iterable(neighbours.values() for neighbours in remaining.links_bps.values())
    slowest_bps = min(rates_bps, default=0)
    too_fast: set[Pair] = set()
    for pair, trace in traces.items():
        if len(trace) >= STEADY_BINS:
            peak_bps = float(np.convolve(trace, np.ones(STEADY_BINS) / STEADY_BINS, mode="valid").max())
            min_bps = slowest_bps if pair in remaining.connected else 0
            if peak_bps > min_bps * SLACK and peak_bps > remaining.max_bps(*pair) * SLACK:
                too_fast.add(pair)
    return frozenset(too_fast)
