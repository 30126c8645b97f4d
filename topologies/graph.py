"""Networks of switches as graphs: what a fabric kind states, its mistakes in one line, and the shortest paths.

A kind lists switches and cables (`Network`). Routes follow from the graph: frames take a shortest path, counted in
switches, and flows are hashed over the next switches of all shortest paths (ECMP). Pure; nothing here knows the kernel.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Final, NamedTuple

from railyard.core.errors import unknown_name_hint
from railyard.topologies.addresses import CORE_DPID, LEAF_DPID, LEAF_UPLINK_PORT, Gpu, SwitchRole, gpu_of_name

if TYPE_CHECKING:
    import networkx as nx

MAX_GRAPH_DOMAINS: Final = 239
"""Ports of GPUs at a switch of a graph are numbered as at the single switch, and end below LEAF_UPLINK_PORT."""
# a datapath id has 12 bits for the number
MAX_SWITCHES: Final = 4096
MAX_UPLINKS: Final = 2048  # ports between switches, of one switch
_SWITCH_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# interfaces are named after switches, some with five characters before the name, and the kernel allows 15
_MAX_NAME: Final = 10
_RESERVED: Final = re.compile(r"(hb|ocs)\d*|d\d+g\d+|lo")
Ends = frozenset[str]  # of a cable: the names of two nodes
NextSwitches = Mapping[str, Mapping[str, tuple[str, ...]]]  # by switch and by target switch


class Size(NamedTuple):
    """Size of a fabric: HB domains, GPUs in each, and the keys `spines` and `oversubscription`."""

    domains: int
    rails: int
    spines: int = 0
    oversubscription: float = 1.0

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, domain by domain."""
        return tuple(Gpu(d, g) for d in range(self.domains) for g in range(self.rails))


class Cable(NamedTuple):
    """A cable between a GPU and a switch, or between two switches.

    `rate`: of each direction, in rates of a rail.
    """

    a: str
    b: str
    rate: float = 1.0


class Network(NamedTuple):
    """The NIC network of a fabric: names of switches, and all cables. HB domains and their cables are implied."""

    switches: tuple[str, ...]
    cables: tuple[Cable, ...]


def network_problems(network: Network, size: Size) -> Iterator[str]:
    """Yield what is wrong with the graph of a fabric of this size: one line each, which names the node or cable."""
    gpus = {gpu.name for gpu in size.gpus}
    yield from _switch_problems(network.switches)
    degrees: dict[str, int] = dict.fromkeys((*network.switches, *gpus), 0)
    pairs = set[Ends]()
    for cable in network.cables:
        ends = frozenset(cable[:2])
        problem = _cable_problem(cable, gpus, degrees)
        if problem:
            yield f"cable {cable.a}-{cable.b} {problem}"
        elif ends in pairs:
            yield f"cable {cable.a}-{cable.b} is listed twice: one cable of a higher rate joins two nodes"
        else:
            degrees[cable.a] += 1
            degrees[cable.b] += 1
        pairs.add(ends)
    for name, degree in degrees.items():
        if not degree:
            yield f"{'GPU' if name in gpus else 'switch'} {name} has no cable"
        elif name in gpus and degree > 1:
            yield f"GPU {name} has {degree} cables: a GPU has one NIC"
        elif degree > MAX_UPLINKS + len(gpus):
            yield f"switch {name} has {degree} cables: {MAX_UPLINKS} to other switches are the most"


def _switch_problems(switches: Collection[str]) -> Iterator[str]:
    if len(switches) > MAX_SWITCHES:
        yield f"it has {len(switches)} switches: {MAX_SWITCHES} are the most"
    names = set[str]()
    for name in switches:
        if not _SWITCH_NAME.fullmatch(name) or len(name) > _MAX_NAME or _RESERVED.fullmatch(name):
            rule = f"a letter, then letters, digits and _, {_MAX_NAME} characters at most"
            reserved = "; lo and names like d0g0, hb0 and ocs0 are taken" if _RESERVED.fullmatch(name) else ""
            yield f"switch {name!r} needs a name like leaf0 or s1: {rule}{reserved}"
        elif name in names:
            yield f"switch {name} is listed twice"
        names.add(name)


