"""Mininet topologies as fabric kinds: `--topo FILE:CLASS[,ARGUMENT...]`.

The class is called once, and what it builds becomes the source of a plugin: a list of hosts, switches and cables. Child
processes and the run's folder get that source, so that all of them have the same graph, also of a random topology, and
nothing but this module needs Mininet or the user's file.

A link's `bw` (Mbit/s) becomes a rate: hosts' links have one rate, that of a rail, and links between switches any. Links
without `bw` have the highest rate of the others; if no link has any, the machine decides (`rail_rate: auto`).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from railyard.core import plugins
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.safe_files import read_input, real_path
from railyard.topologies.addresses import is_gpu_name
from railyard.topologies.build.mininet_import import without_setuptools
from railyard.topologies.graph import MAX_GRAPH_DOMAINS, Cable, FabricGraph, Size, network_problems
from railyard.topologies.topology_kind import network_of

FIELD: Final = "--topo"
NOT_EMULATED: Final = ("delay", "jitter", "loss")
"""Parameters of Mininet's TCLink that change results, and that cables of a fabric don't have."""
MAX_MBPS: Final = 1_000_000
MakeTopo = Callable[..., Any]  # a subclass of Mininet's Topo, or a function that returns one


class TopoLink(NamedTuple):
    """A link of a Topo: the names of its ends, and its parameters."""

    a: str
    b: str
    parameters: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.a}-{self.b}"

    @property
    def mbps(self) -> float | None:
        """Its rate, Mbit/s; None if it states none."""
        return self.parameters.get("bw")


class Topology(NamedTuple):
    """A topology as a fabric kind has it.

    `rail_mbps`: rate of the hosts' links; None: the machine decides.
    """

    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]
    rail_mbps: float | None


def load(text: str) -> dict[str, Any]:
    """Register the topology that `--topo` names, and return a fabric of it, as an experiment has it.

    BadInput names the file, and the line at fault where the file or the class raises.
    """
    file, _, call = text.rpartition(":")
    name, _, arguments = call.partition(",")
    path = real_path(Path(file))
    if path.suffix != ".py" or not name:
        raise BadInput(FIELD, text, "must be a Python file and a class in it, such as tree.py:Tree or tree.py:Tree,3")
    source = read_input(path, FIELD, plugins.MAX_BYTES, file)
    plugins.search_in(path.parent)
    with without_setuptools():
        from mininet.topo import Topo

        module = plugins.execute(path, source, FIELD, file)
    make_topo = _chosen(module, name, Topo, text)
    hosts, switches, links = _built(make_topo, arguments, path, text)
    try:
        topology = convert(hosts, switches, links)
        plugins.add(f"{name}.py", source_of(name, topology, text))
    except ValueError as error:
        raise BadInput(FIELD, text, str(error)) from error
    fabric: dict[str, Any] = {"kind": name, "domains": len(hosts), "rails": 1}
    if topology.rail_mbps is not None:
        fabric["rail_rate"] = f"{topology.rail_mbps:.9g}Mbit"
    return fabric


def _chosen(module: ModuleType, name: str, topo_class: type, text: str) -> MakeTopo:
    """Return the class of this name, or the entry of the file's `topos`, which `mn --custom` uses."""
    choices: dict[str, MakeTopo] = {}
    for key, value in vars(module).items():
        # the file imports Topo itself, which is no topology
        if isinstance(value, type) and issubclass(value, topo_class) and value is not topo_class:
            choices[key] = value
    topos = getattr(module, "topos", None)
    if isinstance(topos, dict):
        for key, make in topos.items():
            if isinstance(key, str) and key.isidentifier():
                choices[key] = make
    if name in choices:
        return choices[name]
    if hasattr(module, name):
        raise BadInput(FIELD, text, f"{name} is no subclass of Topo")
    if not choices:
        raise BadInput(FIELD, text, "the file has no subclass of Topo")
    raise BadInput(FIELD, text, f"{name} {unknown_name_hint(name, choices)}")


