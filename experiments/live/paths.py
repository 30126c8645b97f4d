"""Path that packets of a pair take now, by the route tables of the GPUs on the way. No packet is sent."""

import socket
import struct
from typing import Any, Final

from railyard.topologies.addresses import Gpu, gpu_of_ip, plane_of_device
from railyard.topologies.build import namespaces
from railyard.topologies.build.rtnetlink import REQUEST, RTA_DST, RTA_GATEWAY, RTA_OIF, RTM_GETROUTE
from railyard.topologies.forwarding import path_names
from railyard.topologies.plan import Plan

RTA_SRC: Final = 2
RTA_IIF: Final = 3
RTN_LOCAL: Final = 2
MAX_HOPS: Final = 8  # more are a loop
_ROUTE: Final = struct.Struct("=8BI")  # struct rtmsg; the eighth byte is the type
_ATTRIBUTE: Final = struct.Struct("=HHI")


def describe_path(plan: Plan, src: Gpu, dst: Gpu) -> dict[str, Any]:
    """Return the policy's path, and the packets': the GPUs, the numbers of its links in the plan, and any problem.

    OSError if a namespace is gone.
    """
    numbers = {(link.a.node, link.a.interface): i for i, link in enumerate(plan.links)}
    gpus, links, arrived_by, problem = [src], list[int](), "", ""
    while gpus[-1] != dst and not problem:
        here = gpus[-1]
        if len(gpus) > MAX_HOPS:
            problem = f"a loop of {MAX_HOPS} hops"
        elif (found := _next_hop(here, src, dst, arrived_by)) is None:
            problem = f"no route at {here.name}"
        else:
            device, following = found
            links += [numbers[here.name, device], numbers[following.name, _far_device(device, here, following)]]
            gpus.append(following)
            arrived_by = _far_device(device, here, following)
    policy = path_names(plan.spec.paths(src, dst))
    return {"policy": policy, "gpus": [gpu.name for gpu in gpus], "links": links, "problem": problem}


def _far_device(device: str, here: Gpu, following: Gpu) -> str:
    """Return the interface of arrival: that of the same domain or rail, and of plane 0 between two rails."""
    return device if device == "hb0" or here.rank == following.rank or plane_of_device(device) else "rail0"


def _next_hop(here: Gpu, src: Gpu, dst: Gpu, arrived_by: str) -> tuple[str, Gpu] | None:
    """Return the interface and the next GPU by the route of a packet that arrived by an interface; None without one."""
    with namespaces.inside(here.name), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as netlink:
        attributes = _ATTRIBUTE.pack(8, RTA_DST, 0)[:4] + socket.inet_aton(dst.ip)
        attributes += _ATTRIBUTE.pack(8, RTA_SRC, 0)[:4] + socket.inet_aton(src.ip)
        if arrived_by:
            attributes += _ATTRIBUTE.pack(8, RTA_IIF, socket.if_nametoindex(arrived_by))
        body = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0) + attributes
        size = namespaces.HEADER.size + len(body)
        netlink.send(namespaces.HEADER.pack(size, RTM_GETROUTE, REQUEST, 0, 0) + body)
        answer = netlink.recv(65536)
        if namespaces.HEADER.unpack_from(answer)[1] == namespaces.NLMSG_ERROR:
            return None
        body = answer[namespaces.HEADER.size :]
        found = dict(namespaces.attributes(body[_ROUTE.size :]))
        if _ROUTE.unpack_from(body)[7] == RTN_LOCAL or RTA_OIF not in found:
            return None
        device = socket.if_indextoname(struct.unpack("=I", found[RTA_OIF])[0])
        gateway = found.get(RTA_GATEWAY)
    return device, gpu_of_ip(socket.inet_ntoa(gateway)) if gateway else dst
