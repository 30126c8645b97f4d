"""The oracle: which GPUs of a fabric with dead parts can reach each other, and at what maximum rate.

It knows only the plan's cables and what is dead, nothing of controllers, agents or route tables, so that their reaction
to a fault can be compared with it.

Forwarding can do five things (topologies/routing.py): d over the HB domain within it; between domains r, rd, dr and
drd, which cross one rail once, with an HB domain at either end or none; and spine, through the NIC network alone. A
longer path may be left where none of these is (over a third domain): `connected` has those too. Source of the paths:
Rail-only IV-B, Outshift health routing part 2.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Final

import networkx as nx
import numpy as np
import numpy.typing as npt
from networkx.algorithms.flow import shortest_augmenting_path

from railyard.failure.analysis.recovery_times import STEADY_BINS, Trace
from railyard.failure.faults import Cable, Fault, Impact, cable
from railyard.failure.scenario.pairs import Pair
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan

Matrix = npt.NDArray[np.bool_]
"""Of all GPUs by all GPUs, in the plan's order: from the row's to the column's."""


class Survivors:
    """A plan's fabric without its dead parts. ValueError if `dead` names a part that the plan doesn't have."""

    def __init__(self, plan: Plan, dead: Impact) -> None:
        self.plan, self.dead = plan.electrical, dead  # an optical switch joins what it crosses, and nothing else
        rates = {cable(link.a.node, link.b.node): link.rate_bps for link in self.plan.links}
        _check(self.plan, dead, rates)
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self.graph.add_nodes_from(_names(self.plan) - dead.nodes)
        for ends, rate_bps in rates.items():
            if ends not in dead.cables and not ends & dead.nodes:
                one, other = sorted(ends)
                remaining_bps = min(rate_bps, dead.slowed.get(ends, rate_bps))
                self.graph.add_edge(one, other, capacity=remaining_bps)
                self.graph.add_edge(other, one, capacity=remaining_bps)

    @cached_property
    def living(self) -> tuple[Gpu, ...]:
        """The live GPUs."""
        return tuple(gpu for gpu in self.plan.gpus if gpu.name in self.graph)

    @cached_property
    def reachable(self) -> frozenset[Pair]:
        """The ordered pairs of live GPUs that a path of the fabric's own kinds still connects."""
        near, rail = self._hb | np.diag([gpu.name in self.graph for gpu in self.plan.gpus]), self._rail
        # a factor of `near` is an HB domain crossed, or its diagonal: none. So this is r, rd, dr and drd in one
        joined: Matrix = self._hb | (near @ rail @ near)
        joined |= self._spine
        gpus = self.plan.gpus
        return frozenset((gpus[a], gpus[b]) for a, b in np.argwhere(joined))

    @cached_property
    def connected(self) -> frozenset[Pair]:
        """The ordered pairs of live GPUs that any path connects, however long."""
        name_to_gpu = {gpu.name: gpu for gpu in self.living}
        parts = nx.weakly_connected_components(self.graph)  # cables work both ways, so weakly is strongly
        groups = [[name_to_gpu[name] for name in part if name in name_to_gpu] for part in parts]
        return frozenset((a, b) for group in groups for a in group for b in group if a != b)

    def max_bps(self, src: Gpu, dst: Gpu) -> int:
        """Return the max-flow from `src` to `dst` over all paths at once, with other GPUs forwarding, bit/s.

        An upper bound: a connection takes one path. 0 if no path is left or one of them is dead.
        """
        if src == dst:
            raise ValueError(f"{src.name} -> {dst.name}: a flow needs two GPUs")
        if not {src, dst} <= set(self.plan.gpus):
            raise ValueError(f"{src.name} -> {dst.name}: not both in a fabric of {len(self.plan.gpus)} GPUs")
        if (src, dst) not in self.connected:
            return 0
        # the GPUs' few links are the bottleneck: a handful of shortest paths fills them
        return round(nx.maximum_flow_value(self.graph, src.name, dst.name, flow_func=shortest_augmenting_path))

    def is_dead(self, part: str | Cable) -> bool:
        """Return whether a node or a cable is named as dead. A live cable at a dead node isn't: frames may enter it."""
        return part in (self.dead.nodes if isinstance(part, str) else self.dead.cables)

    @cached_property
    def _hb(self) -> Matrix:
        """Pairs that are joined by their HB domain."""
        live = [self._has_cable(gpu, f"hb{gpu.domain}") for gpu in self.plan.gpus]
        joined: Matrix = self._outer_and(live) & (self._domain[:, None] == self._domain) & self._off_diagonal
        return joined

    @cached_property
    def _rail(self) -> Matrix:
        """Pairs of one rank in two domains, joined by their rail switch (or the single one)."""
        up = np.logical_or.reduce([self._outer_and(self._nic_up(plane)) for plane in self._planes])
        joined: Matrix = up & (self._rank[:, None] == self._rank) & self._off_diagonal
        return joined

    @cached_property
    def _spine(self) -> Matrix:
        """Pairs in two domains and of two ranks, joined by the NIC network alone."""
        kind = self.plan.spec.definition
        names = [kind.rail_switch(g).name for g in range(self.plan.spec.rails)]  # with several planes: no spines
        spines = [switch.name for switch in self.plan.switches if switch.role == "spine"]
        up = np.array([[self.graph.has_edge(name, spine) for spine in spines] for name in names], dtype=np.bool_)
        rank_pairs = (up @ up.T) | np.equal.outer(names, names)
        two_domains = self._domain[:, None] != self._domain
        two_ranks = self._rank[:, None] != self._rank
        joined: Matrix = (
            self._outer_and(self._nic_up(0)) & two_domains & two_ranks & rank_pairs[self._rank][:, self._rank]
        )
        return joined

    @property
    def _planes(self) -> tuple[int, ...]:
        return self.plan.spec.definition.all_planes

    def _nic_up(self, plane: int) -> list[bool]:
        """Return whether each GPU's rail cable of a plane and the switch at its far end live."""
        return [self._has_cable(gpu, self.plan.rail_link(gpu, plane).b.node) for gpu in self.plan.gpus]

    def _has_cable(self, gpu: Gpu, far: str) -> bool:
        return bool(self.graph.has_edge(gpu.name, far))

    def _outer_and(self, live: list[bool]) -> Matrix:
        return np.logical_and.outer(live, live)

    @cached_property
    def _off_diagonal(self) -> Matrix:
        return ~np.eye(len(self.plan.gpus), dtype=np.bool_)

    @cached_property
    def _domain(self) -> npt.NDArray[np.int_]:
        return np.array([gpu.domain for gpu in self.plan.gpus])

    @cached_property
    def _rank(self) -> npt.NDArray[np.int_]:
        return np.array([gpu.rank for gpu in self.plan.gpus])