def _built(make_topo: MakeTopo, arguments: str, path: Path, text: str) -> tuple[list[str], list[str], list[TopoLink]]:
    """Return hosts, switches and links of what a class builds with these arguments."""
    from mininet.topo import Topo
    from mininet.util import splitArgs

    _, positional, named = splitArgs(f"topology,{arguments}" if arguments else "topology")
    try:
        topo = make_topo(*positional, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # whatever the class raises, also what would end the program
        raise BadInput(FIELD, text, f"can't be built: {plugins.error_line(error, path)}") from error
    if not isinstance(topo, Topo):
        raise BadInput(FIELD, text, f"gives an object of {type(topo).__name__}, which is no Topo")
    links = [TopoLink(a, b, parameters) for a, b, parameters in topo.links(withInfo=True)]
    return topo.hosts(), topo.switches(), links


def convert(hosts: Sequence[str], switches: Sequence[str], links: Sequence[TopoLink]) -> Topology:
    """Return a Topo's nodes and links as a topology. ValueError, in one line, for what a fabric can't have."""
    _check_hosts(hosts, links)
    for link in links:
        _check_parameters(link)
    rates = [link.mbps for link in links if link.mbps is not None]
    fastest_mbps = max(rates, default=None)
    host_names = frozenset(hosts)
    rail_links = [link for link in links if not host_names.isdisjoint((link.a, link.b))]
    rail_mbps = _common_rate(rail_links) or fastest_mbps
    cables = list[Cable]()
    for link in links:
        mbps = link.mbps or fastest_mbps
        is_rail = link in rail_links
        rate = 1.0 if is_rail or mbps is None or rail_mbps is None else mbps / rail_mbps
        cables.append(Cable(link.a, link.b, rate))
    topology = Topology(tuple(hosts), tuple(switches), tuple(cables), rail_mbps)
    _check_graph(topology)
    return topology


def _check_hosts(hosts: Sequence[str], links: Sequence[TopoLink]) -> None:
    if len(hosts) < 2:
        count = "1 host" if hosts else "no hosts"
        raise ValueError(f"has {count}: add 2 or more by addHost")
    if len(hosts) > MAX_GRAPH_DOMAINS:
        raise ValueError(f"has {len(hosts)} hosts: {MAX_GRAPH_DOMAINS} are the most")
    host_names = frozenset(hosts)
    for link in links:
        if link.a in host_names and link.b in host_names:
            raise ValueError(f"link {link.name} joins two hosts: put a switch between them")
    for host in hosts:
        attached = [link.name for link in links if host in (link.a, link.b)]
        if not attached:
            raise ValueError(f"host {host} has no link: join it with a switch by addLink")
        if len(attached) > 1:
            raise ValueError(f"host {host} has {len(attached)} links ({', '.join(attached)}): it may have one")
        if is_gpu_name(host):
            raise ValueError(f"host {host} has a name of GPUs: rename it, such as h1")


def _check_parameters(link: TopoLink) -> None:
    for key in NOT_EMULATED:
        if link.parameters.get(key):
            value = link.parameters[key]
            raise ValueError(f"link {link.name} has {key}={value!r}: fabrics have none, only the command mininet does")
    rate = link.mbps
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and 0 < rate < MAX_MBPS):
        raise ValueError(f"link {link.name} has bw={rate!r}: a number above 0 is needed, in Mbit/s")


def _common_rate(rail_links: Sequence[TopoLink]) -> float | None:
    """Return the rate of the hosts' links, Mbit/s; None if none states any. ValueError if they differ."""
    rated = [link for link in rail_links if link.mbps is not None]
    for link in rated:
        if link.mbps != rated[0].mbps:
            rates = f"link {link.name} has bw={link.mbps:g}, and {rated[0].name} has bw={rated[0].mbps:g}"
            raise ValueError(f"{rates}: hosts' links must have one rate")
    return rated[0].mbps if rated else None


def _check_graph(topology: Topology) -> None:
    """Raise ValueError for the first mistake in the graph, with the names of hosts."""
    size = Size(len(topology.hosts), 1)
    network = network_of(topology.hosts, topology.switches, topology.cables)
    names = {gpu.name: host for gpu, host in zip(size.gpus, topology.hosts, strict=True)}
    for problem in network_problems(network, size):
        raise ValueError(problem)
    groups = sorted(sorted(group) for group in FabricGraph(network).groups())
    if len(groups) > 1:
        first = names[groups[0][0].name]
        other = names[groups[1][0].name]
        raise ValueError(f"no links join host {first} with host {other}: add links between switches")


def source_of(name: str, topology: Topology, text: str) -> str:
    """Return the source of a plugin that registers a topology as the fabric kind `name`.

    `text`: value of `--topo`.
    """
    hosts = "".join(f"        {host!r},\n" for host in topology.hosts)
    switches = "".join(f"        {switch!r},\n" for switch in topology.switches)
    cables = "".join(f"        Cable({a!r}, {b!r}, {rate!r}),\n" for a, b, rate in topology.cables)
    title = f"Fabric kind made of a Mininet topology by --topo {text}. Its hosts are d0g0, d1g0, ..., in this order."
    return f"""{title!r}

from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.graph import Cable
from railyard.topologies.topology_kind import TopologyKind


@FABRIC_KINDS.register({name!r})
class Topology(TopologyKind):
    hosts = (
{hosts}    )
    switches = (
{switches}    )
    cables = (
{cables}    )
"""