def _cable_problem(cable: Cable, gpus: AbstractSet[str], nodes: Collection[str]) -> str:
    for name in cable[:2]:
        if name not in nodes:
            return f"has an unknown node: {name!r} {unknown_name_hint(name, nodes)}"
    if cable.a == cable.b:
        return "joins a node with itself"
    if cable.a in gpus and cable.b in gpus:
        return "joins two GPUs: one end must be a switch"
    if not (isinstance(cable.rate, int | float) and math.isfinite(cable.rate) and cable.rate > 0):
        return f"has the rate {cable.rate!r}: a number above 0 is needed, in rates of a rail"
    if cable.rate != 1 and not gpus.isdisjoint(cable[:2]):
        return f"has the rate {cable.rate!r}, but cables of GPUs have that of a rail, 1"
    return ""


def joining_problem(graph: "FabricGraph", size: Size) -> str:
    """Return which GPUs of a rank the switches don't join; "" if they join each rank."""
    groups: dict[Gpu, int] = {}
    for number, group in enumerate(graph.groups()):
        groups |= dict.fromkeys(group, number)
    for gpu in size.gpus:
        first = Gpu(0, gpu.rank)
        if groups[gpu] != groups[first]:
            return f"no switches join GPU {first.name} with GPU {gpu.name}, which have the same rank"
    return ""


