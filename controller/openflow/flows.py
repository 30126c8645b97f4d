"""The tables of a switch as plain data: `tables_of(dpid, ports, spines)`.

Everything follows from the datapath id and the port numbers (topologies/addresses.py). A rail switch sends eth_dst of
its own rank's GPUs out of their ports, and all else to an OpenFlow group of type select over the spines, which an ECMP
hash chooses from; where the forwarding policy assigns uplinks, each GPU of another rank has a flow of its own. A spine
looks only at the rank in eth_dst; the single switch knows every GPU. Frames that match nothing are dropped. Where a
spine has lost its cable to some rail, that rank gets a flow and a group of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from railyard.topologies.addresses import UPLINK_PORT, Gpu, gpu_at, plane_of, port_of, rank_mac, role_of
from railyard.topologies.graph import Ends, FabricGraph
from railyard.topologies.nics import RailOfRank, gpus_of_nic

ANY_GPU: Final = ("02:52:00:00:00:00", "ff:ff:00:00:00:00")
ANYTHING: Final = ("00:00:00:00:00:00", "00:00:00:00:00:00")
EXACT: Final = "ff:ff:ff:ff:ff:ff"
GPU_PRIORITY: Final = 200
ASSIGNED_PRIORITY: Final = 175
RANK_PRIORITY: Final = 150
UPLINK_PRIORITY: Final = 100
# for every rank but those with a group of their own
UPLINK_GROUP: Final = 1
RANK_GROUP: Final = 2  # plus the rank

Ports = Mapping[int, bool]  # number -> is it up


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """Frames whose eth_dst matches (value, mask) go out of `port`, or to `group` where that is set.

    `in_port`, where set: frames that arrive there; the flows of an optical switch match nothing else.
    """

    eth_dst: str
    mask: str
    priority: int
    port: int | None
    group: int | None = None
    in_port: int | None = None

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Match and priority: a switch has one flow of each key, and adding another replaces it."""
        return self.eth_dst, self.mask, self.priority, self.in_port or 0


@dataclass(frozen=True, slots=True)
class Tables:
    """All of a switch: its flows, and the ports of each select group (none: the group drops)."""

    flows: frozenset[Flow] = frozenset()
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps from one `Tables` to another, in this order, so that no packet meets a gap."""

    change_groups: tuple[tuple[int, tuple[int, ...]], ...] = ()
    add_groups: tuple[tuple[int, tuple[int, ...]], ...] = ()
    add: tuple[Flow, ...] = ()
    delete: tuple[Flow, ...] = ()
    delete_groups: tuple[int, ...] = ()


def tables_of(
    dpid: int,
    ports: Ports,
    spines: Mapping[int, Ports] | None = None,
    assigned: Mapping[Gpu, int] | None = None,
    nics: RailOfRank = (),
) -> Tables:
    """Return the tables of an electrical switch with these ports.

    `spines`: the ports of each known spine, none for a lost one. A spine that has not connected yet counts as intact.
    `assigned`: the number of a rail switch's uplink to each GPU of another rank, counted in a circle over those alive.
    `nics`: the rail of each rank, where GPUs share NICs; a rail switch has a port for each NIC then.
    """
    role, rank = role_of(dpid)
    if role == "spine":
        to_rails = [Flow(*match, GPU_PRIORITY, port) for port in ports for match in _rail_macs(port - 1, nics)]
        return Tables(frozenset(to_rails))
    flows = _gpu_flows(dpid, ports, nics)
    uplinks = [port for port in sorted(ports) if gpu_at(dpid, port) is None]
    if not uplinks:
        return Tables(frozenset(flows))
    spines = spines or {}
    living_uplinks = tuple(port for port in uplinks if ports[port])
    usual = uplinks_to(rank, living_uplinks, spines)
    flows.add(Flow(*ANY_GPU, UPLINK_PRIORITY, None, UPLINK_GROUP))
    groups = {UPLINK_GROUP: usual}
    for other_rank in _ranks_of(spines):
        rank_uplinks = uplinks_to(other_rank, usual, spines)
        if rank_uplinks != usual:
            for match in _rail_macs(other_rank, nics):
                flows.add(Flow(*match, RANK_PRIORITY, None, RANK_GROUP + other_rank))
            groups[RANK_GROUP + other_rank] = rank_uplinks
    if assigned:
        flows |= _assigned_flows(assigned, usual, spines)
    return Tables(frozenset(flows), groups)


def _gpu_flows(dpid: int, ports: Ports, nics: RailOfRank) -> set[Flow]:
    """Return a flow for each GPU behind a port of a switch that GPUs' rail links lead to."""
    _, index = role_of(dpid)
    flows: set[Flow] = set()
    for port in ports:
        gpu = gpu_at(dpid, port)
        if gpu is None:
            continue
        gpus = gpus_of_nic(nics, gpu.domain, index) if nics else (gpu,)
        for each in gpus:
            flows.add(Flow(each.mac("rail", plane_of(dpid)), EXACT, GPU_PRIORITY, port))
    return flows


