"""Paths of a pair of GPUs: the policy's, and that of its packets now, by the route tables of the GPUs on the way.

No packet is sent.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any, Final

from railyard.topologies.addresses import Gpu, Pair, Side, gpu_of_ip, plane_of_device
from railyard.topologies.build import namespaces
from railyard.topologies.build.rtnetlink import REQUEST, RTA_DST, RTA_GATEWAY, RTA_OIF, RTM_GETROUTE
from railyard.topologies.forwarding import hops, path_names
from railyard.topologies.plan import Plan

RTA_SRC: Final = 2
RTA_IIF: Final = 3
RTN_LOCAL: Final = 2
# to read all 240 pairs takes 10 ms
ALL_PAIRS_GPUS: Final = 16
MAX_FOLLOWED: Final = 256  # pairs
MAX_HOPS: Final = 8  # more are a loop
_ROUTE: Final = struct.Struct("=8BI")  # struct rtmsg; the eighth byte is the type
_ATTRIBUTE: Final = struct.Struct("=HHI")

NextHop = Callable[[Gpu, Gpu, Gpu, str], tuple[str, Gpu] | None]
"""(here, src, dst, the interface of arrival) -> the interface and the GPU that packets leave by; None: no route."""


class Links:
    """Numbers of a plan's links, by what paths cross."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.at: dict[tuple[str, str], int] = {}
        # numbers of links by node, and whether the link is that of the HB domain
        self._by_node: dict[tuple[str, bool], list[int]] = {}
        for number, link in enumerate(plan.links):
            self.at[link.a.node, link.a.interface] = number
            is_hb = link.a.interface.startswith("hb")
            self._by_node.setdefault((link.a.node, is_hb), []).append(number)

    def at_gpu(self, gpu: Gpu, side: Side) -> list[int]:
        """Return the links of a GPU on a side: of its rail, one in each plane."""
        return self._by_node.get((gpu.name, side == "hb"), [])

    def at_nic(self, gpu: Gpu, side: Side) -> list[int]:
        """Return the link of the NIC that a GPU shares, behind its own; none where it has its own NIC."""
        if side == "hb" or not self._plan.nics:
            return []
        return self._by_node[self._plan.nic_of(gpu), False]

    def switches_of(self, gpu: Gpu) -> set[str]:
        """Return the switches that the rail links of a GPU lead to."""
        numbers = self.at_nic(gpu, "rail") or self.at_gpu(gpu, "rail")
        return {self._plan.links[number].b.node for number in numbers}

    def policy(self, src: Gpu, dst: Gpu) -> list[int]:
        """Return the links of the policy's paths: in every plane, and of spines all that a hash may choose."""
        numbers = dict[int, None]()
        for share in self._plan.spec.paths(src, dst):
            for hop in hops(share.path, src, dst):
                for end in (hop.a, hop.b):
                    numbers |= dict.fromkeys([*self.at_gpu(end, hop.side), *self.at_nic(end, hop.side)])
                numbers |= dict.fromkeys(self.uplinks(hop.a, hop.b))
        return list(numbers)

    def uplinks(self, a: Gpu, b: Gpu) -> list[int]:
        """Return the uplinks between the rails of two GPUs; none if they are of one rail or domain."""
        if self._plan.spec.definition.is_graph and a.domain != b.domain:
            return [number for number, _, _ in self.graph_uplinks(a, b)]
        spec = self._plan.spec
        is_one_rail = spec.rail_of(a.rank) == spec.rail_of(b.rank)
        if is_one_rail or a.domain == b.domain or not self._plan.uplinks:
            return []
        rails = self.switches_of(a) | self.switches_of(b)
        return [number for (node, _), number in self.at.items() if node in rails]

    def has_one_path(self, a: Gpu, b: Gpu) -> bool:
        """Return whether frames between the switches of two GPUs have no choice."""
        if self._plan.spec.definition.is_graph:
            return all(share == 1 for _, _, share in self.graph_uplinks(a, b))
        return self._plan.spec.spine_count == 1

    def graph_uplinks(self, a: Gpu, b: Gpu) -> list[tuple[int, int, float]]:
        """Return (number, 0 from its first end or 1 to it, share) of each link between switches of a graph."""
        graph = self._plan.graph
        uplinks: list[tuple[int, int, float]] = []
        for (near, far), share in graph.shares(graph.switch_of[a], graph.switch_of[b]).items():
            if (near, far) in self.at:
                uplinks.append((self.at[near, far], 0, share))
            else:
                uplinks.append((self.at[far, near], 1, share))
        return uplinks