class FabricGraph:
    """A network without mistakes, with ports and datapath ids, and its shortest paths while parts are dead.

    Dead parts are given as names of switches (`dead`), and of cables between switches (`cut`).
    """

    def __init__(self, network: Network) -> None:
        self.switches = network.switches
        self.switch_of: dict[Gpu, str] = {}
        self.uplinks: dict[Ends, float] = {}
        """Cables between two switches, with their rates in rates of a rail."""
        self.ports: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """Ports of each switch that lead to other switches, by their names."""
        names = frozenset(network.switches)
        for a, b, rate in network.cables:
            if a in names and b in names:
                self.uplinks[frozenset((a, b))] = rate
                self.ports[a][b] = LEAF_UPLINK_PORT + len(self.ports[a])
                self.ports[b][a] = LEAF_UPLINK_PORT + len(self.ports[b])
            else:
                gpu, switch = (b, a) if a in names else (a, b)
                self.switch_of[gpu_of_name(gpu)] = switch
        self.leaves = tuple(dict.fromkeys(self.switch_of.values()))
        self._shares: dict[tuple[str, str, frozenset[str], frozenset[Ends]], Mapping[tuple[str, str], float]] = {}
        self._next: dict[tuple[frozenset[str], frozenset[Ends]], NextSwitches] = {}

    @cached_property
    def gpus_at(self) -> Mapping[str, tuple[Gpu, ...]]:
        """GPUs of each switch that has any."""
        by_switch: defaultdict[str, list[Gpu]] = defaultdict(list)
        for gpu, switch in self.switch_of.items():
            by_switch[switch].append(gpu)
        return {switch: tuple(sorted(gpus)) for switch, gpus in by_switch.items()}

    @cached_property
    def dpids(self) -> Mapping[str, int]:
        """Datapath ids by name: a switch with GPUs is a leaf, another one of the core."""
        dpids: dict[str, int] = {}
        for number, name in enumerate(self.switches):
            first = LEAF_DPID if name in self.gpus_at else CORE_DPID
            dpids[name] = first + number
        return dpids

    def role(self, name: str) -> SwitchRole:
        """Return the role of a switch."""
        return "leaf" if name in self.gpus_at else "core"

    def next_switches(self, dead: frozenset[str] = frozenset(), cut: frozenset[Ends] = frozenset()) -> NextSwitches:
        """Return for each living switch the next ones on all shortest paths to each living leaf that it reaches."""
        if (dead, cut) not in self._next:
            if len(self._next) > 64:
                # failures of an hour of random faults need no memory of all
                self._next.clear()
            self._next[dead, cut] = self._compute_next(dead, cut)
        return self._next[dead, cut]

    def _compute_next(self, dead: Collection[str], cut: Collection[Ends]) -> NextSwitches:
        # takes a third of a second to load, and few commands need it
        import networkx as nx

        living = self._living(dead, cut)
        following: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in living}
        for leaf in self.leaves:
            if leaf not in living:
                continue
            hops = nx.single_source_shortest_path_length(living, leaf)
            for name, count in hops.items():
                if name != leaf:
                    nearer = [neighbour for neighbour in living[name] if hops[neighbour] < count]
                    following[name][leaf] = tuple(sorted(nearer, key=self.switches.index))
        return following

    def _living(self, dead: Collection[str], cut: Collection[Ends]) -> "nx.Graph[str]":
        import networkx as nx

        living: nx.Graph[str] = nx.Graph()
        living.add_nodes_from(self.switches)
        living.remove_nodes_from(dead)
        for a, b in self.uplinks:
            if frozenset((a, b)) not in cut and a not in dead and b not in dead:
                living.add_edge(a, b)
        return living

    @cached_property
    def is_hashed(self) -> bool:
        """Return whether any switch hashes flows to a leaf over several next switches."""
        options = chain.from_iterable(by_leaf.values() for by_leaf in self.next_switches().values())
        return any(len(switches) > 1 for switches in options)

    @cached_property
    def has_loops(self) -> bool:
        """Presence of loops among switches. Without any, frames have one path, whatever controller decides."""
        import networkx as nx

        return not nx.is_forest(self._living((), ()))

    def groups(
        self, dead: Collection[str] = frozenset(), cut: Collection[Ends] = frozenset()
    ) -> frozenset[frozenset[Gpu]]:
        """Return the groups of GPUs whose switches are joined; GPUs at dead switches are in none."""
        import networkx as nx

        groups: set[frozenset[Gpu]] = set()
        for component in nx.connected_components(self._living(dead, cut)):
            gpus = chain.from_iterable(self.gpus_at.get(name, ()) for name in component)
            groups.add(frozenset(gpus))
        # a component of core switches alone has no GPUs
        return frozenset(groups - {frozenset()})

    def islands(
        self, dead: Collection[str] = frozenset(), cut: Collection[Ends] = frozenset()
    ) -> frozenset[frozenset[Gpu]]:
        """Return the groups of GPUs that are still joined; empty if these are the groups of the intact graph."""
        groups = self.groups(dead, cut)
        if groups == self._intact_groups:
            return frozenset()
        # without any living GPU the result must still differ from that of the intact graph
        return groups or frozenset({frozenset[Gpu]()})

    @cached_property
    def _intact_groups(self) -> frozenset[frozenset[Gpu]]:
        return self.groups()

    def shares(
        self, src: str, dst: str, dead: frozenset[str] = frozenset(), cut: frozenset[Ends] = frozenset()
    ) -> Mapping[tuple[str, str], float]:
        """Return the share of the traffic between two switches on each uplink, by (from, to), as ECMP splits it."""
        ends = (src, dst, dead, cut)
        if ends not in self._shares:
            self._shares[ends] = self._compute_shares(src, dst, self.next_switches(dead, cut))
        return self._shares[ends]

    def _compute_shares(self, src: str, dst: str, following: NextSwitches) -> Mapping[tuple[str, str], float]:
        shares: defaultdict[tuple[str, str], float] = defaultdict(float)
        arriving: dict[str, float] = {src: 1.0}
        while arriving:
            leaving: defaultdict[str, float] = defaultdict(float)
            for name, share in arriving.items():
                options = following[name].get(dst, ())
                for option in options:
                    shares[name, option] += share / len(options)
                    leaving[option] += share / len(options)
            arriving = leaving
        return shares

    def crosses(self, src: Gpu, dst: Gpu, nodes: Collection[str], cables: Collection[Ends]) -> bool:
        """Return whether a shortest path between two GPUs crosses any of these switches or uplinks."""
        ends = {self.switch_of[src], self.switch_of[dst]}
        if not ends.isdisjoint(nodes):
            return True
        used = self.shares(self.switch_of[src], self.switch_of[dst])
        return any(frozenset(uplink) in cables or not set(uplink).isdisjoint(nodes) for uplink in used)

    @cached_property
    def switches_passed(self) -> float:
        """Mean number of switches between two GPUs of different domains and any ranks."""
        import networkx as nx

        counts = dict(nx.all_pairs_shortest_path_length(self._living((), ())))
        total = 0
        pairs = 0
        for (a, gpus_at_a), (b, gpus_at_b) in product(self.gpus_at.items(), repeat=2):
            count = sum(src.domain != dst.domain for src, dst in product(gpus_at_a, gpus_at_b))
            if count and b in counts[a]:
                total += count * (1 + counts[a][b])
                pairs += count
        return total / pairs
