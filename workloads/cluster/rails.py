"""Routes of connections: in an HB domain, on a rail, or across rails.

A rail is where a NIC is plugged in, not a GPU's number: GPUs share NICs, as eight GPUs with four NICs do. Without a map
of the cabling, NIC number n of every host is taken to be on rail n.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

from railyard.core.config import read_yaml
from railyard.core.errors import BadInput
from railyard.workloads.cluster.records import Cluster, Communicator, Connection, ConnectionId, End, Host, Member


class Route(StrEnum):
    """Route of a connection. UNKNOWN: the NIC of one side isn't known, or its rail."""

    DOMAIN = "inside the domain"
    RAIL = "on its rail"
    PXN = "on its rail via PXN"
    CROSSING = "crosses rails"
    UNKNOWN = "not known"


MAX_NAMED_RANKS: Final = 4
NETWORK: Final = ("NET", "COLLNET")  # transports that take a NIC


@dataclass(frozen=True)
class RailMap:
    """Rails of NICs. `by_nic`: rails by the NIC's name or number; `by_host`: the same for single hosts.

    `gpus_per_nic`: GPUs that share a NIC, one after the other, where no file says which NIC a GPU takes.
    """

    by_nic: Mapping[str, int] = field(default_factory=dict)
    by_host: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    gpus_per_nic: int = 1

    def rail(self, host: Host, nic: int) -> int | None:
        """Return the rail of a host's NIC; None if a map was given that doesn't have it."""
        rails = self.by_host.get(host.name, self.by_nic)
        if not rails:
            return nic if not self.by_host else None
        name = host.nics[nic].name if nic in host.nics else ""
        if name in rails:
            return rails[name]
        return rails.get(str(nic))

    def rail_of_gpu(self, host: Host, gpu: int) -> int | None:
        """Return the rail of the NIC that a GPU takes: the nearest of the host's topology, else by its number.

        None for a GPU without a number, and for one with several nearest NICs on different rails.
        """
        if gpu < 0:
            return None
        nics = host.nics_of_gpu.get(gpu) or (gpu // self.gpus_per_nic,)
        rails = {self.rail(host, nic) for nic in nics}
        return rails.pop() if len(rails) == 1 else None


def read_rail_map(path: str, field_name: str) -> RailMap:
    """Read a map of NICs to rails: `{mlx5_0: 0, mlx5_1: 1}`, or one such map for each host. BadInput if it is none."""
    data = read_yaml(Path(path), field_name, path)
    if not isinstance(data, dict) or not data:
        raise BadInput(field_name, path, "must be a map of NICs to rails, as {mlx5_0: 0, mlx5_1: 1}")
    by_nic: dict[str, int] = {}
    by_host: dict[str, dict[str, int]] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            by_host[str(name)] = {str(nic): _rail(f"{field_name} {name}.{nic}", rail) for nic, rail in value.items()}
        else:
            by_nic[str(name)] = _rail(f"{field_name} {name}", value)
    return RailMap(by_nic, by_host)


def _rail(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadInput(where, value, "must be the number of a rail: 0 or more")
    return value


@dataclass(frozen=True, slots=True)
class RoutedConnection:
    """A connection with its route. Rails are None where no NIC is taken or known."""

    connection: ConnectionId
    route: Route
    src: Member | None
    dst: Member | None
    src_rail: int | None = None
    dst_rail: int | None = None
    crosses_by_gpu_number: bool = False


def routed(cluster: Cluster, communicator: Communicator, rails: RailMap) -> Iterator[RoutedConnection]:
    """Yield the connections of a communicator with their routes, in the order of channels and ranks."""
    in_order = sorted(communicator.connections.items(), key=lambda item: (item[0].channel, item[0].src, item[0].dst))
    for connection, ends in in_order:
        yield _routed(cluster, communicator, rails, connection, ends)


def _routed(
    cluster: Cluster, communicator: Communicator, rails: RailMap, connection: ConnectionId, ends: Connection
) -> RoutedConnection:
    src = communicator.members.get(connection.src)
    dst = communicator.members.get(connection.dst)
    end = ends.sender or ends.receiver
    if end is not None and end.transport == "by place":
        return _routed_by_place(cluster, rails, connection, src, dst)
    if end is None or end.transport not in NETWORK:
        return RoutedConnection(connection, _route_without_nic(end, src, dst), src, dst)
    src_rail = _rail_of(cluster, rails, src, ends.sender)
    dst_rail = _rail_of(cluster, rails, dst, ends.receiver)
    by_number = bool(src and dst and src.gpu != dst.gpu)
    if src_rail is None or dst_rail is None:
        route = Route.UNKNOWN
    elif src_rail != dst_rail:
        route = Route.CROSSING
    elif ends.sender and ends.sender.proxy is not None:
        route = Route.PXN
    else:
        route = Route.RAIL
    return RoutedConnection(connection, route, src, dst, src_rail, dst_rail, by_number)


def _route_without_nic(end: End | None, src: Member | None, dst: Member | None) -> Route:
    """Return the route of a connection whose transport takes no NIC, or isn't known, as of a line that is cut off."""
    if end is None or end.transport != "other":
        return Route.DOMAIN
    if src is None or dst is None or src.host != dst.host:
        return Route.UNKNOWN
    return Route.DOMAIN


def _routed_by_place(
    cluster: Cluster, rails: RailMap, connection: ConnectionId, src: Member | None, dst: Member | None
) -> RoutedConnection:
    """Return the route that a connection takes if each GPU uses its own NIC, and sends and receives use PXN."""
    if src is None or dst is None:
        return RoutedConnection(connection, Route.UNKNOWN, src, dst)
    if src.host == dst.host:
        return RoutedConnection(connection, Route.DOMAIN, src, dst)
    src_rail = rails.rail_of_gpu(cluster.host(src.host), src.gpu)
    dst_rail = rails.rail_of_gpu(cluster.host(dst.host), dst.gpu)
    if src_rail is None or dst_rail is None:
        route = Route.UNKNOWN
    elif src_rail == dst_rail:
        route = Route.RAIL
    elif connection.is_p2p and has_pxn(cluster):
        route = Route.PXN
    else:
        route = Route.CROSSING
    return RoutedConnection(connection, route, src, dst, src_rail, dst_rail, src.gpu != dst.gpu)


def has_pxn(cluster: Cluster) -> bool:
    """Return whether NCCL uses PXN for sends and receives: its default, unless a process logged that it is off."""
    is_off = "1" in cluster.settings.get("NCCL_PXN_DISABLE", ())
    return not is_off and "0" not in cluster.settings.get("NCCL_P2P_PXN_LEVEL", ())


def _rail_of(cluster: Cluster, rails: RailMap, member: Member | None, end: End | None) -> int | None:
    if member is None or end is None or end.nic is None:
        return None
    return rails.rail(cluster.host(member.host), end.nic)


@dataclass(frozen=True)
class CommunicatorRoutes:
    """A communicator with its connections' routes."""

    communicator: Communicator
    connections: tuple[RoutedConnection, ...]

    @property
    def counts(self) -> Counter[Route]:
        """The number of connections of each route."""
        return Counter(connection.route for connection in self.connections)

    @property
    def crossing(self) -> tuple[RoutedConnection, ...]:
        """The connections that cross rails."""
        return tuple(connection for connection in self.connections if connection.route is Route.CROSSING)

    @property
    def is_unconnected(self) -> bool:
        """True if it spans hosts and was initialized, and the log has no connection."""
        communicator = self.communicator
        return bool(communicator.initialized) and len(communicator.hosts) > 1 and not self.connections

    @property
    def partly_connected(self) -> tuple[int, ...]:
        """The first ranks that lack a connection which a channel's ring or tree has from and to each; none if none."""
        communicator = self.communicator
        if communicator.is_traced or communicator.size < 2:
            return ()
        senders: defaultdict[int, set[int]] = defaultdict(set)
        receivers: defaultdict[int, set[int]] = defaultdict(set)
        for connection, sides in communicator.connections.items():
            is_tree_of_switches = sides.sender is not None and sides.sender.transport == "COLLNET"
            if not connection.is_p2p and not is_tree_of_switches:
                senders[connection.channel].add(connection.src)
                receivers[connection.channel].add(connection.dst)
        if not senders:
            return ()
        connected = [senders[channel] & receivers[channel] for channel in {*senders, *communicator.rings}]
        joined = set.intersection(*connected)
        # a size in a damaged log may be any number
        lacking = (rank for rank in range(communicator.size) if rank not in joined)
        return tuple(islice(lacking, MAX_NAMED_RANKS))

    @property
    def is_lacking(self) -> bool:
        """True if it has connections that no file has, and that may cross rails."""
        return self.is_unconnected or bool(self.partly_connected) or self.communicator.has_unclassed_sends

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks whose initialization began and isn't complete in the log."""
        members = self.communicator.members
        return tuple(rank for rank in sorted(members) if rank not in self.communicator.initialized)


def routes(cluster: Cluster, rails: RailMap) -> tuple[CommunicatorRoutes, ...]:
    """Return the routes of every communicator."""
    all_routes = []
    for communicator in cluster.communicators:
        all_routes.append(CommunicatorRoutes(communicator, tuple(routed(cluster, communicator, rails))))
    return tuple(all_routes)


def interleaved(communicator: Communicator) -> bool:
    """Return whether consecutive ranks are on different hosts, though hosts have several ranks each."""
    members = communicator.members
    if len(members) < communicator.size or any(rank not in members for rank in range(communicator.size)):
        return False
    in_order = [members[rank].host for rank in range(communicator.size)]
    changes = sum(a != b for a, b in pairwise(in_order))
    return changes >= len(set(in_order)) and len(set(in_order)) > 1
