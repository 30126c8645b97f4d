"""Fabric kinds: which switches a fabric consists of, and which forwarding policies it can use.

Built-in kinds are the modules of topologies/kinds; plugins register theirs the same way. The base class is a fabric of
one switch for each rail, with spines above if the kind has any; a kind overrides what differs. A kind of another shape
gives its switches and cables as a graph (`network`), from which everything else is derived.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import ClassVar, Final, Literal, Protocol, get_args

from railyard.core.config import ConfigModel
from railyard.core.registry import Registry
from railyard.topologies.addresses import MAX_DOMAINS, MAX_RAILS, RAIL_DPID, SPINE_DPID, UPLINK_PORT, SwitchRole
from railyard.topologies.forwarding import FORWARDING_POLICIES
from railyard.topologies.graph import (
    MAX_GRAPH_DOMAINS,
    Cable,
    FabricGraph,
    Network,
    Size,
    joining_problem,
    network_problems,
)

Layer = Literal["rail", "hb"]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)
"""In this order: a layer's place is the number of its optical switch, where one is for all domains."""
LinkClass = Literal["hb", "rail", "uplink", "nic"]
"""`nic`: between a GPU and a NIC that several GPUs share."""
MAX_PLANES: Final = 8


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable: the node, its interface, and its OpenFlow port where the node is a switch."""

    node: str
    interface: str
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A cable, shaped to `rate_bps` (bit/s) in both directions."""

    a: End
    b: End
    kind: LinkClass
    rate_bps: int

    @property
    def name(self) -> str:
        """Name by its ends, as faults of links between switches have it: rail0-spine1."""
        return f"{self.a.node}-{self.b.node}"


@dataclass(frozen=True, slots=True)
class Switch:
    """An OpenFlow switch: rail<g>, spine<i>, switch0 of the single-switch fabric, optical ocs<i>, or one of a graph.

    `index` is its number among those of its role, or in its graph.
    """

    name: str
    role: SwitchRole
    index: int
    dpid: int


class FabricPlan(Protocol):
    """Interface of the plans of all fabrics to builders, counters and fault kinds."""

    @property
    def title(self) -> str:
        """The fabric in words, for messages."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The namespaces where traffic begins and ends."""

    @property
    def addresses(self) -> dict[str, str]:
        """IP address of each host; where it has several, the first."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All namespaces: hosts, then what is in the network."""

    @property
    def switches(self) -> tuple[Switch, ...]:
        """All OpenFlow switches."""

    def switches_of(self, *roles: str) -> tuple[Switch, ...]:
        """Return the switches of these roles."""
        return tuple(switch for switch in self.switches if switch.role in roles)

    @cached_property
    def dpids(self) -> Mapping[str, int]:
        """Datapath ids of all switches, by name."""
        return {switch.name: switch.dpid for switch in self.switches}

    @property
    def links(self) -> tuple[Link, ...]:
        """All cables."""

    @property
    def electrical(self) -> "FabricPlan":
        """The same fabric without its optical switches, if it has any."""
        return self

    @property
    def dilation(self) -> float:
        """Slowdown of time on the fabric."""
        return 1.0

    @property
    def frame_s(self) -> float:
        """Seconds that a rail link takes to send a frame; 0: its threads have to be as punctual as on fast links."""
        return 0.0

    @property
    def control_processes(self) -> tuple[str, ...]:
        """The processes of the control plane that can fail."""
        return ()

    def link_names(self, layer: Layer) -> tuple[str, ...]:
        """Return the names of a layer's links, as faults have them."""

    def link_of(self, name: str, layer: Layer) -> Link:
        """Return a link by its name; `a` is the node's end."""

    def ends_of(self, name: str, layer: Layer) -> tuple[End, End]:
        """Return the ends of a link: at the node, and in its network."""

    @cached_property
    def links_at(self) -> Mapping[str, Sequence[tuple[str, Layer]]]:
        """Names and layers of the links of each node, and of each node of their networks."""
        links_at: defaultdict[str, list[tuple[str, Layer]]] = defaultdict(list)
        for layer in LAYERS:
            for name in self.link_names(layer):
                for end in self.ends_of(name, layer):
                    links_at[end.node].append((name, layer))
        return dict(links_at)