def describe_path(plan: Plan, links: Links, src: Gpu, dst: Gpu, next_hop: NextHop) -> dict[str, Any]:
    """Return the policy's path and the packets': the GPUs, the numbers of links in the plan, and any problem.

    Of several uplinks none is in the packets' path. OSError if a namespace is gone.
    """
    gpus = [src]
    numbers = list[int]()
    arrived_by = ""
    problem = ""
    while gpus[-1] != dst and not problem:
        here = gpus[-1]
        if len(gpus) > MAX_HOPS:
            problem = f"a loop of {MAX_HOPS} hops"
        elif (next_node := next_hop(here, src, dst, arrived_by)) is None:
            problem = f"no route at {here.name}"
        else:
            device, following = next_node
            side: Side = "hb" if device == "hb0" else "rail"
            arrived_by = _far_device(device, here, following)
            if not {(here.name, device), (following.name, arrived_by)} <= links.at.keys():
                problem = f"no link at {device} of {here.name} to {following.name}"
                break
            uplinks: list[int] = []
            # which of several uplinks packets take is up to a hash of the switch
            if device != "hb0" and links.has_one_path(here, following):
                uplinks = links.uplinks(here, following)
            near = [links.at[here.name, device], *links.at_nic(here, side)]
            far = [*links.at_nic(following, side), links.at[following.name, arrived_by]]
            numbers += [*near, *uplinks, *far]
            gpus.append(following)
    return {
        "policy": path_names(plan.spec.paths(src, dst), plan.spec.rail_of_rank),
        "policy_links": links.policy(src, dst),
        "gpus": [gpu.name for gpu in gpus],
        "links": numbers,
        "problem": problem,
    }


class Paths:
    """Paths on a fabric of GPUs, and when they changed: of all pairs of a small fabric, else of those asked for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._links = Links(plan)
        # a dictionary, since the pairs that were asked for first are forgotten first
        self._followed: dict[Pair, None] = {}
        if len(plan.gpus) <= ALL_PAIRS_GPUS:
            self._followed |= dict.fromkeys(permutations(plan.gpus, 2))
        self._last: dict[str, dict[str, Any]] = {}

    def read(self, *pairs: Pair) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return when (monotonic ns), and by `SRC DST` the paths that have changed.

        `pairs`: the only ones that are read now, and followed from now on; without any, all that are followed are
        read. OSError if a namespace is gone.
        """
        self._followed |= dict.fromkeys(pairs)
        while len(self._followed) > MAX_FOLLOWED:
            del self._followed[next(iter(self._followed))]
        changed: dict[str, dict[str, Any]] = {}
        with route_lookup() as next_hop:
            for src, dst in pairs or self._followed:
                names = f"{src.name} {dst.name}"
                path = describe_path(self._plan, self._links, src, dst, next_hop)
                if self._last.get(names) != path:
                    changed[names] = path
        self._last |= changed
        return time.monotonic_ns(), changed

    def last(self, src: Gpu, dst: Gpu) -> dict[str, Any]:
        """Return the path of a pair as it was read last."""
        return self._last[f"{src.name} {dst.name}"]


def _far_device(device: str, here: Gpu, following: Gpu) -> str:
    """Return the interface of arrival: that of the same domain or rail, and of plane 0 between two rails."""
    if device == "hb0" or here.rank == following.rank or plane_of_device(device):
        return device
    return "rail0"


@contextmanager
def route_lookup() -> Iterator[NextHop]:
    """Ask the kernel for routes, by a socket in the namespace of each GPU that is asked, until the end."""
    sockets = dict[str, tuple[socket.socket, dict[str, int], dict[int, str]]]()

    def socket_at(node: str) -> tuple[socket.socket, dict[str, int], dict[int, str]]:
        if node not in sockets:
            with namespaces.inside(node):
                names = dict(socket.if_nameindex())
                netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
            numbers = {name: number for number, name in names.items()}
            sockets[node] = netlink, numbers, names
        return sockets[node]

    def next_hop(here: Gpu, src: Gpu, dst: Gpu, arrived_by: str) -> tuple[str, Gpu] | None:
        netlink, numbers, names = socket_at(here.name)
        attributes = _ATTRIBUTE.pack(8, RTA_DST, 0)[:4] + socket.inet_aton(dst.ip)
        attributes += _ATTRIBUTE.pack(8, RTA_SRC, 0)[:4] + socket.inet_aton(src.ip)
        if arrived_by:
            attributes += _ATTRIBUTE.pack(8, RTA_IIF, numbers.get(arrived_by, 0))
        body = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0) + attributes
        size = namespaces.HEADER.size + len(body)
        netlink.send(namespaces.HEADER.pack(size, RTM_GETROUTE, REQUEST, 0, 0) + body)
        answer = netlink.recv(65536)
        if namespaces.HEADER.unpack_from(answer)[1] == namespaces.NLMSG_ERROR:
            return None
        body = answer[namespaces.HEADER.size :]
        route_attributes = dict(namespaces.attributes(body[_ROUTE.size :]))
        if _ROUTE.unpack_from(body)[7] == RTN_LOCAL or RTA_OIF not in route_attributes:
            return None
        device = names.get(struct.unpack("=I", route_attributes[RTA_OIF])[0])
        # a new interface has no name here yet
        if device is None:
            return None
        gateway = route_attributes.get(RTA_GATEWAY)
        if gateway is None:
            return device, dst
        return device, gpu_of_ip(socket.inet_ntoa(gateway))

    try:
        yield next_hop
    finally:
        for netlink, *_ in sockets.values():
            netlink.close()
