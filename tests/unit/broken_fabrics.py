"""Faults of a fabric, as a graph of its NIC network and as the events that the controller receives."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import networkx as nx

from railyard.controller.failover.detours import Broken, find_disconnected_ranks
from railyard.topologies.addresses import Gpu, role_of
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.fake_switch import cables

UP_AND_DOWN = 4  # cables from GPU to GPU over one spine; no frame goes up twice
Cable = frozenset[str]


@dataclass(frozen=True)
class Fault:
    """What is dead: switches by name, cables of the NIC network by the nodes at their ends."""

    switches: frozenset[str] = frozenset()
    cables: frozenset[Cable] = frozenset()

    def __or__(self, other: "Fault") -> "Fault":
        return Fault(self.switches | other.switches, self.cables | other.cables)


def plan(kind: str, policy: str, domains: int, rails: int, **more: Any) -> Plan:
    data = {"kind": kind, "policy": policy, "domains": domains, "rails": rails, **more}
    return make_plan(parse_fabric(data), 10**8)


def nic_cables(fabric: Plan) -> list[Cable]:
    return [frozenset({link.a.node, link.b.node}) for link in fabric.links if link.kind != "hb"]


def single_faults(fabric: Plan) -> list[Fault]:
    """Yield each fault: a dead switch or a cut cable of the NIC network."""
    switches = [Fault(switches=frozenset({switch.name})) for switch in fabric.switches]
    return switches + [Fault(cables=frozenset({cable})) for cable in nic_cables(fabric)]


def double_faults(fabric: Plan) -> Iterator[Fault]:
    return (a | b for a, b in combinations(single_faults(fabric), 2))


class Truth:
    """What a broken fabric's NIC network still carries, found by graph search."""

    def __init__(self, fabric: Plan, fault: Fault) -> None:
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(gpu.name for gpu in fabric.gpus)
        alive = [cable for cable in nic_cables(fabric) if cable not in fault.cables and not cable & fault.switches]
        graph.add_edges_from((min(cable), max(cable)) for cable in alive)
        self._near = dict(nx.all_pairs_shortest_path_length(graph, cutoff=UP_AND_DOWN))

    def carries(self, a: Gpu, b: Gpu) -> bool:
        """True if a frame from a's rail0 can arrive at b's."""
        return b.name in self._near[a.name]

    def joined(self, fabric: Plan, src: Gpu, dst: Gpu) -> bool:
        """True if the three tables have a way at all: straight, or across one rail with HB domains at either end."""
        rails = range(fabric.spec.rails)
        return self.carries(src, dst) or any(self.carries(Gpu(src.domain, x), Gpu(dst.domain, x)) for x in rails)


def as_reported(fabric: Plan, fault: Fault) -> Broken:
    """The same, as the controller learns of it from its switches."""
    dpids = {switch.name: switch.dpid for switch in fabric.switches}
    away = {dpids[name] for name in fault.switches}
    names = {dpid: name for name, dpid in dpids.items()}
    down = {a for a, b in cables(fabric).items() if frozenset({names[a[0]], names[b[0]]}) in fault.cables}
    links = [gpu for gpu in fabric.gpus if any(gpu.name in cable for cable in fault.cables)]
    return Broken(
        links=frozenset(links),
        rails=frozenset(role_of(dpid)[1] for dpid in away if role_of(dpid)[0] != "spine"),
        disconnected_ranks=find_disconnected_ranks(fabric, {end for end in down if end[0] not in away}, away),
    )
