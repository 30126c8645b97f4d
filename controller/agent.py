"""The route agent: one netlink socket in each GPU's namespace, through which routes change while traffic flows.

The sockets are opened once, by a thread that goes from namespace to namespace; after that a change is one message, with
no process and no setns on its way. Messages are encoded by pyroute2.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterable
from typing import Final

from pyroute2.netlink.rtnl.rtmsg import rtmsg

from topologies import namespaces
from topologies.addresses import Gpu
from topologies.plan import Plan
from topologies.routes import Route

RTM_NEWROUTE: Final = 24
RTM_DELROUTE: Final = 25
REQUEST_ACK: Final = 0x1 | 0x4
CREATE_REPLACE: Final = 0x400 | 0x100
NLMSG_ERROR: Final = 2
ONLINK: Final = 4
PROTOCOL: Final = 99  # marks our routes in `ip route` (proto 99)
SCOPE_LINK: Final = 253


class RouteAgent:
    """Changes main-table routes of any GPU of the fabric. OSError names the GPU and route that the kernel refused."""

    def __init__(self, plan: Plan) -> None:
        self._sockets: dict[Gpu, socket.socket] = {}
        self._index: dict[Gpu, dict[str, int]] = {}
        for gpu in plan.gpus:
            with namespaces.inside(gpu.name):
                self._sockets[gpu] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._sequence = 0

    def learn_interfaces(self) -> None:
        """Call once when the links are there."""
        for gpu in self._sockets:
            with namespaces.inside(gpu.name):
                self._index[gpu] = {name: socket.if_nametoindex(name) for name in ("hb0", "rail0")}

    def change(self, gpu: Gpu, remove: Iterable[Route], put: Iterable[Route]) -> int:
        """Put routes in (replacing those to the same prefix and metric), then remove others; the number of changes."""
        verbs = [(RTM_NEWROUTE, CREATE_REPLACE, route) for route in put]
        verbs += [(RTM_DELROUTE, 0, route) for route in remove]
        messages = [self._encode(verb, flags, gpu, route) for verb, flags, route in verbs]
        if not messages:
            return 0
        first = self._sequence - len(messages) + 1
        self._sockets[gpu].send(b"".join(messages))
        self._await_acks(gpu, [(first + i, verb, route) for i, (verb, _, route) in enumerate(verbs)])
        return len(messages)

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()

    def _encode(self, verb: int, flags: int, gpu: Gpu, route: Route) -> bytes:
        self._sequence += 1
        address, length = route.prefix.split("/")
        message = rtmsg()
        message["family"], message["dst_len"], message["table"] = socket.AF_INET, int(length), route.table
        message["proto"], message["type"] = PROTOCOL, 1
        attributes = [["RTA_DST", address], ["RTA_OIF", self._index[gpu][route.device]]]
        attributes += [["RTA_PRIORITY", route.metric], ["RTA_PREFSRC", gpu.ip]]
        if route.via is None:
            message["scope"] = SCOPE_LINK
        else:
            message["flags"] = ONLINK
            attributes.append(["RTA_GATEWAY", route.via.ip])
        message["attrs"] = attributes
        message["header"]["type"] = verb
        message["header"]["flags"] = REQUEST_ACK | flags
        message["header"]["sequence_number"] = self._sequence
        message.encode()
        return bytes(message.data)

    def _await_acks(self, gpu: Gpu, waiting: list[tuple[int, int, Route]]) -> None:
        open_ones = {sequence: (verb, route) for sequence, verb, route in waiting}
        while open_ones:
            data = self._sockets[gpu].recv(65536)
            while data:
                length, kind, _, sequence, _ = struct.unpack_from("=IHHII", data)
                verb, route = open_ones.pop(sequence, (0, None))
                code = -struct.unpack_from("=i", data, 16)[0] if kind == NLMSG_ERROR else 0
                # a route that went with its interface (a crashed GPU) is gone as asked
                if code and not (verb == RTM_DELROUTE and code == errno.ESRCH):
                    raise OSError(code, f"{gpu.name}: route {route}: {os.strerror(code)}")
                data = data[(length + 3) & ~3 :]