class BaseFabricSpec(ConfigModel):
    """Base of the specifications of all fabrics: `kind`, and the keys that a user writes."""

    kind: str

    @property
    def host_count(self) -> int:
        """Number of GPUs, or of nodes where these have none."""
        raise NotImplementedError

    def label(self) -> str:
        """Return the fabric's name in results."""
        return self.kind

    def traits(self, fabrics: "Sequence[BaseFabricSpec]") -> dict[str, str]:
        """Return what may distinguish it from `fabrics` of the same label, in the order in which a label takes it."""
        return {}


class FabricKind:
    """Base of all fabric kinds."""

    Spec: ClassVar[type[BaseFabricSpec] | None] = None
    """The specification of a kind without HB domains and GPUs; None for FabricSpec (spec.py)."""
    default_policy: ClassVar[str]  # the forwarding policy of a specification that names none
    baseline: ClassVar[str] = ""
    """The kind with which reports compare its times, on a fabric of the same size and rates; "" for none."""
    default_spines: ClassVar[int] = 0
    """How many spines join the rail switches unless the specification says; 0: this kind has none."""
    min_rails: ClassVar[int] = 2
    """How many GPUs an HB domain has at least: with one, nothing crosses HB links."""
    max_domains: ClassVar[int] = MAX_DOMAINS
    max_domains_reason: ClassVar[str] = "the address plan has no more"
    takes_optics: ClassVar[bool] = False  # whether optical switches can stand between its GPUs and its rail switches
    takes_nics: ClassVar[bool] = False  # whether GPUs of a domain can share NICs, and so rails
    tried_sizes: ClassVar[tuple[Size, ...]] = (Size(2, 2, 1), Size(3, 4, 2), Size(4, 3, 2, 2.0))
    """Sizes of which a graph is tried when the kind is registered; `spines` is 0 where `default_spines` is."""
    planes: ClassVar[int] = 1  # how many rail links a GPU has, each to a switch of its own: rail0, rail1, ..

    def rail_switch(self, rank: int, plane: int = 0) -> Switch:
        """Return the switch that the rail links of a rank lead to, in one plane."""
        index = plane * MAX_RAILS + rank
        return Switch(f"rail{rank}p{plane}" if plane else f"rail{rank}", "rail", index, RAIL_DPID + index)

    @property
    def domain_limit(self) -> tuple[int, str]:
        """The most HB domains, and the reason."""
        if self.is_graph and self.max_domains > MAX_GRAPH_DOMAINS:
            return MAX_GRAPH_DOMAINS, "a switch has no more ports"
        return self.max_domains, self.max_domains_reason

    def network(self, size: Size) -> Network | None:
        """Return the switches and cables of a fabric of this size, of a kind that is a graph; None for other kinds."""
        return None

    @property
    def is_graph(self) -> bool:
        """Statement of the kind as a graph."""
        return type(self).network is not FabricKind.network

    def graph(self, size: Size) -> FabricGraph:
        """Return the graph of a fabric of this size, also of a kind of rail switches and spines, in plane 0.

        ValueError with the first mistake of the kind, in one line.
        """
        return _graph(self, size)

    @property
    def joins_rails(self) -> bool:
        """Presence of paths between rails in the NIC network."""
        if self.is_graph:
            return len(self.graph(Size(2, 2, self.default_spines)).groups()) == 1
        return bool(self.default_spines) or self.rail_switch(0) == self.rail_switch(1)

    @property
    def policies(self) -> tuple[str, ...]:
        """The forwarding policies that this kind can use, the default first."""
        joins_rails = self.joins_rails
        names = [self.default_policy]
        for name, policy in FORWARDING_POLICIES.items():
            # switches of a graph know no numbered uplinks
            if policy.fits(joins_rails) and not (self.is_graph and policy.assigns_uplinks):
                names.append(name)
        return tuple(dict.fromkeys(names))

    def rail_switches(self, rails: int) -> tuple[Switch, ...]:
        """Return the switches of all rails, each once."""
        places = product(self.all_planes, range(rails))
        return tuple(dict.fromkeys(self.rail_switch(rank, plane) for plane, rank in places))

    @property
    def all_planes(self) -> tuple[int, ...]:
        """The numbers of all planes."""
        return tuple(range(self.planes))

    def carrying(self, living: tuple[int, ...]) -> tuple[int, ...]:
        """Return which of the living planes carry a rail's traffic. They share its rate, and flows are hashed over
        them: all planes here; a kind with standby links returns fewer.
        """
        return living

    def spines(self, count: int) -> tuple[Switch, ...]:
        """Return the spines."""
        return tuple(Switch(f"spine{i}", "spine", i, SPINE_DPID + i) for i in range(count))

    def uplinks(self, rails: int, spines: int, rate_bps: int) -> tuple[Link, ...]:
        """Return the cables between rail switches and spines."""
        links: list[Link] = []
        for spine, rail in product(range(spines), range(rails)):
            near = End(f"rail{rail}", f"spine{spine}", UPLINK_PORT + spine)
            far = End(f"spine{spine}", f"rail{rail}", rail + 1)
            links.append(Link(near, far, "uplink", rate_bps))
        return tuple(links)