def _rail_macs(rail: int, nics: RailOfRank) -> list[tuple[str, str]]:
    """Return (value, mask) of the eth_dst matches of all GPUs on a rail: one for each rank there."""
    return [rank_mac(gpu.rank) for gpu in gpus_of_nic(nics, 0, rail)]


def _ranks_of(spines: Mapping[int, Ports]) -> list[int]:
    """Return the ranks to whose rails any of these spines has a cable."""
    ports = set(chain.from_iterable(spines.values()))
    return sorted(port - 1 for port in ports)


def _assigned_flows(assigned: Mapping[Gpu, int], usual: tuple[int, ...], spines: Mapping[int, Ports]) -> set[Flow]:
    """Return a flow for each GPU whose uplink is assigned, if any uplink leads to it."""
    flows = set()
    for gpu, number in assigned.items():
        rank_uplinks = uplinks_to(gpu.rank, usual, spines)
        if rank_uplinks:
            port = rank_uplinks[number % len(rank_uplinks)]
            flows.add(Flow(gpu.mac("rail"), EXACT, ASSIGNED_PRIORITY, port))
    return flows


def graph_tables(graph: FabricGraph, switch: str, dead: frozenset[str], cut: frozenset[Ends]) -> Tables:
    """Return the tables of a switch of a graph while other switches are dead and cables between switches are cut.

    A flow for each GPU that the switch reaches: out of its port, or to the next switch on the shortest paths. Where
    there are several, a group hashes over them, one for each target switch.
    """
    flows: set[Flow] = set()
    groups: dict[int, tuple[int, ...]] = {}
    following = graph.next_switches(dead - {switch}, cut)[switch]
    for leaf, gpus in graph.gpus_at.items():
        ports = tuple(graph.ports[switch][name] for name in following.get(leaf, ()))
        group = 1 + graph.switches.index(leaf)
        if len(ports) > 1:
            groups[group] = ports
        for gpu in gpus:
            eth_dst = gpu.mac("rail")
            if leaf == switch:
                flows.add(Flow(eth_dst, EXACT, GPU_PRIORITY, port_of("leaf", gpu)))
            elif len(ports) > 1:
                flows.add(Flow(eth_dst, EXACT, GPU_PRIORITY, None, group))
            elif ports:
                flows.add(Flow(eth_dst, EXACT, GPU_PRIORITY, ports[0]))
    return Tables(frozenset(flows), groups)


def uplinks_to(rank: int, uplinks: tuple[int, ...], spines: Mapping[int, Ports]) -> tuple[int, ...]:
    """Return the uplinks of a rail switch whose spine has a living cable to the rail of this rank."""
    port_to_rank = rank + 1
    # a spine that has not connected yet counts as intact, so that switches may connect in any order
    intact = {port_to_rank: True}
    return tuple(uplink for uplink in uplinks if spines.get(uplink - UPLINK_PORT, intact).get(port_to_rank))


def reconcile(current: Tables, target: Tables) -> Steps:
    """The steps for a switch that has `current` (kept over a lost connection, or from before a port changed)."""
    change_groups: list[tuple[int, tuple[int, ...]]] = []
    add_groups: list[tuple[int, tuple[int, ...]]] = []
    for number, ports in sorted(target.groups.items()):
        if number not in current.groups:
            add_groups.append((number, ports))
        elif current.groups[number] != ports:
            change_groups.append((number, ports))
    # a flow replaces the one of its key: to delete that one as well would delete the new one
    target_keys = {flow.key for flow in target.flows}
    deleted = [flow for flow in current.flows - target.flows if flow.key not in target_keys]
    return Steps(
        change_groups=tuple(change_groups),
        add_groups=tuple(add_groups),
        add=tuple(sorted(target.flows - current.flows, key=lambda flow: flow.key)),
        delete=tuple(sorted(deleted, key=lambda flow: flow.key)),
        delete_groups=tuple(sorted(current.groups.keys() - target.groups.keys())),
    )