def _names(plan: Plan) -> frozenset[str]:
    switches = (switch.name for switch in plan.switches)
    return frozenset([*(gpu.name for gpu in plan.gpus), *plan.hb_bridges, *switches])


def _check(plan: Plan, dead: Impact, rates: Mapping[Cable, int]) -> None:
    unknown = dead.nodes - _names(plan)
    if unknown:
        raise ValueError(f"no such nodes in the fabric: {', '.join(sorted(unknown))}")
    unknown_cables = {c for c in (*dead.cables, *dead.slowed) if c not in rates}
    if unknown_cables:
        raise ValueError(
            f"no such cables in the fabric: {', '.join(sorted('-'.join(sorted(c)) for c in unknown_cables))}"
        )
    for slow, remaining_bps in dead.slowed.items():
        if not 0 < remaining_bps <= rates[slow]:
            raise ValueError(
                f"{'-'.join(sorted(slow))}: {remaining_bps} bit/s must be above 0 and at most {rates[slow]}"
            )


@dataclass(frozen=True)
class Bounds:
    """Parts that must work, with all intermittent parts dead (`lower`), and may work, with those alive (`upper`)."""

    lower: Survivors
    upper: Survivors


def bounds(plan: Plan, faults: Collection[Fault]) -> Bounds:
    """Return what concurrent faults leave of the fabric."""
    lower = Survivors(plan, _union(plan, faults))
    steady = [fault for fault in faults if not fault.definition.is_intermittent]
    return Bounds(lower, lower if len(steady) == len(faults) else Survivors(plan, _union(plan, steady)))


def _union(plan: Plan, faults: Iterable[Fault]) -> Impact:
    return reduce(or_, (fault.impact(plan) for fault in faults), Impact())


SLACK: Final = 1.05


def above_max_flow(remaining: Survivors, traces: Mapping[Pair, Trace]) -> frozenset[Pair]:
    """Return the pairs whose goodput (bit/s in bins), averaged over `STEADY_BINS`, was above their max-flow.

    Shorter traces are ignored. Max-flow is computed only for a pair that got more than the slowest live cable carries,
    which is a lower bound for any connected pair.
    """
    slowest = min((edge["capacity"] for _, _, edge in remaining.graph.edges(data=True)), default=0)
    found = set()
    for pair, trace in traces.items():
        if len(trace) < STEADY_BINS:
            continue
        peak_bps = float(np.convolve(trace, np.ones(STEADY_BINS) / STEADY_BINS, mode="valid").max())
        min_bps = slowest if pair in remaining.connected else 0
        if peak_bps > min_bps * SLACK and peak_bps > remaining.max_bps(*pair) * SLACK:
            found.add(pair)
    return frozenset(found)