@lru_cache(maxsize=64)
def _graph(kind: FabricKind, size: Size) -> FabricGraph:
    network = kind.network(size)
    if not kind.is_graph:
        cables = [Cable(gpu.name, kind.rail_switch(gpu.rank).name) for gpu in size.gpus]
        cables += [Cable(link.a.node, link.b.node) for link in kind.uplinks(size.rails, size.spines, 1)]
        switches = (*kind.rail_switches(size.rails), *kind.spines(size.spines))
        return FabricGraph(Network(tuple(switch.name for switch in switches), tuple(cables)))
    if not isinstance(network, Network):
        raise ValueError(f"network({size}) must return a Network, not {network!r}")
    for problem in network_problems(network, size):
        raise ValueError(problem)
    graph = FabricGraph(network)
    problem = joining_problem(graph, size)
    if problem:
        raise ValueError(problem)
    return graph


def _graph_problem(kind: FabricKind) -> str:
    """Return the first mistake in the graphs of some sizes; "" if there is none."""
    if kind.planes > 1 or kind.takes_optics:
        return "a kind with a network can have neither several planes nor optical switches"
    for size in kind.tried_sizes:
        tried = size._replace(spines=size.spines if kind.default_spines else 0)
        where = f"network of {size.domains} domains x {size.rails} rails"
        try:
            kind.graph(tried)
        except ValueError as error:
            return f"{where}: {error}"
        except Exception as error:
            return f"{where}: {type(error).__name__}: {error}"
    return ""


def _problems(name: str, kind: FabricKind) -> Iterator[str]:
    if kind.Spec is not None or not hasattr(kind, "default_policy"):
        # the rest is asked of fabrics of GPUs alone
        return
    if kind.is_graph and (problem := _graph_problem(kind)):
        yield problem
        return
    policy = kind.default_policy
    if policy not in FORWARDING_POLICIES:
        yield f"its default_policy {policy!r} is no forwarding policy: {', '.join(FORWARDING_POLICIES)}"
    elif not FORWARDING_POLICIES[policy].fits(kind.joins_rails):
        yield f"its default_policy {policy!r} does not fit it"
    if not 1 <= kind.planes <= MAX_PLANES:
        yield f"its planes must be 1 to {MAX_PLANES}, not {kind.planes}"
    elif kind.is_graph:
        return
    elif kind.planes > 1 and (kind.default_spines or kind.takes_optics):
        yield "with several planes it can have neither spines nor optical switches"
    elif len({kind.rail_switch(0, plane) for plane in kind.all_planes}) < kind.planes:
        yield "each plane of a rail needs a switch of its own"


FABRIC_KINDS: Final = Registry[FabricKind](
    "fabric kind", "railyard.topologies.kinds", FabricKind, ["default_policy"], _problems
)
